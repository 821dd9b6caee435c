"""`orchestrator runs` and `orchestrator logs` from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from orchestrator.containers.owner import Owner
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.settings import read_settings
from orchestrator.store.runs import Store
from orchestrator.surfaces.cli.main import main
from tests.surfaces.conftest import Project

TASK = Task(agent="echo", prompt="Say it\nagain", run_id="r1")
DONE = RunResult(run_id="r1", agent="echo", caller="main", status="completed", reason="ok")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(state: Path) -> Iterator[Owner]:
    """An orchestrator that lives."""
    with Owner(state) as owner:
        yield owner


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def event(seq: int, kind: EventKind, text: str) -> Event:
    return Event(run_id="r1", seq=seq, at=1000.0 + seq, kind=kind, text=text)


def test_a_run_can_be_looked_up_afterwards_anywhere_in_its_project(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.agent("echo", "steps:\n  - text: '{last_user_text}'\n")
    assert run("run", "echo", "hello", "--json") == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]

    assert run("runs") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        *("RUN", "AGENT", "CALLER", "STATUS", "AGE", "TOOK", "COST", "STEP", "TASK")
    ]
    assert row.split()[:4] == [run_id, "echo", "main", "completed"]
    assert row.split()[-2:] == ["script", "hello"]

    (project.path / "src/deep").mkdir(parents=True)
    monkeypatch.chdir(project.path / "src/deep")  # a folder of the project
    assert run("runs") == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(run_id)
    assert run("show", "last", "--json") == 0
    assert json.loads(capsys.readouterr().out)["run_id"] == run_id

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
    here = f"in {read_settings().project}; --all looks at every project"
    assert capsys.readouterr().out == f"nothing has run yet {here}\n"
    anyio.run(fill)
    assert run("runs", "--json", "--limit", "2") == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["run_id"] for each in said["runs"]] == ["r2", "r1"]


def test_logs_of_an_unknown_run_is_an_error(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("logs", "r0") == 5
    said = "error: there is no run 'r0'; `orchestrator runs` lists them\n"
    assert capsys.readouterr().err == said
    assert run("logs", "r0", "--json") == 5
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "run_not_found"


async def test_logs_follow_a_run_of_another_process_until_it_has_ended(
    state: Path, owner: Owner
) -> None:
    store = Store(state / "runs.sqlite", owner.id)
    await store.add_run(TASK)
    await store.set_status("r1", "running")
    await store.add_events([event(1, "queued", "echo for main")])
    code = "from orchestrator.surfaces.cli.main import main; main()"
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


async def test_a_followed_run_whose_orchestrator_dies_ends_as_lost(
    state: Path, owner: Owner
) -> None:
    store = Store(state / "runs.sqlite", owner.id)
    await store.add_run(TASK)
    await store.add_events([event(1, "text", "half an answer")])
    code = "from orchestrator.surfaces.cli.main import main; main()"
    command = [sys.executable, "-c", code, "logs", "r1", "-f"]
    with anyio.fail_after(60):
        async with await anyio.open_process(command, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            assert b"half an answer" in await lines.receive_until(b"\n", 200)
            owner.__exit__(None, None, None)  # the kernel would do the same
            assert b"the orchestrator that ran it has died" in await lines.receive_until(b"\n", 400)
            assert await process.wait() == 0
    record = await store.run("r1")
    store.close()
    assert record is not None
    assert record.result is not None
    assert (record.reason, record.result.partial_text) == ("orchestrator_lost", "half an answer")


def test_runs_and_show_tell_the_truth_about_a_run_whose_orchestrator_has_died(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        store = Store(state / "runs.sqlite", "dead")
        await store.add_run(TASK)
        store.close()

    for command in (("runs",), ("show", "r1")):
        (state / "runs.sqlite").unlink(missing_ok=True)
        anyio.run(fill)
        assert run(*command) == 0
        assert "orchestrator_lost" in capsys.readouterr().out


def test_runs_can_be_chosen_by_status_and_agent(
    state: Path, owner: Owner, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        store = Store(state / "runs.sqlite", owner.id)
        for run_id, agent in (("r1", "echo"), ("r2", "echo"), ("r3", "other")):
            await store.add_run(Task(agent=agent, prompt="p", run_id=run_id))
        await store.set_status("r1", "running")
        await store.finish(DONE)
        store.close()

    anyio.run(fill)
    for options, expected in (
        (("--agent", "echo"), ["r2", "r1"]),
        (("--status", "completed"), ["r1"]),
        (("--status", "open"), ["r3", "r2"]),
        (("--status", "pending", "--agent", "other"), ["r3"]),
        (("--status", "failed", "--status", "cancelled"), []),
    ):
        assert run("runs", "--json", *options) == 0
        said = json.loads(capsys.readouterr().out)["runs"]
        assert [each["run_id"] for each in said] == expected
    assert run("runs", "--status", "failed") == 0
    assert capsys.readouterr().out.startswith(f"no run is like that in {read_settings().project}; ")
    assert run("runs", "--status", "done") == 2
    assert "there is no status 'done'; there are pending, running" in capsys.readouterr().err
    assert run("runs", "--watch") == 2


def test_old_runs_are_pruned_and_those_under_way_stay(
    state: Path, owner: Owner, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        store = Store(state / "runs.sqlite", owner.id)
        for number in range(1, 5):
            task = TASK.model_copy(update={"run_id": f"r{number}"})
            await store.add_run(task)
            await store.set_status(task.run_id, "running")
            if number < 4:
                await store.finish(DONE.model_copy(update={"run_id": task.run_id}))
                await store.database.write(
                    "UPDATE runs SET ended = ? WHERE run_id = ?", number, task.run_id
                )
        store.close()

    anyio.run(fill)
    assert run("runs", "prune", "--keep", "2", "--dry-run", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["run_ids"], said["dry_run"]) == (["r1"], True)
    assert run("runs", "prune", "--keep", "2") == 0
    assert capsys.readouterr().err == "1 run removed, 0.0 MiB\n"
    assert run("runs", "prune", "--older-than", "soon") == 2
    assert run("runs", "prune", "--older-than", "30d", "--json") == 0
    assert json.loads(capsys.readouterr().out)["run_ids"] == ["r2", "r3"]
    assert run("runs", "--json") == 0
    assert [each["run_id"] for each in json.loads(capsys.readouterr().out)["runs"]] == ["r4"]
