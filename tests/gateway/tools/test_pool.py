"""Instances of servers: one start however many call, ended with their users, shared as said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from orchestrator.domain.tool_lock import Brokered, ToolLock
from orchestrator.domain.tool_server import ToolServer
from orchestrator.errors import ServerFailed
from orchestrator.gateway.rpc import RpcObject
from orchestrator.gateway.tools import pool as pool_module
from orchestrator.gateway.tools.access import ToolAccess
from orchestrator.gateway.tools.pool import (
    MAX_STARTS,
    Drift,
    Loss,
    OnChanged,
    ServerPool,
    Sharers,
    WantedServer,
)
from tests.gateway.tools.near_servers import PATIENCE, Rig, near_server, use_of


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    with anyio.fail_after(PATIENCE):
        yield made
        await made.aclose()


async def access_to(rig: Rig, server: ToolServer, run: str = "r1", kind: str = "run") -> ToolAccess:
    lock = await rig.lock(server)
    access = ToolAccess((Brokered(use=use_of("*"), server=server, lock=lock),))
    access.bind(rig.run_tools(run, kind=kind))
    return access


def said(result: RpcObject) -> str:
    content = result["content"]
    assert isinstance(content, list)
    return "\n".join(block["text"] for block in content)


async def call(access: ToolAccess, tool: str, **arguments: object) -> str:
    given = {key: value for key, value in arguments.items() if isinstance(value, (int, str, list))}
    return said(await access.call("it", tool, given, direct=False))


async def test_a_server_starts_once_however_many_call_it_at_once(rig: Rig) -> None:
    access = await access_to(rig, near_server())
    counts: list[str] = []

    async def count() -> None:
        counts.append((await call(access, "count")).split("\n")[1].split()[0])

    async with anyio.create_task_group() as tasks:
        for _ in range(12):
            tasks.start_soon(count)
    assert rig.started == ["it"]
    assert sorted(map(int, counts)) == list(range(1, 13))  # one process has heard them all


async def test_what_is_a_runs_own_ends_with_it_and_what_is_shared_when_it_is_idle(rig: Rig) -> None:
    server = near_server(idle_seconds=0.1)
    mine, theirs = await access_to(rig, server), await access_to(rig, server, "r2")
    for access in (mine, theirs):
        assert "\n1 " in await call(access, "count")
    assert (rig.started, rig.pool.running) == (["it", "it"], 2)
    await rig.pool.end(Sharers("run", "r1"))
    assert rig.pool.running == 1
    assert "\n2 " in await call(theirs, "count")
    await rig.pool.end(Sharers("run", "r2"))

    shared = [await access_to(rig, server, run, kind="project") for run in ("r3", "r4")]
    rig.started.clear()
    lock = shared[0].servers["it"].lock
    async with rig.pool.lease(WantedServer(server, lock, Sharers("project", "all"))):  # not idle
        counts = [await call(access, "count") for access in shared]
    assert [count.split("\n")[1].split()[0] for count in counts] == ["1", "2"]
    assert rig.started == ["it"]
    while rig.pool.running:
        await anyio.sleep(0.01)


async def test_a_server_of_another_file_or_lock_is_another_instance(rig: Rig) -> None:
    one, other = near_server(), near_server(description="changed")
    accesses = [await access_to(rig, server, kind="project") for server in (one, other)]
    rig.started.clear()
    for access in accesses:
        await call(access, "count")
    assert rig.started == ["it", "it"]


@pytest.mark.parametrize(
    ("mode", "fields", "why"),
    [
        ("exits", {}, "does not speak MCP"),
        ("silent", {"start_seconds": 0.3}, "it did not answer within 0.3 s"),
    ],
)
async def test_a_server_that_does_not_start_is_told_and_tried_again(
    rig: Rig, mode: str, fields: dict[str, Any], why: str
) -> None:
    access = await access_to(rig, near_server(mode, **fields))
    for _ in range(2):
        assert why in await call(access, "echo", text="x")
    assert rig.started == ["it", "it"]
    wanted = WantedServer(near_server(mode, **fields), None, Sharers("run", "x"))
    with pytest.raises(ServerFailed, match=why):
        async with rig.pool.lease(wanted):
            pass
    assert rig.pool.running == 0


async def test_a_server_that_dies_is_started_again_a_few_times_and_then_no_more(rig: Rig) -> None:
    access = await access_to(rig, near_server())
    for _ in range(MAX_STARTS):
        assert "it has exited" in await call(access, "die")
    assert rig.started == ["it"] * MAX_STARTS
    assert "is not started again" in await call(access, "echo", text="x")
    assert rig.started == ["it"] * MAX_STARTS


async def test_a_call_that_is_not_answered_is_given_up_and_the_server_goes_on(rig: Rig) -> None:
    access = await access_to(rig, near_server(call_seconds=0.3))
    late = "did not answer within 0.3 s"
    assert late in await call(access, "hang")
    while late in (text := await call(access, "echo", text="x")):
        pass  # a machine that is busy
    assert '"text": "x"' in text
    assert rig.started == ["it"]


async def test_a_run_that_ends_gives_up_its_calls(rig: Rig) -> None:
    access = await access_to(rig, near_server())
    results: list[str] = []

    async def wait() -> None:
        results.append(await call(access, "slow", seconds=600))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not rig.audit:
            await anyio.sleep(0.01)
        access.revoke()
    assert results == ["the call was given up"]
    assert "no run is there" in await call(access, "echo", text="x")


class Listing:
    """A stand-in for a server whose list changes while it is looked at."""

    def __init__(self) -> None:
        self.loss, self.drift, self.compares = Loss(), Drift(), 0
        self.looking, self.go = anyio.Event(), anyio.Event()
        self.fails = False

    async def compare(self, _: ToolLock) -> None:
        self.compares += 1
        if self.fails:
            raise ServerFailed("the server it does not list its tools")
        if self.compares > 1:
            self.looking.set()
            await self.go.wait()


@asynccontextmanager
async def listing(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[ServerPool, Listing, OnChanged, list[int]]]:
    """A pool with one server in use, how it tells that its list changed, and how often that was
    passed on.
    """
    monkeypatch.setattr(pool_module, "RELIST_SECONDS", 0.0)
    server, told, changed = Listing(), list[int](), list[OnChanged]()

    @asynccontextmanager
    async def opened(_: WantedServer, on_changed: OnChanged) -> AsyncIterator[Any]:
        changed.append(on_changed)
        yield server

    pool = ServerPool(opened)
    lock = ToolLock(server="s 1", protocol="2025-11-25")
    wanted = WantedServer(near_server(), lock, Sharers("run", "r1"))
    with anyio.fail_after(PATIENCE):
        async with pool.lease(wanted, lambda _: told.append(server.compares)):
            yield pool, server, changed[0], told
        await pool.aclose()


async def test_a_list_that_changes_while_it_is_looked_at_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listing(monkeypatch) as (_, server, changed, told), anyio.create_task_group() as now:
        now.start_soon(changed)
        await server.looking.wait()
        await changed()
        server.go.set()
    assert (server.compares, told) == (3, [1, 2, 3])


async def test_a_server_that_does_not_tell_how_its_list_changed_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listing(monkeypatch) as (pool, server, changed, _):
        server.fails = True
        await changed()
        assert server.loss.why == "it does not tell how its tools have changed"
        while pool.running:
            await anyio.sleep(0.01)


async def test_the_end_waits_for_those_too_whose_place_another_has_taken() -> None:
    ended: list[str] = []
    may_end = anyio.Event()

    @asynccontextmanager
    async def opened(_: object, __: object) -> AsyncIterator[Any]:
        server = Listing()
        servers.append(server)
        yield server
        if server is servers[0]:
            await may_end.wait()
        ended.append("the first" if server is servers[0] else "the other one")

    async def end() -> None:
        await pool.end(scope)
        ended.append("all")

    servers: list[Listing] = []
    pool, scope = ServerPool(opened), Sharers("run", "r1")
    wanted = WantedServer(near_server(), None, scope)
    with anyio.fail_after(PATIENCE):
        async with pool.lease(wanted):
            servers[0].loss.tell("it has exited")
        async with pool.lease(wanted), anyio.create_task_group() as tasks:
            tasks.start_soon(end)
            await anyio.wait_all_tasks_blocked()
            assert ended == ["the other one"]
            may_end.set()
    assert ended == ["the other one", "the first", "all"]


async def test_a_server_that_fails_now_and_then_is_started_again_after_a_while(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = await access_to(rig, near_server())
    monkeypatch.setattr(pool_module, "STARTS_SECONDS", 0.0)
    for _ in range(MAX_STARTS + 1):
        assert "it has exited" in await call(access, "die")
