"""`orchestrator runs` and `orchestrator logs` from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.store import RunRecord, Store
from orchestrator.surfaces.cli import main
from orchestrator.surfaces.cli_runs import HEADINGS, runs_table
from tests.surfaces.conftest import Project

TASK = Task(agent="echo", prompt="Say it\nagain", run_id="r1")
DONE = RunResult(run_id="r1", agent="echo", caller="main", status="completed", reason="ok")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path))
    return tmp_path


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def event(seq: int, kind: EventKind, text: str) -> Event:
    return Event(run_id="r1", seq=seq, at=1000.0 + seq, kind=kind, text=text)


def test_a_run_can_be_looked_up_afterwards(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("echo", "steps:\n  - text: '{last_user_text}'\n")
    assert run("run", "echo", "hello", "--json") == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]

    assert run("runs") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == list(HEADINGS)
    assert row.split()[:5] == [run_id, "echo", "main", "completed", "ok"]
    assert row.split()[-1] == "hello"

    assert run("logs", run_id) == 0
    lines = capsys.readouterr().out.splitlines()
    labels = [line.split()[2] for line in lines]
    assert [label for label in labels if label != "model"] == [
        *("queued", "starting", "started", "ready", "says", "ended")
    ]
    assert run("logs", run_id, "-f", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["run", "events"]
    assert said["run"]["result"]["result"] == "hello"
    assert [each["seq"] for each in said["events"]] == list(range(1, len(lines) + 1))


def test_runs_as_json_is_exactly_one_object_and_the_limit_holds(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        store = Store(state / "runs.sqlite")
        for number in range(3):
            await store.add_run(TASK.model_copy(update={"run_id": f"r{number}"}))
        store.close()

    assert run("runs") == 0
    assert capsys.readouterr().out == "nothing has run yet\n"
    anyio.run(fill)
    assert run("runs", "--json", "--limit", "2") == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["run_id"] for each in said["runs"]] == ["r2", "r1"]


def test_the_table_gives_the_prompt_the_room_that_is_left() -> None:
    began = datetime(2026, 11, 16, 4, 0, tzinfo=UTC).timestamp()
    under_way = RunRecord(
        run_id="r2",
        agent="a",
        caller="main",
        status="running",
        reason="",
        prompt="short",
        created=began,
        ended=None,
        result=None,
    )
    over = under_way.model_copy(
        update={
            "run_id": "r1",
            "status": "failed",
            "reason": "budget",
            "ended": began + 2,
            "result": DONE.model_copy(update={"cost_usd": 0.5}),
            "prompt": "Say it\nagain and \x1bagain",
        }
    )
    when = datetime.fromtimestamp(began, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    assert list(runs_table([under_way, over], now=began + 60, width=80)) == [
        f"RUN  AGENT  CALLER  STATUS   REASON  {'WHEN':<16}  TIME    COST     PROMPT",
        f"r2   a      main    running          {when}  60.0 s           short",
        f"r1   a      main    failed   budget  {when}  2.0 s   $0.5000  Say it again and �a…",
    ]


def test_logs_of_an_unknown_run_is_an_error(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("logs", "r0") == 5
    said = "error: there is no run 'r0'; `orchestrator runs` lists them\n"
    assert capsys.readouterr().err == said
    assert run("logs", "r0", "--json") == 5
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "run_not_found"


async def test_logs_follow_a_run_of_another_process_until_it_has_ended(state: Path) -> None:
    store = Store(state / "runs.sqlite")
    await store.add_run(TASK)
    await store.add_events([event(1, "queued", "echo for main")])
    code = "from orchestrator.surfaces.cli import main; main()"
    command = [sys.executable, "-c", code, "logs", "r1", "-f"]
    with anyio.fail_after(60):
        async with await anyio.open_process(command, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            assert await lines.receive_until(b"\n", 200) == b"   0.0 s  queued      echo for main"
            await store.add_events([event(2, "text", "again")])
            assert await lines.receive_until(b"\n", 200) == b"   1.0 s  says        again"
            await store.add_events([event(3, "ended", "completed")])
            await store.finish(DONE)
            assert await lines.receive_until(b"\n", 200) == b"   2.0 s  ended       completed"
            assert await process.wait() == 0
    store.close()
