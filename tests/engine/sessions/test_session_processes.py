"""Sessions and several orchestrator processes: killed, waiting for each other, taking over."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from orchestrator.app import open_orchestrator, open_runtime
from orchestrator.domain.container import WORKSPACE
from orchestrator.domain.result import RunResult
from orchestrator.engine.service import Service
from orchestrator.engine.sessions import sessions
from orchestrator.errors import NameTaken
from orchestrator.store.session_rows import SessionKey
from tests.engine.staged import engine_of
from tests.surfaces.mcp.mcp_stage import Stage

PATIENCE = 170
LINE_BYTES = 4 * 1024 * 1024

STEPS = [
    {"tool": "Bash", "input": {"command": "{last_user_text}", "timeout": 600_000}},
    {"text": "{last_tool_result} | {user_texts}"},
]
"""The agent does what it is told, and says what it was told so far."""


def key_of(service: Service) -> SessionKey:
    return SessionKey(project=service.project, agent="worker", caller="main")


FOR_EVER = "python3 -c 'import time; time.sleep(3600)'"


class Caller:
    """An orchestrator process, spoken to through its pipes."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)

    async def ask(self, prompt: str, session: str = "") -> None:
        """Begin a call."""
        line = json.dumps({"prompt": prompt, "session": session})
        await self._stdin.send(line.encode() + b"\n")

    async def told(self, prompt: str, session: str = "") -> RunResult:
        """A call, to its end."""
        await self.ask(prompt, session)
        return await self.result()

    async def result(self) -> RunResult:
        with anyio.fail_after(PATIENCE):
            while "result" not in (line := await self._line()):
                assert "error" not in line, line
            result = RunResult.model_validate(line["result"])
            assert result.status == "completed", result
            return result

    async def until(self, event: str) -> None:
        with anyio.fail_after(PATIENCE):
            while (await self._line()).get("event") != event:
                pass

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def _line(self) -> dict[str, Any]:
        line = json.loads(await self._stdout.receive_until(b"\n", LINE_BYTES))
        assert isinstance(line, dict)
        return line


@asynccontextmanager
async def caller(stage: Stage) -> AsyncIterator[Caller]:
    """It ends with the block, by itself unless it was killed."""
    argv = [sys.executable, "-m", "tests.engine.sessions.session_caller"]
    root = Path(__file__).parents[3]
    async with await anyio.open_process(argv, env=stage.env, cwd=root, stderr=None) as process:
        opened = Caller(process)
        await opened.until("open")
        yield opened
        if process.returncode is None:
            await opened._stdin.aclose()
            with anyio.fail_after(PATIENCE):
                assert await process.wait() == 0


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    """Sessions are removed at the end; nothing else may be there by then."""
    stage = Stage(tmp_path, image)
    permissions = {"allow": ["Bash"]}
    stage.add_agent("worker", *STEPS, session=True, permissions=permissions)
    script = {"steps": STEPS, "each_task": True}
    (stage.agents / "worker" / "script.yaml").write_text(json.dumps(script))
    yield stage
    async with open_orchestrator(stage.settings, stage.env) as service:
        runtime = await engine_of(service)
        running = [info.name for info in await runtime.list() if info.status == "running"]
        for row in await service.sessions.list():
            await service.sessions.remove(row.key)
        assert running == []
        assert await runtime.list() == ()
    assert stage.processes() == []


async def test_a_session_survives_the_orchestrator_killed_between_two_calls_and_in_one(
    stage: Stage,
) -> None:
    async with caller(stage) as first:
        one = await first.told("echo blue > colour; echo done")
        two = await first.told("cat colour")
        assert two.result == "blue | echo blue > colour; echo done; cat colour"
        await first.kill()
    async with caller(stage) as second:
        three = await second.told("cat colour")
        assert three.result == "blue | echo blue > colour; echo done; cat colour; cat colour"
        assert (three.session_id, three.session_note) == (one.session_id, "")
        await second.ask(f"echo begun > half; {FOR_EVER}")
        await until_inside(stage, "test -s half")
        await second.kill()
    async with caller(stage) as third:
        four = await third.told(
            "grep -las '[t]ime.sleep' /proc/[0-9]*/cmdline | wc -l; cat colour half"
        )
    assert str(four.result).startswith("0\nblue\nbegun | echo blue > colour")
    assert (four.session_id, four.session_note) == (one.session_id, "")


