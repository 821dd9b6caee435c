"""The broker as a client inside sees it, in both eras of the protocol, by the SDK's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import anyio
import httpx
import mcp_types as t
import pytest
from mcp import MCPError

from orchestrator.gateway.tools import front
from tests.gateway.tools.near_servers import (
    PATIENCE,
    TOKEN,
    Rig,
    client_of,
    near_server,
    served,
    text_of,
    use_of,
)

ERAS = ("auto", "legacy")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    with anyio.fail_after(PATIENCE):
        yield made
        await made.aclose()


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_sees_what_it_may_call_without_the_server_and_calls_it(
    rig: Rig, mode: str
) -> None:
    use = use_of("e*", "secret", "long", arguments={"*": {"owner": "acme"}})
    async with (
        served(rig, near_server(result_kb=1), use) as (_, url),
        client_of(url, mode) as client,
    ):
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert client.instructions == "Be careful."
        listed = await client.list_tools()
        assert [tool.name for tool in listed.tools] == ["echo", "secret", "long"]
        assert listed.tools[0].input_schema["properties"] == {"text": {"type": "string"}}
        assert rig.started == []

        echoed = await client.call_tool("echo", {"text": "hi"})
        fence, said, end = text_of(echoed).split("\n")
        assert said == '{"owner": "acme", "text": "hi"}'
        assert fence.startswith("<tool-result-")
        assert fence.endswith(' server="it" tool="echo">')
        assert end == f"</{fence[1:].split()[0]}>"
        assert rig.started == ["it"]

        assert "the token is [secret]" in text_of(await client.call_tool("secret"))
        long = await client.call_tool("long", {"size": 5000})
        cut = "(cut after 1024 of 5000 bytes; all of it is in the file /tmp/it-3.txt, between"
        assert cut in text_of(long)
        first, whole, last = rig.spilled["/tmp/it-3.txt"].decode().split("\n")
        assert whole == "0123456789" * 500
        assert first.endswith(' server="it" tool="long">')
        assert last == f"</{first[1:].split()[0]}>"

        refused = await client.call_tool("die")
        assert refused.is_error
        assert "DENIED_BY_POLICY" in text_of(refused)
        wrong = await client.call_tool("echo", {"text": 7})
        assert wrong.is_error
        assert "ARGUMENTS_INVALID" in text_of(wrong)
    assert rig.started == ["it"]
    assert TOKEN not in repr(rig.seen)
    assert [(subject, allowed) for _, subject, allowed in rig.audit] == [
        ("it/echo #1", True),
        ("it/secret #2", True),
        ("it/long #3", True),
        ("it/die", False),
        ("it/echo", False),
    ]
    assert all(seen.direct for seen in rig.seen)  # this client is no claude


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_and_cancellation_pass_both_ways(rig: Rig, mode: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    begun = anyio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        begun.set()

    async with (
        served(rig, near_server(), use_of("*")) as (_, url),
        client_of(url, mode) as client,
    ):
        done = await client.call_tool("steps", {"steps": 3}, progress_callback=on_progress)
        assert "done" in text_of(done)
        assert heard  # a client that reads slowly sees the last of them
        assert set(heard) <= {(float(n), 3.0, f"step {n}") for n in (1, 2, 3)}

        begun = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                await client.call_tool("slow", {"seconds": 600}, progress_callback=on_progress)

            tasks.start_soon(wait)
            while not rig.audit[-1][1].startswith("it/slow"):
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        after = ""
        while "after a cancellation" not in after:  # the server itself has heard of it
            after = text_of(await client.call_tool("slow", {"seconds": 0}))


@pytest.mark.parametrize("mode", ERAS)
async def test_resources_and_prompts_are_there_if_they_are_named(rig: Rig, mode: str) -> None:
    use = use_of("resource:notes://*", "prompt:greet", deny=["resource:*secret*"])
    server = near_server("resources", "resources")
    async with served(rig, server, use) as (_, url), client_of(url, mode) as client:
        assert (await client.list_tools()).tools == []
        assert [str(r.uri) for r in (await client.list_resources()).resources] == ["notes://a"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == ["notes://{x}"]
        (read,) = (await client.read_resource("notes://b")).contents
        assert isinstance(read, t.TextResourceContents)
        assert "what is in notes://b" in read.text
        prompt = await client.get_prompt("greet", {"whom": "Ada"})
        assert isinstance(prompt.messages[0].content, t.TextContent)
        assert "Greet Ada." in prompt.messages[0].content.text
        for uri in ("keys://b", "notes://secrets"):
            with pytest.raises(MCPError, match="DENIED_BY_POLICY"):
                await client.read_resource(uri)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_that_changes_is_taken_back_and_the_client_told(rig: Rig, mode: str) -> None:
    news = anyio.Event()

    async def on_message(message: object) -> None:
        if isinstance(message, t.ToolListChangedNotification):
            news.set()

    async with (
        served(rig, near_server(), use_of("echo", "change")) as (_, url),
        client_of(url, mode, message_handler=on_message) as client,
        anyio.create_task_group() as tasks,
    ):
        if mode == "auto":

            async def listen() -> None:
                async with client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        news.set()

            tasks.start_soon(listen)
        assert rig.front is not None
        while not rig.front._listeners:
            await anyio.sleep(0.01)
        assert not (await client.call_tool("echo", {"text": "x"})).is_error
        await client.call_tool("change")
        while not rig.drifts:
            await client.call_tool("change")
        await news.wait()
        assert rig.drifts == [(["echo"], [])]
        assert [tool.name for tool in (await client.list_tools()).tools] == ["change"]
        refused = await client.call_tool("echo", {"text": "x"})
        assert "TOOL_CHANGED" in text_of(refused)
        tasks.cancel_scope.cancel()


async def test_what_is_no_request_of_the_protocol_is_refused(rig: Rig) -> None:
    modern = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}

    def message(method: str, number: object = 1, **params: object) -> str:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    call = message("tools/call", name="echo", arguments={"text": "x"}, _meta=modern)
    async with (
        served(rig, near_server(), use_of("echo")) as (access, url),
        httpx.AsyncClient() as http,
    ):

        async def post(text: str, to: str = url, **more: str) -> httpx.Response:
            return await http.post(to, content=text, headers={**more})

        assert (await post(call, **headers, **{"mcp-name": "echo"})).status_code == 200
        for told in ({"mcp-name": "die"}, {}, {"mcp-name": "=?base64?!?="}):
            refused = await post(call, **headers, **told)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32020)
        encoded = await post(call, **headers, **{"mcp-name": "=?base64?ZWNobw==?="})
        assert encoded.status_code == 200
        other = message(
            "tools/list", _meta={**modern, "io.modelcontextprotocol/protocolVersion": "1"}
        )
        assert (await post(other)).json()["error"]["code"] == -32022
        assert (await post(message("sampling/createMessage"))).json()["error"]["code"] == -32601
        assert (
            await post(
                message("initialize", _meta=modern),
                **{"mcp-protocol-version": "2026-07-28", "mcp-method": "initialize"},
            )
        ).status_code == 404
        assert (await post(message("tools/call", name=7))).json()["error"]["code"] == -32602
        assert (await post(call, url + "x")).status_code == 404
        assert (await post(call, url.rpartition("/")[0] + "/../it")).status_code in (400, 404)
        assert (await post(call, origin="http://evil.example")).status_code == 403
        assert (await post("x" * (front.CALL_BYTES + 1))).status_code == 413
        assert (await post("[]")).status_code == 400
        assert (await http.put(url)).status_code == 405
        access.revoke()
        late = await post(message("tools/call", name="echo", arguments={"text": "x"}))
        assert "no run is there" in late.text


async def test_a_second_request_of_the_same_id_is_refused_while_the_first_waits(rig: Rig) -> None:
    slow = {"name": "slow", "arguments": {"seconds": 600}}
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": slow})
    stop = json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled",
                       "params": {"requestId": 1}})  # fmt: skip
    async with (
        served(rig, near_server(), use_of("slow")) as (_, url),
        httpx.AsyncClient(timeout=PATIENCE) as http,
        anyio.create_task_group() as tasks,
    ):
        said: list[str] = []

        async def first() -> None:
            said.append((await http.post(url, content=text)).text)

        tasks.start_soon(first)
        while not rig.audit:
            await anyio.sleep(0.01)
        again = await http.post(url, content=text)
        assert again.json()["error"]["message"] == "a request of this id waits already"
        other = await http.post(url, content=stop, headers={"mcp-session-id": "another's"})
        assert (other.status_code, said) == (202, [])
        await http.post(url, content=stop)
        while not said:
            await anyio.sleep(0.01)
        assert "given up" in said[0]
