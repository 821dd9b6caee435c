"""`orchestrator sessions` and `run --session` from outside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from mcp import Client

from orchestrator.store.session_rows import SessionKey, SessionRow
from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.sessions import sessions_table
from tests.surfaces.conftest import Project
from tests.surfaces.mcp.mcp_stage import (
    COMMAND,
    PATIENCE,
    Stage,
    call,
    on_stage,
    run_until_ready,
    text,
)

FIELDS = "permissions: {allow: [Bash]}\nsession: {expire_after: 7d}"

SCRIPT = """\
each_task: true
steps:
  - tool: Bash
    input: {command: "{last_user_text}"}
  - text: "{last_tool_result} | {user_texts}"
"""


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def keeper(project: Project, capsys: pytest.CaptureFixture[str]) -> Iterator[Project]:
    """A project with an agent that has sessions, which are removed at the end."""
    project.agent("keep", SCRIPT, FIELDS)
    yield project
    capsys.readouterr()
    assert run("sessions", "list", "--json") == 0
    for row in json.loads(capsys.readouterr().out)["sessions"]:
        key = [row["key"][part] for part in ("agent", "caller", "name")]
        assert run("sessions", "rm", "/".join(key)) == 0


def test_a_session_goes_on_from_one_command_to_the_next_until_it_is_removed(
    keeper: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sessions", "list") == 0
    assert (
        capsys.readouterr().out
        == f"no session has begun yet in {Path.cwd()}; --all looks at every project\n"
    )

    assert run("run", "keep", "echo blue > colour; echo done") == 0
    said = capsys.readouterr()
    assert said.out == "done | echo blue > colour; echo done\n"
    assert "; session default; " in said.err
    assert run("run", "keep", "cat colour") == 0
    assert capsys.readouterr().out == "blue | echo blue > colour; echo done; cat colour\n"

    assert run("sessions", "list") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["SESSION", "STATE", "CALLS", "LAST", "USED", "EXPIRES"]
    assert row.split()[:3] == ["keep/main/default", "stopped", "2"]
    assert row.endswith("in 7 d")

    assert run("sessions", "show", "keep") == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["session"], lines["state"]) == ("keep/main/default", "stopped")
    assert run("sessions", "show", "keep", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == list(SessionRow.model_fields)
    assert shown["conversation"] == lines["conversation"]

    assert run("sessions", "stop", "keep") == 0
    assert capsys.readouterr().out == "keep/main/default was not running\n"
    assert run("sessions", "rm", "keep") == 0
    assert capsys.readouterr().out == "keep/main/default is removed\n"
    assert run("sessions", "rm", "keep") == 5
    assert "there is no session 'keep/main/default'; known: " in capsys.readouterr().err

    assert run("run", "keep", "cat colour 2>&1 || true", "--json") == 0
    envelope = json.loads(capsys.readouterr().out)
    assert "No such file" in envelope["result"]
    assert "blue" not in envelope["result"]
    assert (envelope["session"], envelope["session_note"]) == ("default", "")


def test_a_session_can_be_named_or_new(keeper: Project, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for session in ("side", "new"):
        assert run("run", "keep", "echo x >> f; wc -l < f", "--session", session, "--json") == 0
        envelope = json.loads(capsys.readouterr().out)
        assert envelope["result"].startswith("1 | ")
        names.append(envelope["session"])
    assert names[0] == "side"
    assert names[1] not in ("new", "side", "default")
    assert run("run", "keep", "echo x >> f; wc -l < f", "--session", names[1]) == 0
    assert capsys.readouterr().out.startswith("2 | ")

    assert run("sessions", "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["sessions"]
    assert [(row["key"]["name"], row["runs"]) for row in rows] == [(names[1], 2), ("side", 1)]
    assert run("sessions", "rm", "keep/main/side", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"session": "keep/main/side", "removed": True}


def test_what_is_no_session_is_told_in_a_sentence(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.agent("keep", SCRIPT, FIELDS)
    project.agent("forgetful", SCRIPT)
    told = {
        ("run", "keep", "x", "--session", "../x"): "error: --session must be letters, ",
        ("run", "forgetful", "x", "--session", "a"): "error: agent 'forgetful' has no sessions; ",
        ("sessions", "show", "kep"): "error: there is no session 'kep/main/default'; known: none\n",
        ("sessions", "stop", "keep/you"): "error: there is no session 'keep/you/default'; known: ",
    }
    for argv, why in told.items():
        assert run(*argv) == 5, argv
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(why)
    monkeypatch.setenv("ORCHESTRATOR_CALLER", "planner")
    assert run("sessions", "show", "keep", "--json") == 5
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "session_refused"
    assert "'keep/planner/default'" in error["message"]


def test_the_table_says_how_long_ago_and_how_long_still() -> None:
    row = SessionRow(
        key=SessionKey(project="/p", agent="a", caller="main"),
        kept="k",
        state="resting",
        owner="o",
        conversation="c",
        runs=3,
        created=0,
        used=1000,
        expires=1000 + 7 * 86400,
    )
    other = row.model_copy(update={"state": "running", "used": 940.0, "expires": 5000.0})
    assert list(sessions_table([row, other], now=1000)) == [
        "SESSION         STATE    CALLS  LAST USED  EXPIRES",
        "a/main/default  resting  3      0 s ago    in 7 d",
        "a/main/default  running  3      1 min ago  in 1 h",
    ]


# While another process has it


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


async def cli(stage: Stage, *argv: str) -> tuple[int, str]:
    """Exit code and output of a command in a process of its own."""
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(
            (COMMAND, *argv), env=stage.env, check=False, stderr=subprocess.STDOUT
        )
    return done.returncode, done.stdout.decode()


async def test_a_server_lets_go_of_an_idle_session_that_somebody_wants(stage: Stage) -> None:
    stage.add_agent("keep", {"text": "{user_texts}", "repeat": True}, session=True)
    async with Client(stage.server()) as client:
        first = await call(client, "run_subagent", agent_name="keep", prompt="one")
        assert text(first).startswith("one\n")
        assert (await cli(stage, "sessions", "list"))[1].split()[6:9] == [
            *("keep/main/default", "ready", "1")
        ]

        assert await cli(stage, "sessions", "stop", "keep") == (0, "keep/main/default is stopped\n")
        second = await call(client, "run_subagent", agent_name="keep", prompt="two")
        assert text(second).startswith("one; two\n")

        code, said = await cli(stage, "run", "keep", "three", "--json")
        assert code == 0
        assert '"result": "one; two; three"' in said
        third = await call(client, "run_subagent", agent_name="keep", prompt="four")
        assert text(third).startswith("one; two; three; four\n")

        assert await cli(stage, "sessions", "rm", "keep") == (0, "keep/main/default is removed\n")
        assert await stage.containers() == []
        last = await call(client, "run_subagent", agent_name="keep", prompt="five")
        assert text(last).startswith("five\n")
    assert await cli(stage, "sessions", "rm", "keep") == (0, "keep/main/default is removed\n")


async def test_a_call_that_is_under_way_ends_before_its_session_is_stopped(stage: Stage) -> None:
    slow = {"text": "{user_texts}", "delay_seconds": 1, "repeat": True}
    stage.add_agent("keep", slow, session=True)
    said: list[tuple[int, str]] = []
    ready = anyio.Event()
    async with Client(stage.server()) as client:

        async def stop() -> None:
            await ready.wait()
            said.append(await cli(stage, "sessions", "stop", "keep"))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                await run_until_ready(client, "keep", ready)
        assert said == [(0, "keep/main/default is stopped\n")]
        assert stage.runs() == [("keep", "completed", "ok")]
        again = await call(client, "run_subagent", agent_name="keep", prompt="more")
        assert text(again).startswith("go; more\n")
    assert await cli(stage, "sessions", "rm", "keep") == (0, "keep/main/default is removed\n")
