"""The servers that an agent finds on its loopback: MCP over HTTP, a path for each of them, in both
eras of the protocol. It translates; `access` decides.

Of the handshake's years: `initialize`, then requests with a session id that means nothing here; a
GET may listen for news. Since 2026-07-28: no handshake, each request says its version in `_meta`
and in headers that must agree, and `subscriptions/listen` listens.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

import anyio
import anyio.abc
from pydantic import JsonValue

from orchestrator import __version__
from orchestrator.domain.tool_lock import Brokered
from orchestrator.gateway.http.byte_stream import ByteStream
from orchestrator.gateway.http.server import (
    BodyRoom,
    HttpRequest,
    HttpResponse,
    plain_response,
    serve_http,
)
from orchestrator.gateway.rpc import (
    EVENT_STREAM,
    HANDSHAKE_VERSIONS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    JSON,
    UNKNOWN_METHOD,
    RpcMessage,
    RpcNumber,
    RpcObject,
    error_reply,
    event,
    notification,
    object_at,
    progress,
    read_message,
    reply,
    request_key,
    rpc_error,
    rpc_result,
)
from orchestrator.gateway.tools.access import ToolAccess
from orchestrator.runners.json_fields import dicts_of
from orchestrator.tool_rules import What, offered_others

MODERN_VERSION = "2026-07-28"

INTERNAL_ERROR, HEADER_MISMATCH, UNSUPPORTED_VERSION = -32603, -32020, -32022

META = "io.modelcontextprotocol/"
"""How keys of `_meta` begin that are the protocol's own; none of them is passed on."""

NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""What of a request its header Mcp-Name repeats."""

CALLS: dict[str, What] = {
    "tools/call": "tool",
    "resources/read": "resource",
    "prompts/get": "prompt",
}

CALL_BYTES = 1024 * 1024
"""One message of an agent's."""

CALLS_ROOM_BYTES = 8 * CALL_BYTES
"""All messages of one container that are held at once."""

CALL_ALIVE_SECONDS = 15.0
"""Between two signs that a call still waits; claude takes a silent connection for a broken one."""

MAX_LISTENERS = 16
"""Streams of one container on which news are waited for."""

TOOL_USE_ID = "claudecode/toolUseId"
"""What claude says of each call; any process could, and so it only tells calls apart."""


Heard = Callable[[float, float | None, str | None], None]
"""Told how far a call is: done, of how much, and in words."""


