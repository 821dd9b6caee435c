"""Servers of tools in their containers, and an orchestrator that is killed: what of a server can be
found elsewhere, and what is left of it.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.task import Task
from orchestrator.gateway.tools import front
from orchestrator.wire.warden import EXIT_WIRE_CLOSED
from tests.attacks.conftest import harnessed
from tests.attacks.mark import Group, attack
from tests.attacks.rig import PATIENCE, TOOLS
from tests.attacks.test_secrets import MEMORY
from tests.engine.harness import Harness, Steps, bash
from tests.engine.servers.stage import LAST, MISCHIEF, SERVER, mcp, pin, use, write_server
from tests.engine.test_secrets import new_key, search, shapes
from tests.surfaces.mcp.mcp_stage import COMMAND, Stage, on_stage

GROUP: Group = "servers of tools"

WAYS = [
    *("plain", "base64", "hex", "url", "structured", "resource", "error", "notices", "question"),
    "last words",
]


@pytest.fixture
async def harness(engine: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    async with harnessed(engine, image, tmp_path) as made:
        yield made


def holders(text: bytes) -> tuple[set[str], list[str]]:
    """Cgroups of all processes of this machine that have it in their environment, and command lines
    that it is in.
    """
    cgroups, lines = set(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text in (process / "environ").read_bytes():
                cgroups.add((process / "cgroup").read_text())
            if text in (process / "cmdline").read_bytes():
                lines.append(process.name)
        except OSError:  # it has ended
            continue
    return cgroups, lines


@attack(
    GROUP,
    "tell the server's secret in every way that a server has; look for it in the agent's container",
    "it is in the environment of the server's process, and nowhere else: not in the agent's files "
    "and memory, its model's requests, containers' settings, events, logs, the result, the store",
)
async def test_a_servers_secret_is_where_it_belongs_and_nowhere_else(
    harness: Harness,
    engine: DockerRuntime,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, canary = new_key(), new_key()
    heard: list[str | None] = []
    hear = front._Answering._heard

    def hears(self: Any, done: float, total: float | None, text: str | None) -> None:
        heard.append(text)
        hear(self, done, total, text)

    monkeypatch.setattr(front._Answering, "_heard", hears)
    caplog.set_level(logging.DEBUG)
    write_server(harness)
    harness.secrets["ORCHESTRATOR_SECRET_TOKEN"] = key
    looked: list[tuple[set[str], list[str]]] = []
    described: dict[str, object] = {}

    async def look() -> None:
        """While the server waits for an answer: who has it, and what the engine says of both
        containers.
        """
        while not (questions := await service.exchanges.questions("r1")):
            await anyio.sleep(0.02)
        for info in await engine.list():
            described[info.id] = await engine.engine.inspect(info.id)
        looked.append(holders(key.encode()))
        assert await service.exchanges.answer("r1", questions[0].message_id, "Ada")
        service.news.tell()

    wanted = json.dumps([text[::-1] for text in (canary, *shapes(key))])
    memory = f"cat > /tmp/m.py <<'END'\n{TOOLS}{MEMORY}\nEND\necho '{wanted}' | python3 /tmp/m.py"
    steps: Steps = [
        mcp("ask", what="Who?"),
        *(mcp("secret", how=how) for how in WAYS),
        bash(memory),
        bash(search(*shapes(key), canary)),
        LAST,
    ]
    with anyio.fail_after(PATIENCE):
        await pin(harness)
        service = harness.service(steps, ask="parent", mcp_servers=[use("*")])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            task = Task(agent="worker", prompt=f"Go, {canary}.", run_id="r1")
            result = await service.run(task, harness.events.append)
    assert result.status == "completed", result

    # It is where it belongs, and the searches find what there is.
    ((cgroups, lines),) = looked
    (server,) = [each for each in described if any(each in text for text in cgroups)]
    assert len(cgroups) == 1
    assert '"orchestrator.server": "it"' in json.dumps(described[server])
    assert lines == []
    results = [event.text for event in harness.events if event.kind == "tool_result"]
    found, read = json.loads(results[-2])
    assert set(found) == {"0", "refused"}, found  # the canary, which is in the prompt
    assert read > 1024 * 1024
    *places, code, _ = results[-1].splitlines()
    assert code in ("code 0", "code 2"), "124 is a search that was not finished"
    assert all(place.startswith("/home/") for place in places), places  # the conversation

    # And nowhere else.
    told = dict(zip(WAYS, results[1:], strict=False))
    # An answer that is none of MCP's is not shown; what it says as it exits may come too late.
    hidden = {way for way, text in told.items() if "[secret]" in text}
    assert hidden >= set(WAYS) - {"resource", "last words"}, told
    logged = "\n".join(f"{record.__dict__}\n{record.getMessage()}" for record in caplog.records)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = [repr(harness.events), result.model_dump_json(), json.dumps(described), logged]
    everything = b"\n".join([*map(str.encode, [*said, repr(heard)]), *harness.requests, *files])
    assert heard == ["[secret]"]
    assert canary.encode() in everything
    assert [shape for shape in shapes(key) if shape.encode() in everything] == []


@attack(
    GROUP,
    "keep in a server that a project shares what one project told it, for another project",
    "each project has an instance of its own; its runs share that one",
)
async def test_a_shared_server_is_one_projects(
    engine: DockerRuntime, image: str, tmp_path: Path
) -> None:
    heard: dict[str, list[str]] = {}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with (
        harnessed(engine, image, tmp_path / "one") as one,
        harnessed(engine, image, tmp_path / "other") as other,
    ):
        other.servers.pool = one.servers.pool  # as if one process had both projects
        with anyio.fail_after(PATIENCE):
            for harness in (one, other):
                write_server(harness, share="project")
                await pin(harness)
            for harness in (one, other, one):
                result = await harness.run([mcp("count"), LAST], mcp_servers=[use("count")])
                counted, where = str(result.result).split("\n")[1].split()
                heard.setdefault(where, []).append(counted)
            assert one.servers.pool.running == 2
            await one.servers.pool.aclose()
    assert sorted(heard.values()) == [["1"], ["1", "2"]]


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        home = stage.agents / "servers/it"
        home.mkdir(parents=True)
        (home / "server.py").write_text(MISCHIEF)
        (home / "server.yaml").write_text(json.dumps(SERVER | {"share": "project"}))
        stage.env["ORCHESTRATOR_SECRET_TOKEN"] = new_key()
        yield stage


@attack(
    GROUP,
    "outlive the orchestrator: it is killed in the middle of a call (kill -9)",
    "the server's wire ends with it, and its container is gone as the agent's is",
)
async def test_a_killed_orchestrator_leaves_no_server(stage: Stage) -> None:
    stage.add_agent("caller", mcp("slow", seconds=3600), LAST, mcp_servers=[use("*")])
    with anyio.fail_after(PATIENCE):
        await anyio.run_process([COMMAND, "servers", "pin", "it", "--yes"], env=stage.env)
        async with await anyio.open_process(
            [COMMAND, "run", "caller", "Go."], env=stage.env, start_new_session=True
        ) as process:
            await stage.has_containers(2)
            assert stage.runtime is not None
            watch = stage.runtime.events.watch
            fates = [watch(info.id) for info in await stage.runtime.list()]
            os.killpg(process.pid, signal.SIGKILL)
            await stage.has_containers(0)
            for fate in fates:
                await fate.gone.wait()
    # The end of the wire ended them, and not the end of their lease, a minute later.
    assert [fate.exit_code for fate in fates] == [EXIT_WIRE_CLOSED] * 2
