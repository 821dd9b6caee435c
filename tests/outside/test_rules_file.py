"""The rules of agents outside follow their file, as long as it is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.catalog.rules_file import RulesFile, find_rules
from orchestrator.errors import OperatorError


def rules(*agents: str) -> str:
    return json.dumps({"agents": {name: {"allow": {"servers": ["db"]}} for name in agents}})


class Told(list[str]):
    def news(self) -> list[str]:
        said, self[:] = list(self), []
        return said


def test_a_mistake_keeps_the_old_rules_and_is_told_once(tmp_path: Path) -> None:
    path, told = tmp_path / "rules.json", Told()
    path.write_text(rules("a"))
    file = RulesFile(path, lambda: {"db": None}, told.append)
    assert (list(file.current().agents), told.news()) == (["a"], [])
    for wrong in ('{"agents": {"a": {"allow": {"servers": []}}}}', '{"agents"', ""):
        path.write_text(wrong)
        assert list(file.current().agents) == ["a"]
        (said,) = told.news()
        assert said.startswith(f"the rules are wrong now, and those of before go on:\n{path}:1: ")
        assert (list(file.current().agents), told.news()) == (["a"], [])
        assert file.reloads.last_error.startswith(f"{path}:1: ")
    path.unlink()
    assert list(file.current().agents) == ["a"]
    assert "No such file" in told.news()[0]
    path.write_text(rules("a", "b"))
    assert list(file.current().agents) == ["a", "b"]
    assert told.news() == [f"{path}: read again, rules for 2 agents"]
    assert file.reloads.last_error == ""
    assert (file.reloads.attempt_count, file.reloads.success_count) == (6, 2)
    assert file.reloads.last_attempt == file.reloads.last_success > 0


def test_two_changes_in_one_tick_of_the_clock_are_both_seen(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(rules("a"))
    file = RulesFile(path, lambda: {"db": None}, lambda _: None)
    for name in "bcdef":
        path.write_text(rules(name))
        assert list(file.current().agents) == [name]


def test_a_forced_reload_counts_though_nothing_changed(tmp_path: Path) -> None:
    path, told = tmp_path / "rules.json", Told()
    path.write_text(rules("a"))
    file = RulesFile(path, dict, told.append)
    warning = f"{path}: agents.a.allow.servers[0]: there is no server 'db'"
    assert told.news() == [warning]
    file.reload()
    assert told.news() == [f"{path}: read again, rules for 1 agent", warning]
    assert file.reloads.attempt_count == 2


def test_at_the_start_a_mistake_is_an_error_with_all_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"agent": {},\n"default": {}}')
    with pytest.raises(OperatorError) as caught:
        RulesFile(path, dict, lambda _: None)
    assert str(caught.value).splitlines() == [
        "the rules cannot be used:",
        f"{path}:1: agent: is not known here; did you mean 'agents'?",
        f"{path}:2: default: is not known here; did you mean 'defaults'?",
    ]
    with pytest.raises(OperatorError, match="cannot be read: No such file"):
        RulesFile(tmp_path / "gone.json", dict, lambda _: None)
    with pytest.raises(OperatorError, match="is not a regular file"):
        RulesFile(Path("/dev/zero"), dict, lambda _: None)


def test_the_rules_are_looked_for_beside_the_agents_and_not_where_one_happens_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, home, here = (tmp_path / name for name in ("project", "home", "here"))
    name = ".mcp-gateway-rules.json"
    here.mkdir()
    (here / name).write_text("{}")
    monkeypatch.chdir(here)
    with pytest.raises(OperatorError, match=f"write {project / name}, such as"):
        find_rules(None, project, home)
    places = (project / "config", home / ".config/agent-mcp-gateway", project)
    for folder in places:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
        assert find_rules(None, project, home) == folder / name
    assert find_rules(Path("mine.json"), project, home) == Path("mine.json")