class ToolFront:
    """The services of one container, on ToolAccess."""

    def __init__(self, access: ToolAccess) -> None:
        self._access = access
        self._room = BodyRoom(CALLS_ROOM_BYTES)
        self._waiting: dict[tuple[str, object], _Answering] = {}
        self._listeners: dict[anyio.Event, str] = {}
        access.on_list_changed = self._wake

    async def service(self, stream: ByteStream) -> None:
        """Answer a connection: `container.listen(TOOLS_PORT, "tools", front.service)`."""
        async with anyio.create_task_group() as tasks:
            await serve_http(stream, partial(self._answer, tasks), self._room)
            tasks.cancel_scope.cancel()

    async def _answer(self, tasks: anyio.abc.TaskGroup, request: HttpRequest) -> HttpResponse:
        if request.header("origin"):
            return plain_response(403, "no page of a browser has business here")
        each = self._access.servers.get(request.path.removeprefix("/"))
        if each is None:
            there = ", ".join(f"/{name}" for name in self._access.servers) or "none"
            return plain_response(404, f"there is no server at this path; there are {there}")
        if request.method == "DELETE":
            return HttpResponse(200)  # a session is nothing that we keep
        if request.method == "GET":
            return self._listen(each, None)
        if request.method != "POST":
            return plain_response(405, "POST one message, or GET what is new")
        message = read_message(request.body, CALL_BYTES)
        if isinstance(message, HttpResponse):
            return message
        if message.number is None:
            if message.method == "notifications/cancelled":
                self._cancel(each, request, message.params)
            return HttpResponse(202)
        wrong = _mismatch(request, message)
        if wrong is not None:
            return wrong
        return await self._request(tasks, each, request, message, message.number)

    async def _request(
        self,
        tasks: anyio.abc.TaskGroup,
        each: Brokered,
        request: HttpRequest,
        message: RpcMessage,
        number: RpcNumber,
    ) -> HttpResponse:
        method, params, modern = message.method, message.params, _is_modern(message)
        if method in CALLS:
            return await self._call(tasks, each, request, message, number)
        if method == "initialize" and not modern:
            session = ("mcp-session-id", secrets.token_hex(16))
            return rpc_result(number, _introduction(each, params), session)
        if method == "server/discover" and modern:
            return rpc_result(number, _discovered(each))
        if method == "subscriptions/listen" and modern:
            return self._listen(each, number)
        if method == "ping" and not modern:
            return rpc_result(number, {})
        listed = self._listed(each, method)
        if listed is not None:
            fresh: RpcObject = {"ttlMs": 0, "cacheScope": "private"} if modern else {}
            return rpc_result(number, {**_complete(modern), **listed, **fresh})
        return rpc_error(
            number,
            UNKNOWN_METHOD,
            f"there is no method {method[:100]!r} here",
            status=404 if modern else 200,
        )

    def _listed(self, each: Brokered, method: str) -> RpcObject | None:
        if method == "tools/list":
            return {"tools": list(self._access.tools(each.name))}
        parts = {
            "resources/list": ("resources", "resources"),
            "resources/templates/list": ("templates", "resourceTemplates"),
            "prompts/list": ("prompts", "prompts"),
        }
        if method not in parts:
            return None
        part, told = parts[method]
        return {told: list(offered_others(each.use, each.lock, part))}

    async def _call(
        self,
        tasks: anyio.abc.TaskGroup,
        each: Brokered,
        request: HttpRequest,
        message: RpcMessage,
        number: RpcNumber,
    ) -> HttpResponse:
        """Answer at once if it is quick, else with a stream on which it is told how it goes."""
        what, name = CALLS[message.method], message.params.get(NAMED[message.method])
        arguments = message.params.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return rpc_error(number, INVALID_PARAMS, "its name is a text, its arguments an object")
        key = (each.name, request_key(request, number))
        if key in self._waiting:
            return rpc_error(number, INVALID_REQUEST, "a request of this id waits already")
        meta = object_at(message.params, "_meta")
        make = partial(self._made, each, name, what, arguments, meta)
        answering = _Answering(make, partial(_told, what, name, _complete(_is_modern(message))))
        self._waiting[key] = answering
        let_go = partial(self._let_go, key, answering)
        try:
            tasks.start_soon(answering.run)
            await answering.first_news(CALL_ALIVE_SECONDS)
        except BaseException:
            await let_go()
            raise
        if answering.settled.is_set():
            return HttpResponse(200, JSON, answering.reply(number), let_go)
        token = meta.get("progressToken")
        return HttpResponse(200, EVENT_STREAM, answering.events(number, token), let_go)

    async def _made(
        self,
        each: Brokered,
        name: str,
        what: What,
        arguments: Mapping[str, JsonValue],
        meta: RpcObject,
        on_progress: Heard,
    ) -> RpcObject:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress, total, message)

        direct = not isinstance(meta.get(TOOL_USE_ID), str)
        return await self._access.call(
            each.name, name, arguments, what=what, direct=direct, on_progress=heard
        )

    async def _let_go(self, key: tuple[str, object], answering: _Answering) -> None:
        answering.give_up()  # the client may have hung up
        if self._waiting.get(key) is answering:
            del self._waiting[key]

    def _cancel(self, each: Brokered, request: HttpRequest, params: RpcObject) -> None:
        number = params.get("requestId")
        if isinstance(number, (int, str)):
            found = self._waiting.get((each.name, request_key(request, number)))
            if found is not None:
                found.give_up()

    # News

    def _listen(self, each: Brokered, number: RpcNumber | None) -> HttpResponse:
        if len(self._listeners) >= MAX_LISTENERS:
            return plain_response(429, "too many listen already")
        woken = anyio.Event()
        self._listeners[woken] = each.name
        return HttpResponse(200, EVENT_STREAM, self._news(each.name, woken, number))

    async def _news(
        self, server: str, woken: anyio.Event, number: RpcNumber | None
    ) -> AsyncIterator[bytes]:
        """That a list has changed, as often as it does; of the newer era, under its id."""
        params: RpcObject = {} if number is None else {"_meta": {f"{META}subscriptionId": number}}
        try:
            if number is None:
                yield b": listening\n\n"
            else:
                told = {**params, "notifications": {"toolsListChanged": True}}
                yield event(notification("notifications/subscriptions/acknowledged", told))
            while True:
                with anyio.move_on_after(CALL_ALIVE_SECONDS) as quiet:
                    await woken.wait()
                if quiet.cancelled_caught:
                    yield b": listening\n\n"
                    continue
                del self._listeners[woken]
                woken = anyio.Event()
                self._listeners[woken] = server
                yield event(notification("notifications/tools/list_changed", params))
        finally:
            self._listeners.pop(woken, None)

    def _wake(self, server: str) -> None:
        for woken, name in self._listeners.items():
            if name == server:
                woken.set()


