"""Programs in an agent's container that call the broker by themselves, past the agent's CLI: they
get no further than the CLI does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from pydantic import JsonValue

from orchestrator.domain.tool_lock import Brokered
from orchestrator.domain.tool_server import ToolServer
from orchestrator.gateway.tools import verdicts
from orchestrator.gateway.tools.access import MAX_AT_ONCE, ToolAccess
from tests.attacks.mark import Group, attack
from tests.gateway.tools.near_servers import PATIENCE, Rig, near_server, served, use_of
from tests.waited_for import processes_waited_for

pytestmark = pytest.mark.anyio

GROUP: Group = "callers of tools"


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    with anyio.fail_after(PATIENCE):
        yield made
        await made.aclose()


def message(name: object, arguments: object = None, number: int = 1, **meta: object) -> str:
    params = {"name": name, "arguments": arguments or {}, "_meta": meta}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


async def broker(rig: Rig, server: ToolServer, **rules: Any) -> ToolAccess:
    lock = await rig.lock(server)
    use = use_of(*rules.pop("allow", ["*"]), **rules)
    access = ToolAccess((Brokered(use=use, server=server, lock=lock),))
    access.bind(rig.run_tools())
    return access


async def said(access: ToolAccess, tool: str, arguments: dict[str, JsonValue] | None = None) -> str:
    content: Any = (await access.call("it", tool, arguments or {}, direct=True))["content"]
    return "\n".join(block["text"] for block in content)


@attack(
    GROUP,
    "call a tool by curl that the CLI was not offered, also with claude's mark on the call",
    "refused by the same rule, written down, and without the mark called `direct`",
)
async def test_curl_gets_no_further_than_the_cli(rig: Rig) -> None:
    async with (
        served(rig, near_server(), use_of("echo", "secret", deny=["sec*"])) as (_, url),
        httpx.AsyncClient() as http,
    ):
        marks: list[dict[str, Any]] = [{}, {"claudecode/toolUseId": "toolu_1"}]
        for meta in marks:
            for tool in ("secret", "count", "die"):
                text = (await http.post(url, content=message(tool, **meta))).text
                assert "DENIED_BY_POLICY" in text
    assert [seen.direct for seen in rig.seen] == [True] * 3 + [False] * 3
    assert {allowed for *_, allowed in rig.audit} == {False}
    assert rig.started == []


FORGED = [
    *("ECHO", "echo ", " echo", "echo\x00", "echo\n", "it/echo", "mcp__it__echo", "../echo"),
    *("ech\u043e", "echo\u200b", "e*", "[e]cho", "", "echo" * 40, "__proto__", "resource:echo"),
]


@attack(
    GROUP,
    "name a tool by something that looks like it: other letters, blanks, paths, patterns",
    "a name is itself and nothing else; what is no name is refused before any rule",
)
async def test_a_name_is_itself_and_nothing_else(rig: Rig) -> None:
    access = await broker(rig, near_server(), allow=["e*", "*"], deny=["echo"])
    for name in [*FORGED, "echo"]:
        result = await access.call("it", name, {"text": "x"}, direct=True)
        assert result["isError"] is True, name
    assert rig.started == []
    assert len({json.dumps(seen.model_dump()) for seen in rig.seen}) > 1


@attack(
    GROUP,
    "ask for another server's tools by another path",
    "there are the servers that agent.md uses, and no other path",
)
async def test_a_path_is_one_server(rig: Rig) -> None:
    async with (
        served(rig, near_server(), use_of("echo")) as (_, url),
        httpx.AsyncClient() as http,
    ):
        base = url.rpartition("/")[0]
        for path in ("/", "/other", "/it/", "/it/../other", "/IT", "/%69t", "/it/echo", "//it"):
            assert (await http.post(base + path, content=message("echo"))).status_code == 404


@attack(
    GROUP,
    "bring another value for an argument that agent.md has fixed, or one that only servers know",
    "refused; a value that is fixed is never corrected in silence",
)
async def test_a_fixed_argument_cannot_be_brought(rig: Rig) -> None:
    access = await broker(rig, near_server(), arguments={"*": {"owner": "acme", "org": "acme"}})
    others: list[dict[str, Any]] = [{"owner": "evil"}, {"owner": None}, {"owner": ["acme"]}]
    for more in [*others, {"org": "acme"}]:
        assert "ARGUMENT_FIXED" in await said(access, "echo", {"text": "x", **more})
    assert '"owner": "acme"' in await said(access, "echo", {"text": "x"})


@attack(
    GROUP,
    "make a call that needs approval by curl, use one approval for two calls, or hide in an edit",
    "the caller is asked about each call, with the arguments that are sent; an edit is judged anew",
)
async def test_an_approval_is_for_one_call_as_it_is_sent(rig: Rig) -> None:
    rules = {"approve": {"echo": "ask"}, "arguments": {"*": {"owner": "acme"}}}
    access = await broker(rig, near_server(), **rules)
    for _ in range(2):
        assert "acme" in await said(access, "echo", {"text": "x"})
    sent = ("mcp__it__echo", {"text": "x", "owner": "acme"})
    assert rig.approvals == [sent, sent]

    rig.decision = {"decision": "rejected", "message": "not today"}
    assert "not today" in await said(access, "echo", {"text": "y"})
    rig.decision = {"decision": "timed_out", "message": "No approval came in time."}
    assert "in time" in await said(access, "echo", {"text": "z"})
    rig.decision = {"decision": "approved", "new_input": {"text": "edited", "owner": "acme"}}
    assert "edited" in await said(access, "echo", {"text": "y"})
    rig.decision = {"decision": "approved", "new_input": {"text": "edited", "owner": "evil"}}
    assert "ARGUMENT_FIXED" in await said(access, "echo", {"text": "y"})
    rig.decision = {"decision": "approved", "new_input": {"nothing": 1}}
    assert "ARGUMENTS_INVALID" in await said(access, "echo", {"text": "y"})
    asked = len(rig.approvals)
    assert "ARGUMENTS_INVALID" in await said(access, "echo", {"text": 1})
    assert len(rig.approvals) == asked  # nobody is asked about what cannot be


@attack(
    GROUP,
    "call without end, or hundreds of times at once",
    "a run has so many calls of a server, and so many at the same time",
)
async def test_calls_are_counted(rig: Rig) -> None:
    access = await broker(rig, near_server(), max_calls=MAX_AT_ONCE + 2)
    async with anyio.create_task_group() as tasks:
        for _ in range(MAX_AT_ONCE):
            tasks.start_soon(partial(said, access, "slow", {"seconds": 600}))
        while len(rig.audit) < MAX_AT_ONCE:
            await anyio.sleep(0.01)
        assert "calls wait already" in await said(access, "count")
        tasks.cancel_scope.cancel()
    for _ in range(2):
        assert "\n" in await said(access, "count")
    assert "TOO_MANY_CALLS" in await said(access, "count")


@attack(
    GROUP,
    "send arguments for which a regular expression in the tool's schema never ends",
    "they are compared in a process of its own, which is ended; no other run waits",
)
async def test_arguments_that_take_for_ever_are_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "ARGUMENTS_SECONDS", 2.0)
    access = await broker(rig, near_server("slowargs", "slowargs"))
    assert "take too long" in await said(access, "echo", {"text": "a" * 60 + "!"})
    monkeypatch.setattr(verdicts, "ARGUMENTS_SECONDS", float(PATIENCE))
    assert '"text": "aaa"' in await said(access, "echo", {"text": "aaa"})
    assert "ARGUMENTS_INVALID" in await said(access, "echo", {"text": "b"})


@attack(
    GROUP,
    "hang up while arguments are compared that take long, again and again",
    "whenever that is, the process that compares them ends",
)
async def test_a_caller_that_hangs_up_leaves_no_process(rig: Rig) -> None:
    access = await broker(rig, near_server("slowargs", "slowargs"))
    for seconds in (0, 0.01, 0.03, 0.1, 0.3):
        with anyio.move_on_after(seconds):
            await said(access, "echo", {"text": "a" * 60 + "!"})
    while processes_waited_for():
        await anyio.sleep(0.01)


@attack(
    GROUP,
    "read resources and prompts that agent.md does not name",
    "there are none unless a pattern of their kind names them; `*` means tools",
)
async def test_a_star_means_tools(rig: Rig) -> None:
    access = await broker(rig, near_server("resources", "resources"), allow=["*"])
    file = "file:///etc/passwd"
    whats: Any = (("resource", "notes://a"), ("resource", file), ("prompt", "greet"))
    for what, name in whats:
        result = await access.call("it", name, {}, what=what, direct=True)
        assert result["isError"] is True
    assert rig.started == []
