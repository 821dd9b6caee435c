"""`orchestrator config` from outside: each value, and where it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.containers.images.claude_binary import CLAUDE_VERSION
from orchestrator.settings import SOURCES, Settings
from orchestrator.surfaces.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of one's own, and none of the machine's settings."""
    monkeypatch.chdir(tmp_path)
    for source in SOURCES.values():
        monkeypatch.delenv(source.variable, raising=False)
    return tmp_path


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_each_setting_tells_where_it_came_from(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = here / "orchestrator.yaml"
    file.write_text("max_runs: 3\ncaller: planner\nagents_dir: theirs\n")
    monkeypatch.setenv("ORCHESTRATOR_CALLER", "reviewer")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-value-to-look-for")

    assert run("config", "--json", "--agents-dir", "mine") == 0
    out = capsys.readouterr().out
    told = json.loads(out)["settings"]
    assert list(told) == list(Settings.model_fields)
    assert told["max_runs"] == {
        "value": 3,
        "origin": str(file),
        "variable": "ORCHESTRATOR_MAX_RUNS",
    }
    assert (told["caller"]["value"], told["caller"]["origin"]) == (
        "reviewer",
        "ORCHESTRATOR_CALLER",
    )
    agents = told["agents_dir"]
    assert (agents["value"], agents["origin"]) == (str(here / "mine"), "--agents-dir")
    assert told["max_runs_per_agent"]["origin"] == "default"
    key = told["anthropic_api_key"]
    assert (key["value"], key["origin"]) == ("set", "ANTHROPIC_API_KEY")
    assert told["anthropic_auth_token"]["value"] == "not set"
    assert told["http_tokens"]["value"] == "not set"
    assert "a-value-to-look-for" not in out


def test_people_get_a_line_for_each_value_and_no_secret(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_ALLOWED_ROOTS", "/a:/b")
    monkeypatch.setenv("ORCHESTRATOR_HTTP_TOKENS", "main=a-value-to-look-for")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://me:password@proxy.example.org/v1")
    assert run("config") == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    at = rows.index(["allowed_roots", "ORCHESTRATOR_ALLOWED_ROOTS", "/a"])
    assert rows[at + 1] == ["/b"]
    assert ["http_tokens", "ORCHESTRATOR_HTTP_TOKENS", "set"] in rows
    assert ["anthropic_base_url", "ANTHROPIC_BASE_URL", "https://…@proxy.example.org/v1"] in rows
    assert ["caller", "default", "main"] in rows
    newest = [CLAUDE_VERSION + ",", "the", "newest", "that", "is", "pinned"]
    assert ["claude_version", "default", *newest] in rows
    assert "a-value-to-look-for" not in out


def test_a_mistake_in_the_file_is_the_operators_to_mend(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "orchestrator.yaml").write_text("max_run: 3\n")
    assert run("config") == 4
    said = (
        f"error: {here}/orchestrator.yaml: there is no setting 'max_run'; did you mean 'max_runs'?"
    )
    assert capsys.readouterr().err == said + "\n"
