"""Several servers of one user, one cap for all of them, and tasks that come to each."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

import anyio

from tests.surfaces.mcp.mcp_stage import COMMAND, Raw, Stage

SERVERS = 3
CAP = 4
LONG = 3000


@dataclass
class Seen:
    """What came of it."""

    most_at_once: int
    """Runs that had begun and not ended, by the record, without those of the killed server: their
    containers are gone, and the record says so once another server has looked.
    """
    most_containers: int
    begun: list[tuple[float, float]]
    """When each run came into the line, and when it began, in the order they began."""
    statuses: dict[str, int]


async def trial(stage: Stage, tasks: int) -> Seen:
    """Give so many tasks to the servers by turns, kill one of them in the middle, and look."""
    stage.add_agent("worker", {"text": "done", "delay_seconds": 0.2})
    most = most_containers = 0
    at_work = "begun IS NOT NULL AND ended IS NULL"
    with anyio.fail_after(LONG):
        async with AsyncExitStack() as held:
            servers = [await held.enter_async_context(_server(stage)) for _ in range(SERVERS)]
            for server in servers:
                await server.initialize()
            for number in range(tasks):
                await _give(servers[number % SERVERS])
            (first,) = _select(stage, "SELECT owner FROM runs ORDER BY created LIMIT 1")[0]
            killed = False
            while open_ := _count(stage, "ended IS NULL"):
                most = max(most, _count(stage, at_work))
                assert stage.runtime is not None
                running = [i for i in await stage.runtime.list() if i.status == "running"]
                most_containers = max(most_containers, len(running))
                if not killed and open_ < tasks * 2 // 3:
                    servers[0].process.kill()
                    await servers[0].process.wait()
                    killed = True
                    at_work += f" AND owner != '{first}'"
                if killed:  # whoever lists the runs finds that some have lost their orchestrator
                    await servers[1].ask("tools/call", {"name": "get_all_tasks", "arguments": {}})
                await anyio.sleep(0.05)
            for server in servers[1:]:
                await server.stdin.aclose()
    begun = _select(
        stage,
        "SELECT coalesce(waits, begun), begun FROM runs WHERE begun IS NOT NULL ORDER BY begun",
    )
    ends = _select(stage, "SELECT status || ' ' || reason, count(*) FROM runs GROUP BY 1")
    return Seen(most, most_containers, begun, dict(ends))


@asynccontextmanager
async def _server(stage: Stage) -> AsyncIterator[Raw]:
    env = stage.env | {"ORCHESTRATOR_MAX_RUNS": str(CAP)}
    async with await anyio.open_process([COMMAND, "serve"], env=env, stderr=None) as process:
        yield Raw(process)
        await process.wait()


async def _give(server: Raw) -> None:
    arguments = {"agent_name": "worker", "prompt": "go", "background": True}
    answer = await server.ask("tools/call", {"name": "run_subagent", "arguments": arguments})
    assert not answer.get("isError"), answer


def _count(stage: Stage, where: str) -> int:
    return int(_select(stage, f"SELECT count(*) FROM runs WHERE {where}")[0][0])


def _select(stage: Stage, sql: str) -> list[Any]:
    with closing(sqlite3.connect(stage.state / "runs.sqlite")) as db:
        return db.execute(sql).fetchall()


def in_order(begun: Sequence[tuple[float, float]]) -> bool:
    """Each began in the order in which it came into the line."""
    came = [waits for waits, _ in begun]
    return came == sorted(came)
