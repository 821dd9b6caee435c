"""`orchestrator agents` from outside: what it prints where, and what it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.catalog.agent_file import NO_DESCRIPTION
from orchestrator.surfaces.cli.main import main

AGENTS = Path(__file__).parents[3] / "agents"

GOOD = """\
---
name: good
description: Does good things.
env: {TOKEN: "${TOKEN}"}
---

Be good.
"""

BAD = """\
---
name: bad
timout_ms: 5
workspace: rx
---
"""


@pytest.fixture
def agents_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one agent that works and one that does not, and the place to look."""
    for name, text in (("good", GOOD), ("bad", BAD)):
        (tmp_path / "agents" / name).mkdir(parents=True)
        (tmp_path / "agents" / name / "agent.md").write_text(text)
    monkeypatch.setenv("ORCHESTRATOR_AGENTS_DIR", str(tmp_path / "agents"))
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", str(tmp_path))
    return tmp_path / "agents"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_check_passes_on_the_shipped_agents(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("agents", "check", "--agents-dir", str(AGENTS)) == 0
    assert capsys.readouterr().out.endswith(" agents, all good\n")


def test_check_prints_each_mistake_with_its_line_and_exits_with_3(
    capsys: pytest.CaptureFixture[str], agents_dir: Path
) -> None:
    bad = agents_dir / "bad" / "agent.md"
    assert run("agents", "check") == 3
    assert capsys.readouterr().out.splitlines() == [
        f"{bad}:1: description: {NO_DESCRIPTION}",
        f"{bad}:3: timout_ms: unknown field; did you mean 'timeout_ms'?",
        f"{bad}:4: workspace: found 'rx'; allowed: none, ro, rw, copy",
        "1 of 2 agents cannot be used",
    ]


def test_check_as_json_is_exactly_one_object(
    capsys: pytest.CaptureFixture[str], agents_dir: Path
) -> None:
    assert run("agents", "check", "--json") == 3
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert captured.err == ""
    assert (said["ok"], said["agents"]) == (False, ["good"])
    (broken,) = said["broken"]
    bad = str(agents_dir / "bad" / "agent.md")
    assert (broken["name"], broken["path"], len(broken["problems"])) == ("bad", bad, 3)
    assert broken["problems"][0] == {
        "path": bad,
        "line": 1,
        "field": "description",
        "message": NO_DESCRIPTION,
    }


def test_check_validates_schemas(capsys: pytest.CaptureFixture[str], agents_dir: Path) -> None:
    text = GOOD.replace("env:", "output_schema: {type: objekt}\nenv:")
    (agents_dir / "good" / "agent.md").write_text(text)
    assert run("agents", "check") == 3
    assert f"{agents_dir}/good/agent.md:4: output_schema.type: " in capsys.readouterr().out


FURTHER = """\
---
name: further
description: "Sends \\e]0;you\\a to whoever reads it."
---
Clear \x1b[2J the screen.
"""


def test_check_finds_what_would_only_be_found_in_a_run(
    capsys: pytest.CaptureFixture[str], agents_dir: Path
) -> None:
    (agents_dir / "further").mkdir()
    fields = "subagents:\n  - nosuch\n  - good\n  - bad\nenv: {LANG: de_DE.UTF-8}\n---\nClear"
    (agents_dir / "further" / "agent.md").write_text(FURTHER.replace("---\nClear", fields))
    further = agents_dir / "further" / "agent.md"
    said = [
        f"{further}:5: subagents[0]: there is no agent 'nosuch'; there are: good",
        (
            f"{further}:6: subagents[1]: good does not allow it; add further to allowed_callers of "
            "good's agent.md, or remove it here"
        ),
        f"{further}:8: env.LANG: is set by the orchestrator itself; remove it",
    ]
    assert run("agents", "check") == 3
    assert capsys.readouterr().out.splitlines()[3:6] == said
    assert run("run", "further", "Do it.") == 3
    assert capsys.readouterr().err.splitlines()[1:] == said
    assert run("agents", "list") == 0
    assert "further  cannot be used: subagents[0]: there is no agent" in capsys.readouterr().out


def test_nothing_that_an_agent_says_is_obeyed_by_the_terminal(
    capsys: pytest.CaptureFixture[str], agents_dir: Path
) -> None:
    (agents_dir / "further").mkdir()
    (agents_dir / "further" / "agent.md").write_text(FURTHER)
    for command in (("list",), ("show", "further"), ("prompt",)):
        assert run("agents", *command) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("memory: rw", "only a session has a memory"),
        ("session: true\nwarm: 1", "warm: is for agents without sessions"),
        ("workspace: {mode: ro, gitignore: true}", "workspace.gitignore is for copies"),
        ("output_schema: {$ref: '#/$defs/answer'}", "which is not in the schema"),
    ],
)
def test_a_field_that_would_do_nothing_is_a_mistake(
    capsys: pytest.CaptureFixture[str], agents_dir: Path, fields: str, says: str
) -> None:
    (agents_dir / "odd").mkdir()
    text = f"---\nname: odd\ndescription: Odd.\n{fields}\n---\n"
    (agents_dir / "odd" / "agent.md").write_text(text)
    assert run("agents", "check") == 3
    assert says in capsys.readouterr().out


