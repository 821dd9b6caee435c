"""Completion: by value for the words, and in the real shells that this machine has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.task import Task
from orchestrator.settings import read_settings
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.surfaces.cli.completing import candidates, joined_at_equals
from orchestrator.surfaces.cli.completion import SCRIPTS
from orchestrator.surfaces.cli.main import command_tree, main

SHELLS = [shell for shell in SCRIPTS if shutil.which(shell)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two agents, and a run that waits for an answer and a decision."""
    for name in ("coder", "reviewer"):
        (tmp_path / "agents" / name).mkdir(parents=True)
        (tmp_path / "agents" / name / "agent.md").write_text("---\nname: x\n---\n")
    for name in ("notes", "tickets", "no server;id"):
        folder = tmp_path / "agents" / "servers" / name
        folder.mkdir(parents=True)
        (folder / "server.yaml").write_text("command: [x]\n")
    tools = [{"definition": {"name": name}} for name in ("list", "close", "$(id)")]
    lock = tmp_path / "agents" / "servers" / "tickets" / "tools.lock.json"
    lock.write_text(json.dumps({"tools": tools}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_AGENTS_DIR", raising=False)
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))

    async def fill() -> None:
        store = Store(tmp_path / "state/runs.sqlite")
        project = read_settings().project
        await store.add_run(Task(agent="coder", prompt="p", run_id="r1a", project=project))
        await store.add_run(Task(agent="coder", prompt="p", run_id="r2b", project="/elsewhere"))
        await store.set_status("r1a", "running")
        now = time.time()
        exchanges = Exchanges(store)
        await exchanges.ask(
            Question(message_id="m1", run_id="r1a", question="Which\x1b\ncolour?", asked=now)
        )
        await exchanges.request(Approval(call_id="toolu_1", run_id="r1a", tool="Bash", asked=now))
        store.close()

    anyio.run(fill)
    return tmp_path


def words(line: str) -> list[str]:
    typed = line.split(" ")
    return [each.word for each in candidates(command_tree(), typed)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ru", ["run", "runs"]),
        ("nosuch", []),
        ("agents sh", ["show"]),
        ("runs pr", ["prune"]),
        ("run ", ["coder", "reviewer"]),
        ("run c", ["coder"]),
        ("run coder ", []),  # a prompt
        ("run --agents-dir nowhere ", []),
        ("run --timeout 3 ", ["coder", "reviewer"]),
        ("run coder hi --wo", ["--workspace"]),
        ("run coder hi --workspace ", [":dirs"]),
        ("plan ", ["coder", "reviewer"]),
        ("agents show r", ["reviewer"]),
        ("runs --agent c", ["coder"]),
        *((f"servers {verb} ", ["notes", "tickets"]) for verb in ("show", "pin", "diff", "login")),
        ("servers show n", ["notes"]),
        ("servers call tickets ", ["list", "close"]),
        ("servers call notes ", []),  # it was never pinned
        ("servers call nosuch ", []),
        ("runs --status comp", ["completed"]),
        ("logs ", ["r1a", "last"]),
        ("logs r1", ["r1a"]),
        ("wait r1a ", ["r1a", "last"]),
        ("approve ", ["toolu_1", "r1a", "last"]),
        ("approve r1a ", ["toolu_1"]),
        ("approve r1a toolu_1 ", []),
        ("reply ", ["m1", "r1a", "last"]),
        ("reply r1a ", ["m1"]),
        ("cost --by ", ["agent", "day", "project", "model"]),
        ("cost --by=d", ["--by=day"]),
        ("audit --act ru", ["run"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("--ver", ["--version"]),
        ("sessions rm ", []),
    ],
)
def test_what_could_stand_there(line: str, expected: list[str]) -> None:
    assert words(line) == expected


def test_what_an_agent_wrote_is_made_harmless() -> None:
    (found, *_) = candidates(command_tree(), ["reply", "m"])
    assert found.about == "Which� colour?"


def test_a_file_whose_name_a_shell_would_run_is_not_offered(here: Path) -> None:
    agents = here / "agents"
    (agents / "x;id>pwned;#.md").write_text("---\nname: x\n---\n")
    (agents / "$(id)").mkdir()
    (agents / "$(id)/agent.md").write_text("")
    (agents / "plain.md").write_text("---\nname: plain\n---\n")
    offered = words("run ")
    assert "plain" in offered
    assert all(name.replace("-", "").isalnum() for name in offered)


def test_bash_splits_words_at_an_equals_sign() -> None:
    assert joined_at_equals(["cost", "--by", "=", "da"]) == ["cost", "--by=da"]
    assert joined_at_equals(["cost", "--by", "="]) == ["cost", "--by="]
    assert joined_at_equals(["run", "a", "=", "b"]) == ["run", "a", "=", "b"]


def test_without_a_record_or_agents_there_is_nothing_to_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("ORCHESTRATOR_MAX_RUNS", "many")  # a setting that is wrong
    with pytest.raises(SystemExit) as exit_:
        main(["__complete", "bash", "--", "logs", ""])
    assert exit_.value.code == 0
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "nowhere").exists()


DRIVERS = {
    "bash": (
        "source ./script; COMP_WORDS=({words} '{last}'); COMP_CWORD={count}; _orchestrator; "
        'printf "%s\\n" "${{COMPREPLY[@]}}"'
    ),
    "zsh": (
        "compdef() {{ : }}; _describe() {{ print -rl -- ${{values%%:*}} }}; source ./script; "
        "words=({words} '{last}'); CURRENT=$(({count} + 1)); _orchestrator"
    ),
    "fish": "source ./script; complete -C '{words} {last}' | string replace -r '\\t.*' ''",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_commands_agents_and_runs(
    shell: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["completion", shell])
    assert exit_.value.code == 0
    (here / "script").write_text(capsys.readouterr().out)
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    for line, last, expected in (
        ("orchestrator", "pen", ["pending"]),
        ("orchestrator run", "", ["coder", "reviewer"]),
        ("orchestrator logs", "r", ["r1a"]),
    ):
        driver = DRIVERS[shell].format(words=line, last=last, count=len(line.split()))
        done = subprocess.run(
            [shell, *options, "-c", driver], capture_output=True, text=True, timeout=120
        )
        assert done.stderr == ""
        assert done.stdout.split() == expected


def test_every_shell_that_we_know_has_a_script_and_bash_is_here() -> None:
    assert list(SCRIPTS) == ["bash", "zsh", "fish"]
    assert "bash" in SHELLS


def test_completing_loads_neither_docker_nor_the_engine(here: Path) -> None:
    code = (
        "import sys\n"
        "from orchestrator.surfaces.cli.main import main\n"
        "try:\n    main(['__complete', 'bash', '--', 'logs', ''])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'docker', 'rich', 'requests', 'httpx', 'mcp', 'yaml', 'orchestrator.engine'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"