class _Answering:
    """A call that is being made, and what is told of it meanwhile."""

    def __init__(
        self,
        make: Callable[[Heard], Awaitable[RpcObject]],
        tell: Callable[[RpcNumber, RpcObject], bytes],
    ) -> None:
        self._make = make
        self._tell = tell
        self._scope = anyio.CancelScope()
        self._news = anyio.Event()
        self._progress: tuple[float, float | None, str | None] | None = None
        self.settled = anyio.Event()
        self._result: RpcObject = {
            "content": [{"type": "text", "text": "the call was given up"}],
            "isError": True,
        }

    async def run(self) -> None:
        with self._scope:
            self._result = await self._make(self._heard)
        self.settled.set()
        self._news.set()

    def give_up(self) -> None:
        self._scope.cancel()

    async def first_news(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._news.wait()

    def reply(self, number: RpcNumber) -> bytes:
        return self._tell(number, self._result)

    async def events(self, number: RpcNumber, token: object) -> AsyncIterator[bytes]:
        beats = 0.0
        while not self.settled.is_set():
            news, self._progress = self._progress, None
            if news is not None:
                beats = max(news[0], beats)
                yield progress(token, beats, news[1], news[2] or "")
            else:
                beats += 1
                yield progress(token, beats, text="waiting for the answer")
            if self.settled.is_set():
                break
            if self._progress is None:
                self._news = anyio.Event()
                await self.first_news(CALL_ALIVE_SECONDS)
        yield event(self.reply(number))

    def _heard(self, done: float, total: float | None, text: str | None) -> None:
        self._progress = (done, total, text)
        self._news.set()


def _told(
    what: What, name: str, complete: RpcObject, number: RpcNumber, result: RpcObject
) -> bytes:
    """A tool's result, as what was asked for: a resource's contents, a prompt's messages."""
    if what == "tool":
        return reply(number, {**complete, **result})
    texts = [str(block["text"]) for block in dicts_of(result, "content") if "text" in block]
    if result.get("isError") is True:
        return error_reply(number, INTERNAL_ERROR, "\n".join(texts))
    if what == "resource":
        return reply(number, {**complete, "contents": [{"uri": name, "text": t} for t in texts]})
    said = [{"role": "user", "content": {"type": "text", "text": text}} for text in texts]
    return reply(number, {**complete, "messages": said})


def _is_modern(message: RpcMessage) -> bool:
    return f"{META}protocolVersion" in object_at(message.params, "_meta")


def _mismatch(request: HttpRequest, message: RpcMessage) -> HttpResponse | None:
    """What is wrong with a request of the newer era, whose headers repeat what it says."""
    said = object_at(message.params, "_meta").get(f"{META}protocolVersion")
    if said is None:
        return None
    if said != MODERN_VERSION:
        known: RpcObject = {"supported": [MODERN_VERSION, *HANDSHAKE_VERSIONS], "requested": said}
        why = "this version of the protocol is not known here"
        return rpc_error(message.number, UNSUPPORTED_VERSION, why, status=400, data=known)
    named = NAMED.get(message.method)
    expected = {"mcp-protocol-version": said, "mcp-method": message.method}
    if named is not None:
        expected["mcp-name"] = str(message.params.get(named, ""))
    for header, value in expected.items():
        if _decoded(request.header(header)) != value:
            why = f"the header {header} does not say what the message says"
            return rpc_error(message.number, HEADER_MISMATCH, why, status=400)
    return None


def _decoded(value: str) -> str:
    """What a header says; one that plain text cannot carry comes as base64."""
    found = re.fullmatch(r"=\?base64\?([A-Za-z0-9+/=]*)\?=", value)
    if found is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except ValueError:
        return value


def _complete(modern: bool) -> RpcObject:
    return {"resultType": "complete"} if modern else {}


def _capabilities(each: Brokered) -> RpcObject:
    """What a client may ask for: tools, and what else is offered."""
    found: RpcObject = {"tools": {"listChanged": True}}
    lock = each.lock
    if any(offered_others(each.use, lock, part) for part in ("resources", "templates")):
        found["resources"] = {}
    if offered_others(each.use, lock, "prompts"):
        found["prompts"] = {}
    return found


def _introduction(each: Brokered, params: Mapping[str, object]) -> RpcObject:
    asked = params.get("protocolVersion")
    known = asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
    return {
        "protocolVersion": known,
        "capabilities": _capabilities(each),
        "serverInfo": {"name": each.name, "version": __version__},
        **({"instructions": each.lock.instructions} if each.lock.instructions else {}),
    }


def _discovered(each: Brokered) -> RpcObject:
    return {
        "resultType": "complete",
        "supportedVersions": [MODERN_VERSION, *HANDSHAKE_VERSIONS],
        "capabilities": _capabilities(each),
        **({"instructions": each.lock.instructions} if each.lock.instructions else {}),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {f"{META}serverInfo": {"name": each.name, "version": __version__}},
    }
