"""Runs as MCP resources, in both eras."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp.types as t
import pytest
from mcp import Client, MCPError
from mcp.shared.exceptions import MCPDeprecationWarning

from tests.surfaces.mcp.mcp_stage import ERAS, PATIENCE
from tests.surfaces.task_stage import ASKS, Serve

pytestmark = pytest.mark.anyio

era = pytest.mark.parametrize("era", ERAS)


# Resources


@era
async def test_runs_are_resources_that_tell_when_they_change(serve: Serve, era: str) -> None:
    send, receive = anyio.create_memory_object_stream[str](100)

    async def handler(message: object) -> None:
        if isinstance(message, t.ResourceUpdatedNotification):
            send.send_nowait(str(message.params.uri))

    with send, receive:
        async with serve(era, message_handler=handler) as server:
            agent = server.agent("asks", *ASKS, ask="parent")
            run = await server.call("run_subagent", agent_name=agent, prompt="paint it")
            uri = f"orchestrator://runs/{run['run_id']}"
            listed = (await server.client.list_resources()).resources
            assert [str(resource.uri) for resource in listed] == [uri, f"{uri}/logs"]
            assert listed[0].title == f"{agent}, waiting_parent_reply: paint it"
            now = await _read(server.client, uri)
            assert json.loads(now)["status"] == "waiting_parent_reply"
            log = (await _read(server.client, f"{uri}/logs")).splitlines()
            assert json.loads(log[0])["kind"] == "queued"

            async with (
                anyio.create_task_group() as group,
                _updates(server.client, era, uri, receive) as changed,
            ):
                group.start_soon(server.watch)
                message_id = run["questions"][0]["message_id"]
                answer = {"message_id": message_id, "answer": "blue"}
                await server.call("reply_subagent", run_id=run["run_id"], **answer)
                with anyio.fail_after(PATIENCE):
                    assert await changed() == uri
                    while json.loads(await _read(server.client, uri))["status"] != "completed":
                        await changed()
                group.cancel_scope.cancel()
            with pytest.raises(MCPError, match="there is no run 'r0'"):
                await server.client.read_resource("orchestrator://runs/r0")


@asynccontextmanager
async def _updates(
    client: Client, era: str, uri: str, receive: Any
) -> AsyncIterator[Callable[[], Any]]:
    if era == "legacy":
        with pytest.warns(MCPDeprecationWarning):
            await client.subscribe_resource(uri)
        yield receive.receive
        return
    async with client.listen(resource_subscriptions=[uri]) as subscription:

        async def next_one() -> str:
            event = await subscription.__aiter__().__anext__()
            return str(getattr(event, "uri", event))

        yield next_one


async def _read(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, t.TextResourceContents)
    return content.text