def test_list_has_a_line_for_each_agent_and_the_broken_ones_as_well(
    capsys: pytest.CaptureFixture[str], agents_dir: Path
) -> None:
    assert run("agents", "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "bad   cannot be used: description: is missing; write `description: …`, a sentence or …",
        "good  Does good things.",
    ]
    assert run("agents", "list", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [agent["name"] for agent in said["agents"]] == ["good"]
    assert [broken["name"] for broken in said["broken"]] == ["bad"]


def test_show_prints_every_field_and_no_value_of_a_variable(
    capsys: pytest.CaptureFixture[str], agents_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    assert run("agents", "show", "good") == 0
    out = capsys.readouterr().out
    assert 'workspace        {"mode": "ro", "gitignore": false}\n' in out
    assert 'env              {"TOKEN": "${TOKEN}"}\n' in out
    assert out.endswith("\n\nBe good.\n")

    assert run("agents", "show", "good", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["name"], said["prompt"], said["retries"]) == ("good", "Be good.", 2)


def test_an_unknown_agent_exits_with_5_and_a_broken_one_with_3(
    capsys: pytest.CaptureFixture[str], agents_dir: Path
) -> None:
    assert run("agents", "show", "god") == 5
    said = capsys.readouterr().err
    assert said == "error: no agent 'god'; known: good (did you mean 'good'?)\n"
    assert run("agents", "show", "bad", "--json") == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "agent_invalid"


def test_prompt_tells_a_caller_of_the_agents_that_it_may_run(
    capsys: pytest.CaptureFixture[str], agents_dir: Path
) -> None:
    assert run("agents", "prompt") == 0
    assert "- **good**: Does good things.\n" in capsys.readouterr().out
    assert run("agents", "prompt", "--caller", "stranger") == 0
    assert capsys.readouterr().out == "## Subagents\n\nNo subagents are available.\n"


def test_the_default_is_the_agents_folder_of_the_project(
    capsys: pytest.CaptureFixture[str], agents_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCHESTRATOR_AGENTS_DIR")
    monkeypatch.chdir(agents_dir.parent)
    assert run("agents", "show", "good") == 0
    clone = agents_dir.parent / "clone"
    (clone / "src").mkdir(parents=True)
    monkeypatch.chdir(clone / "src")
    assert run("agents", "show", "good") == 0
    (clone / ".git").mkdir()  # from here on a repository of its own
    assert run("agents", "check") == 4
    assert capsys.readouterr().err == (
        f"error: there is no directory {clone}/src/agents, but there is one above: "
        f"cd {agents_dir.parent}, or --agents-dir {agents_dir}\n"
    )


def test_an_empty_directory_is_no_mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("agents", "list", "--agents-dir", str(tmp_path)) == 0
    assert capsys.readouterr().out == "there are no agents yet\n"
    assert run("agents", "check", "--agents-dir", str(tmp_path)) == 0


def test_help_loads_neither_yaml_nor_jsonschema() -> None:
    code = (
        "import sys\n"
        "from orchestrator.surfaces.cli.main import main\n"
        "try:\n    main(['agents', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'yaml', 'jsonschema'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