async def test_another_process_gets_a_session_when_it_is_idle_and_at_once_from_a_dead_one(
    stage: Stage,
) -> None:
    async with caller(stage) as first, caller(stage) as second:
        await first.told("echo 1 >> log; echo done")
        await first.ask("until test -e go; do sleep 0.05; done; echo 2 >> log; cat log")
        await first.until("tool_call")
        await second.ask("echo 3 >> log; tr '\\n' ' ' < log")
        await wanted(stage)  # it asks, and the first one goes on
        assert state_of(stage) == "running"
        await until_inside(stage, "touch go")
        assert str((await first.result()).result).startswith("1\n2 | ")
        last = await second.result()
        assert str(last.result).startswith("1 2 3")
        assert "echo 1 >> log" in str(last.result)
        assert str((await first.told("tr '\\n' ' ' < log")).result).startswith("1 2 3")  # and back

        await first.ask(FOR_EVER)
        await first.until("tool_call")
        await second.ask("echo 4 >> log; tr '\\n' ' ' < log")
        await wanted(stage)
        await first.kill()
        assert str((await second.result()).result).startswith("1 2 3 4 | ")


async def test_a_session_in_use_elsewhere_is_refused_after_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "TAKE_SECONDS", 0.5)
    async with caller(stage) as first:
        await first.ask("until test -e go; do sleep 0.05; done; echo done")
        await first.until("tool_call")
        async with open_orchestrator(stage.settings, stage.env) as service:
            with anyio.fail_after(PATIENCE), pytest.raises(NameTaken, match="try again later"):
                await service.sessions.let_go(key_of(service))
        await until_inside(stage, "touch go")
        await first.result()


async def test_sessions_of_several_processes_run_side_by_side(stage: Stage) -> None:
    results: dict[str, str] = {}

    async def talk(each: Caller, name: str) -> None:
        await each.told(f"echo {name} > mine; echo done", name)
        results[name] = str((await each.told("cat mine", name)).result)

    async with caller(stage) as first, caller(stage) as second, anyio.create_task_group() as tasks:
        tasks.start_soon(talk, first, "a")
        tasks.start_soon(talk, second, "b")
    assert results == {name: f"{name} | echo {name} > mine; echo done; cat mine" for name in "ab"}


async def test_an_expired_session_is_removed_by_whoever_sweeps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with caller(stage) as first:
        await first.told("echo blue > colour; echo done")
    assert state_of(stage) == "stopped"
    with database(stage) as db:
        db.execute("UPDATE sessions SET expires = 1")
    monkeypatch.setattr(sessions, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(sessions, "IDLE_LOOK_SECONDS", 0.05)
    async with open_orchestrator(stage.settings, stage.env) as service:
        with anyio.fail_after(PATIENCE):
            while await service.sessions.list():
                await anyio.sleep(0.05)
        runtime = await engine_of(service)
        assert await runtime.list() == ()
        volumes = await runtime.engine.call(runtime.engine.api.volumes)
        name = runtime._kept_name(key_of(service).kept)
        assert not [v for v in volumes["Volumes"] or () if v["Name"].startswith(name)]


def database(stage: Stage) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(stage.state / "runs.sqlite", isolation_level=None))


def state_of(stage: Stage) -> str:
    with database(stage) as db:
        (row,) = db.execute("SELECT state FROM sessions").fetchall()
    return str(row[0])


async def wanted(stage: Stage) -> None:
    """Wait until somebody has asked for the session."""
    with anyio.fail_after(PATIENCE):
        while True:
            with database(stage) as db:
                if db.execute("SELECT 1 FROM sessions WHERE wanted = 1").fetchall():
                    return
            await anyio.sleep(0.05)


async def until_inside(stage: Stage, command: str) -> None:
    """Do something in the only container, as the agent does, until it succeeds."""
    async with open_runtime(stage.settings, reap=False) as runtime:
        (info,) = await runtime.list()
        # The container has no PATH: what the image says of it is emptied.
        engine, argv = runtime.engine, ["/bin/sh", "-c", f"PATH=/usr/bin:/bin; {command}"]
        with anyio.fail_after(PATIENCE):
            while True:
                made = await engine.call(
                    engine.api.exec_create, info.id, argv, user="1000:1000", workdir=WORKSPACE
                )
                await engine.call(engine.api.exec_start, made["Id"])
                seen = await engine.call(engine.api.exec_inspect, made["Id"])
                if seen["ExitCode"] == 0:
                    return
