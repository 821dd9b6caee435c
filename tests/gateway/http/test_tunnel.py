"""Bytes both ways, until there are no more."""

from __future__ import annotations

import anyio
import pytest

from orchestrator.gateway.http import tunnel
from orchestrator.gateway.http.tunnel import splice
from tests.gateway.near import PATIENCE, joined

pytestmark = pytest.mark.anyio


async def test_a_tunnel_carries_both_ways_and_ends_each_way_on_its_own() -> None:
    near, host = joined()
    far, upstream = joined()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(splice, host, upstream, b"early ")
            await near.write(b"bird")
            arrived = b""
            while len(arrived) < len(b"early bird"):
                arrived += await far.read()
            assert arrived == b"early bird"
            near.end()
            assert await far.read() == b""
            await far.write(b"still here")
            assert await near.read() == b"still here"
            far.end()
            assert await near.read() == b""


async def test_a_tunnel_that_breaks_on_one_side_is_broken_on_the_other() -> None:
    near, host = joined()
    far, upstream = joined()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(splice, host, upstream)
            await near.write(b"x")
            assert await far.read() == b"x"
            far.reset()
            with pytest.raises(ConnectionResetError):
                await near.read()


async def test_a_tunnel_in_which_nothing_moves_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel, "IDLE_SECONDS", 0.05)
    near, host = joined()
    far, upstream = joined()
    with anyio.fail_after(PATIENCE):
        await splice(host, upstream)
        for end in (near, far):
            with pytest.raises(ConnectionResetError):
                await end.read()
