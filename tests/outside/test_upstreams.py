"""Whose instance of a server a call from outside goes to, and how many there may be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.catalog import load_catalog
from orchestrator.catalog.folder import KnownServer
from orchestrator.domain.tool_server import ToolServer
from orchestrator.engine.outside import upstreams
from orchestrator.engine.outside.outside_service import OutsideConnection, UpstreamCall
from orchestrator.engine.outside.upstreams import MAX_PROGRESS, BrokeredUpstreams
from orchestrator.errors import GatewayRefused, ServerFailed
from orchestrator.gateway.tools.pool import CallFailed, Drift, Loss, ServerPool, Sharers
from orchestrator.outside_access import OutsideCaller
from tests.outside.outside_stage import OutsideStage, tool


class Instance:
    """A LiveServer without a server: it counts its calls."""

    def __init__(self, server: ToolServer) -> None:
        self.name = server.name
        self.loss = Loss()
        self.drift = Drift()
        self.secrets = lambda: ("s3cret-of-the-server",)
        self.calls = 0

    async def compare(self, _: object) -> None:
        if self.name == "drifts":
            self.drift = Drift(frozenset(("get",)))

    async def call(self, name: str, arguments: dict[str, Any], on_progress: Any) -> Any:
        self.calls += 1
        for number in range(arguments.get("steps", 0)):
            await on_progress(number, None, "more")
        if "step" in arguments:
            await on_progress(1, 2, arguments["step"])
            await on_progress(2, None, None)
        if "fail" in arguments:
            raise CallFailed("no such table")
        if "wait" in arguments:
            await anyio.sleep_forever()
        said = f"{self.calls} s3cret-of-the-server"
        return {"content": [{"type": "text", "text": said}], "isError": False}


class Stand:
    """Upstreams, and what was started for them."""

    def __init__(self, folder: Path) -> None:
        stage = OutsideStage(folder)
        for name in ("plain", "other", "drifts", "broken"):
            stage.add_server(name, tool("get"))
        stage.add_server("shared", tool("get"), share="project")
        stage.add_server("hasty", tool("get"), timeout="0.05s")
        self.known = load_catalog(stage.agents).servers
        self.started: list[str] = []
        self.ended: list[str] = []
        self.heard: list[str | None] = []
        self.pool = ServerPool(self._open)  # type: ignore[arg-type]  # stand-ins for its servers
        self.upstreams = BrokeredUpstreams(self.pool, "/p")

    @asynccontextmanager
    async def _open(self, wanted: Any, _: object) -> AsyncIterator[Instance]:
        if wanted.server.name == "broken":
            raise ServerFailed("the server broken could not be started: it has no licence")
        self.started.append(wanted.scope.key)
        yield Instance(wanted.server)
        self.ended.append(wanted.scope.key)

    async def call(
        self, server: str, session: str = "a", agent: str = "dev", **arguments: Any
    ) -> str:
        """What is answered, or the code of what is not."""
        seconds = arguments.pop("seconds", None)
        known: KnownServer = self.known[server]
        connection = OutsideConnection(caller=OutsideCaller(), session=session, lasting=True)
        try:
            answer: Any = await self.upstreams.call(
                UpstreamCall(known, "get", arguments, connection, agent, seconds, self._hear)
            )
        except GatewayRefused as exc:
            return exc.code
        return str(answer["content"][0]["text"])

    async def _hear(self, progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        self.heard.append(message)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    await stand.pool.aclose()
    assert sorted(stand.started) == sorted(stand.ended)


async def test_an_instance_is_one_agents_of_one_session_unless_it_is_shared(stand: Stand) -> None:
    async def count(*whose: str) -> int:
        said = await stand.call(*whose)
        assert "s3cret" not in said
        return int(said.split()[0])

    assert [await count("plain", "a", "dev") for _ in range(2)] == [1, 2]
    assert [await count("plain", "a", "ops"), await count("plain", "b", "dev")] == [1, 1]
    assert [await count("shared", s, a) for s in "ab" for a in ("dev", "ops")] == [1, 2, 3, 4]
    await stand.upstreams.end("a")
    assert sorted(stand.ended) == ["outside a dev", "outside a ops"]
    assert [await count("plain", "a", "dev"), await count("plain", "b", "dev")] == [1, 2]
    assert await count("shared", "c", "dev") == 5
    await stand.upstreams.end("never seen")


async def test_whatever_goes_wrong_has_a_code_of_the_protocol(stand: Stand) -> None:
    assert await stand.call("broken") == "SERVER_UNAVAILABLE"
    assert await stand.call("drifts") == "TOOL_CHANGED"
    assert await stand.call("plain", wait=1, seconds=0.05) == "TIMEOUT"
    assert await stand.call("hasty", wait=1) == "TIMEOUT"
    assert await stand.call("plain", fail=1) == "the server answered with an error: no such table"


async def test_sessions_cannot_start_more_servers_than_there_is_room_for(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "MAX_OUTSIDE_INSTANCES", 2)
    assert [await stand.call("plain", each) != "SERVER_UNAVAILABLE" for each in "abc"] == [
        *(True, True),
        False,
    ]
    assert await stand.call("other", "a") == "SERVER_UNAVAILABLE"
    assert (await stand.call("plain", "a")).startswith("2 ")
    await stand.upstreams.end("b")
    assert (await stand.call("plain", "c")).startswith("1 ")
    await stand.pool.end(Sharers("run", "outside a dev"))  # as one that ended by itself
    assert (await stand.call("plain", "b")).startswith("1 ")
    assert await stand.call("plain", "a") == "SERVER_UNAVAILABLE"  # though it had one before


async def test_progress_is_told_in_one_short_line_without_secrets(stand: Stand) -> None:
    await stand.call("plain", step="s3cret-of-the-server\n\x1b[2J" + "x" * 9999)
    told, nothing = stand.heard
    assert told == "[secret]  [2J" + "x" * 487
    assert nothing is None


async def test_a_server_cannot_flood_a_client_with_progress(stand: Stand) -> None:
    await stand.call("plain", steps=MAX_PROGRESS + 50)
    assert len(stand.heard) == MAX_PROGRESS
    await stand.call("plain", steps=1)  # each call anew
    assert len(stand.heard) == MAX_PROGRESS + 1
