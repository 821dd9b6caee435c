"""The parent service: what an agent asks gets to whoever called it, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import h11
import pytest
from mcp import Client as McpClient

from orchestrator.errors import RunNotFound
from orchestrator.gateway import parent, rpc
from orchestrator.gateway.http.loopback import listen_on_loopback
from orchestrator.gateway.parent import ParentAccess
from tests.gateway.near import PATIENCE, Answer, Client, connection

pytestmark = pytest.mark.anyio

BOTH_KINDS = {"accept": "application/json, text/event-stream"}


@dataclass
class Parent:
    """Answers when it is told to, and remembers everything."""

    asked: list[tuple[str, str | None]] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    waiting: dict[str, asyncio.Future[str]] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def ask(self, question: str, default: str | None) -> str:
        self.asked.append((question, default))
        self.waiting[question] = asyncio.get_running_loop().create_future()
        await self._note()
        try:
            return await self.waiting[question]
        except asyncio.CancelledError:
            self.withdrawn.append(question)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._note()

    def tell(self, summary: str, status: str) -> None:
        self.told.append((summary, status))

    async def has(self, *questions: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: set(questions) <= set(self.waiting))

    async def misses(self, *questions: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: set(questions) <= set(self.withdrawn))

    async def _note(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    @property
    def access(self) -> ParentAccess:
        return ParentAccess(self.ask, self.tell)


def message(method: str, params: object = None, number: int | str | None = 1) -> bytes:
    value: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        value["params"] = params
    if number is not None:
        value["id"] = number
    return json.dumps(value).encode()


def call(tool: str, number: int = 1, **arguments: object) -> bytes:
    return message("tools/call", {"name": tool, "arguments": arguments}, number)


async def post(access: ParentAccess, body: bytes, **headers: str) -> Answer:
    async with connection(access.service) as stream:
        return await Client(stream).ask("POST", "/mcp", BOTH_KINDS | headers, body)


async def result(access: ParentAccess, body: bytes) -> dict[str, Any]:
    answer = await post(access, body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    return dict(json.loads(answer.body))


def events(body: bytes) -> list[dict[str, Any]]:
    """The messages of an event stream; comments are none."""
    found = [piece.partition(b"data: ")[2] for piece in body.split(b"\n\n")]
    return [json.loads(data) for data in found if data]


def text_of(reply: dict[str, Any]) -> tuple[str, bool]:
    (block,) = reply["result"]["content"]
    return block["text"], reply["result"]["isError"]


@asynccontextmanager
async def asking(
    access: ParentAccess, body: bytes, headers: dict[str, str] | None = None
) -> AsyncIterator[Client]:
    """A question on a connection of its own, not yet answered."""
    async with connection(access.service) as stream:
        client = Client(stream)
        await client.send("POST", "/mcp", BOTH_KINDS | (headers or {}), body)
        yield client


# The protocol


@pytest.mark.parametrize(
    ("wanted", "given"),
    [("2025-11-25", "2025-11-25"), ("2024-11-05", "2024-11-05"), ("1999", "2025-11-25")],
)
async def test_a_client_is_told_who_we_are(wanted: str, given: str) -> None:
    said = await result(ParentAccess(), message("initialize", {"protocolVersion": wanted}))
    assert said["result"]["protocolVersion"] == given
    assert said["result"]["capabilities"] == {"tools": {}}
    assert said["result"]["serverInfo"]["name"] == "parent"


async def test_there_are_two_tools_before_any_run_has_begun() -> None:
    said = await result(ParentAccess(), message("tools/list"))
    assert [tool["name"] for tool in said["result"]["tools"]] == ["ask_parent", "update_status"]
    assert (await result(ParentAccess(), message("ping", number="p")))["result"] == {}


async def test_a_newer_client_is_told_to_begin_the_older_way() -> None:
    said = await result(ParentAccess(), message("server/discover", {}, "probe"))
    assert (said["id"], said["error"]["code"]) == ("probe", -32601)


async def test_a_notification_is_taken_without_an_answer() -> None:
    answer = await post(ParentAccess(), message("notifications/initialized", number=None))
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/mcp", 405), ("DELETE", "/mcp", 200), ("GET", "/", 404)]
)
async def test_there_is_nothing_else_here(method: str, path: str, status: int) -> None:
    async with connection(ParentAccess().service) as stream:
        assert (await Client(stream).ask(method, path)).status == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[" * 100_000, 400),
        (message("ping", {"x": [[]] * 20_000}), 400),
        (message("ping").decode().encode("utf-16"), 400),
        (b"[" + message("ping") + b"]", 400),
        (b'"ping"', 400),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', 400),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', 400),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', 400),
        (b'{"jsonrpc": "2.0", "id": 1, "method": []}', 400),
        (message("ping", ["x"]), 400),
        (message("ping", {"x": "x" * rpc.MAX_MESSAGE_BYTES}), 413),
        (b"x" * (parent.MESSAGE_ROOM_BYTES + 1), 413),
        (b'{"jsonrpc": "2.0", "id": 1, "result": {}}', 202),
    ],
)
async def test_what_is_no_plain_request_is_refused(body: bytes, status: int) -> None:
    assert (await post(Parent().access, body)).status == status


async def test_a_page_in_a_browser_is_refused() -> None:
    assert (await post(Parent().access, message("ping"), origin="http://x.test")).status == 403


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_protocols_own_client_gets_along_with_it(mode: Literal["auto", "legacy"]) -> None:
    async def ask(question: str, default: str | None) -> str:
        return f"{question} {default}"

    told: list[str] = []
    access = ParentAccess(ask, lambda summary, status: told.append(f"{status}: {summary}"))
    with anyio.fail_after(PATIENCE):
        async with (
            listen_on_loopback(access.service) as url,
            McpClient(f"{url}{parent.PARENT_PATH}", mode=mode) as client,
        ):
            tools = (await client.list_tools()).tools
            asked = {"question": "Which?", "default_answer": "that", "runId": "somebody else's"}
            answer = await client.call_tool("ask_parent", asked)
            await client.call_tool("update_status", {"summary": "Half way.", "status": "working"})

    assert [tool.name for tool in tools] == ["ask_parent", "update_status"]
    assert answer.content[0].model_dump()["text"] == "Which? that"
    assert told == ["working: Half way."]


# Questions


async def test_a_question_waits_for_its_answer() -> None:
    somebody = Parent()
    async with asking(somebody.access, call("ask_parent", 7, question="Which colour?")) as client:
        await somebody.has("Which colour?")
        somebody.waiting["Which colour?"].set_result("blue")
        answer = await client.answer()

    assert answer.headers["content-type"] == "text/event-stream"
    (reply,) = events(answer.body)
    assert (reply["id"], text_of(reply)) == (7, ("blue", False))
    assert somebody.asked == [("Which colour?", None)]


async def test_while_it_waits_the_client_hears_that_it_still_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parent, "ALIVE_SECONDS", 0.01)
    somebody = Parent()
    params = {
        "name": "ask_parent",
        "arguments": {"question": "?"},
        "_meta": {"progressToken": "t"},
    }
    heard = b""
    async with asking(somebody.access, message("tools/call", params)) as client:
        async for event in client.events():
            heard += event.data if isinstance(event, h11.Data) else b""
            if heard.count(b"notifications/progress") >= 3 and not somebody.waiting["?"].done():
                somebody.waiting["?"].set_result("yes")

    *beats, reply = events(heard)
    assert [beat["params"]["progress"] for beat in beats] == [*range(1, len(beats) + 1)]
    assert {beat["params"]["progressToken"] for beat in beats} == {"t"}
    assert text_of(reply) == ("yes", False)


async def test_questions_are_answered_in_any_order() -> None:
    somebody = Parent()
    access = somebody.access
    async with (
        asking(access, call("ask_parent", question="First?")) as first,
        asking(access, call("ask_parent", question="Second?")) as second,
    ):
        await somebody.has("First?", "Second?")
        somebody.waiting["Second?"].set_result("2")
        later = await second.answer()
        somebody.waiting["First?"].set_result("1")
        sooner = await first.answer()

    answers = [text_of(events(answer.body)[-1]) for answer in (sooner, later)]
    assert answers == [("1", False), ("2", False)]


async def test_a_client_that_goes_away_withdraws_its_question() -> None:
    somebody = Parent()
    access = somebody.access
    async with asking(access, call("ask_parent", question="Which?")) as client:
        await somebody.has("Which?")
        client.stream.reset()
        await somebody.misses("Which?")
    assert not access._waiting


async def test_a_client_can_withdraw_one_of_its_questions_and_nobody_elses() -> None:
    somebody = Parent()
    access = somebody.access
    mine, other = {"mcp-session-id": "mine"}, {"mcp-session-id": "other"}
    cancel = message("notifications/cancelled", {"requestId": 1}, number=None)
    async with (
        asking(access, call("ask_parent", 1, question="Mine?"), mine) as client,
        asking(access, call("ask_parent", 1, question="Theirs?"), other) as theirs,
    ):
        await somebody.has("Mine?", "Theirs?")
        await post(access, cancel, **mine)
        withdrawn = await client.answer()
        somebody.waiting["Theirs?"].set_result("still here")
        answered = await theirs.answer()

    assert somebody.withdrawn == ["Mine?"]
    assert text_of(events(withdrawn.body)[-1])[1]
    assert text_of(events(answered.body)[-1]) == ("still here", False)


async def test_the_end_of_a_run_is_the_end_of_its_questions() -> None:
    somebody, successor = Parent(), Parent()
    access = somebody.access
    async with asking(access, call("ask_parent", question="Which?")) as client:
        await somebody.has("Which?")
        access.revoke()
        given_up = await client.answer()
    refused = await result(access, call("ask_parent", question="Anybody?"))
    unheard = await result(access, call("update_status", summary="Hello?"))
    access.bind(successor.ask, successor.tell)
    await post(access, call("update_status", summary="Hello."))

    assert text_of(events(given_up.body)[-1])[1]
    assert text_of(refused) == (parent.NOBODY, True)
    assert text_of(unheard) == (parent.NOBODY, True)
    assert somebody.withdrawn == ["Which?"]
    assert (somebody.told, successor.told) == ([], [("Hello.", "")])


async def test_so_many_questions_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "MAX_WAITING", 2)
    somebody = Parent()
    access = somebody.access
    async with AsyncExitStack() as open_ones:
        for question in ("1?", "2?"):
            await open_ones.enter_async_context(
                asking(access, call("ask_parent", question=question))
            )
        await somebody.has("1?", "2?")
        refused = await result(access, call("ask_parent", question="3?"))
    assert text_of(refused) == ("2 questions wait already; let one be answered first", True)
    assert not access._waiting


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "question must be a text, and not an empty one"),
        ({"question": " "}, "question must be a text, and not an empty one"),
        ({"question": ["?"]}, "question must be a text, and not an empty one"),
        ({"question": "?", "default_answer": 1}, "default_answer must be a text"),
        ({"question": "?" * 16_001}, "question has 16001 characters, and at most 16000 are taken"),
    ],
)
async def test_a_question_that_is_none_is_refused_with_a_reason(
    arguments: dict[str, object], why: str
) -> None:
    somebody = Parent()
    body = message("tools/call", {"name": "ask_parent", "arguments": arguments})
    refused = await result(somebody.access, body)
    assert text_of(refused) == (why, True)
    assert somebody.asked == []


async def test_half_a_character_does_not_get_through() -> None:
    somebody = Parent()
    await post(somebody.access, call("update_status", summary="a\ud800b", status="\udfff"))
    assert somebody.told == [("a?b", "?")]


async def test_reports_that_are_too_many_are_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parent, "MAX_TOLD", 1)
    somebody = Parent()
    access = somebody.access
    first = await result(access, call("update_status", summary="One."))
    second = await result(access, call("update_status", summary="Two."))
    assert (text_of(first)[1], text_of(second)[1]) == (False, True)
    assert somebody.told == [("One.", "")]


async def test_a_tool_that_is_not_there_is_an_error() -> None:
    said = await result(Parent().access, call("run_subagent", question="?"))
    assert said["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RunNotFound("the run is over"), "the run is over"),
        (KeyError("hunter2"), "the question could not be asked; go on without an answer"),
    ],
)
async def test_a_question_that_cannot_be_asked_is_an_answer_too(
    failure: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(_: str, __: str | None) -> str:
        raise failure

    with caplog.at_level(logging.DEBUG):
        answer = await post(ParentAccess(ask, lambda *_: None), call("ask_parent", question="?"))
    assert text_of(events(answer.body)[-1]) == (told, True)
    assert "hunter2" not in caplog.text
