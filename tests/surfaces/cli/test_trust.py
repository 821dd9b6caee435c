"""`orchestrator trust` from outside: what is trusted is what a person has seen."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.surfaces.cli.main import main


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


SEARCH = "---\nname: search\ndescription: Searches.\nnetwork: {allow: [a.org]}\n---\nSearch.\n"
PLAIN = "---\nname: plain\ndescription: Reaches nothing.\n---\nDo.\n"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that nobody has trusted, in which the test stands."""
    project = tmp_path / "repo"
    monkeypatch.delenv("ORCHESTRATOR_AGENTS_DIR", raising=False)
    monkeypatch.delenv("ORCHESTRATOR_TRUSTED", raising=False)
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    for name, text in (("search", SEARCH), ("plain", PLAIN)):
        (project / "agents" / name).mkdir(parents=True)
        (project / "agents" / name / "agent.md").write_text(text)
    monkeypatch.chdir(project)
    return project


def answering(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    """A person at a terminal who answers so, and what they were asked."""
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", confirm)
    return asked


def untrusted(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    capsys.readouterr()
    assert run("agents", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["untrusted"]
    assert isinstance(found, dict)
    return found


def test_trust_shows_what_agents_could_reach_and_asks(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, False)
    assert run("trust") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"the agents of {stranger} could reach, beside their model:",
        "  plain: nothing",
        "  search",
        "  + network: a.org",
        "what has a + is new: you have not trusted them with it",
        "nothing new is trusted",
    ]
    assert untrusted(capsys) == {"search": ["network: a.org"]}
    asked += answering(monkeypatch, True)
    assert run("trust", str(stranger)) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("trusted; you are asked again")
    assert untrusted(capsys) == {}
    assert asked == ["Trust them with it?"]
    assert run("trust") == 0  # and asks no more
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "    network: a.org",
        "nothing of it has to be trusted, or all of it is",
    ]


def test_agents_with_mistakes_are_named_and_not_trusted(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stranger / "agents/search/agent.md").write_text(SEARCH.replace("network", "netwrk"))
    assert run("trust") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"the agents of {stranger} could reach, beside their model:",
        "  plain: nothing",
        "nothing of it has to be trusted, or all of it is",
        "with mistakes, so that they cannot be used, nor trusted: search",
        "  `orchestrator agents check` shows the mistakes; then call this again",
    ]
    (stranger / "agents/plain/agent.md").write_text("no fields")
    assert run("trust") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        f"{stranger}/agents has no agent that can be used",
        "with mistakes, so that they cannot be used, nor trusted: plain, search",
    ]
    assert run("trust", "--json") == 0
    broken = json.loads(capsys.readouterr().out)["broken"]
    assert [each["name"] for each in broken] == ["plain", "search"]


def test_trust_is_asked_again_when_it_has_become_more_and_only_then(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stranger / "agents/search/agent.md"
    assert run("trust", "--yes") == 0
    file.write_text(SEARCH.replace("network: {allow: [a.org]}", "model: opus"))
    assert untrusted(capsys) == {}
    file.write_text(SEARCH.replace("[a.org]", "[a.org, b.org]"))
    assert untrusted(capsys) == {"search": ["network: b.org"]}
    assert run("trust", "--yes") == 0
    out = capsys.readouterr().out
    assert "\n    network: a.org\n  + network: b.org\n" in out
    assert untrusted(capsys) == {}


def test_what_is_trusted_is_what_was_shown(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def confirm(*_: object, **__: object) -> bool:
        (stranger / "agents/search/agent.md").write_text(SEARCH.replace("a.org", "evil.org"))
        return True

    answering(monkeypatch, True)
    monkeypatch.setattr("typer.confirm", confirm)
    assert run("trust") == 0
    assert "evil.org" not in capsys.readouterr().out
    assert untrusted(capsys) == {"search": ["network: evil.org"]}


def test_trust_is_listed_and_taken_back(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trust", "--list") == 0
    assert capsys.readouterr().out == "no project is trusted\n"
    assert run("trust", "--yes", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "project": str(stranger),
        "trusted": True,
        "by_setting": False,
        "agents": {"plain": [], "search": ["network: a.org"]},
        "new": {"search": ["network: a.org"]},
        "broken": [],
    }
    assert run("trust", "--list", "--json") == 0
    (project,) = json.loads(capsys.readouterr().out)["projects"]
    assert project["agents_dir"] == str(stranger / "agents")
    assert run("trust", "--list") == 0
    assert capsys.readouterr().out.startswith(f"{stranger}  20")
    assert run("trust", "--revoke", str(stranger)) == 0
    assert capsys.readouterr().out == f"{stranger} is trusted no more\n"
    assert untrusted(capsys) == {"search": ["network: a.org"]}
    assert run("trust", "--revoke", "--json") == 0
    assert json.loads(capsys.readouterr().out)["was_trusted"] is False


def test_nothing_is_trusted_where_nobody_can_be_asked(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run("trust") == 4
    assert "you cannot be asked here" in capsys.readouterr().err
    assert run("trust", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trusted"] is False
    assert untrusted(capsys) == {"search": ["network: a.org"]}


def test_a_setting_of_the_operators_trusts_what_is_below_it(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", f"/nowhere:{stranger.parent}")
    assert untrusted(capsys) == {}
    assert run("trust") == 0
    assert "by ORCHESTRATOR_TRUSTED" in capsys.readouterr().out
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", f"{stranger.parent}/other")
    assert untrusted(capsys) == {"search": ["network: a.org"]}
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", ".")
    assert run("trust") == 4
    assert "wherever you are, a stranger's too" in capsys.readouterr().err


def test_agents_and_plan_tell_who_is_not_trusted_yet(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"not trusted yet with what they want: search; see: orchestrator trust {stranger}"
    for of in ("list", "check"):
        assert run("agents", of) == 0
        assert line in capsys.readouterr().out.splitlines()
    assert run("plan", "search", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trust"] == {
        "needed": True,
        "missing": ["network: a.org"],
        "command": f"orchestrator trust {stranger}",
    }
    assert run("plan", "plain") == 0
    assert "none needed: it reaches nothing besides its model" in capsys.readouterr().out
