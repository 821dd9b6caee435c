"""MCP on stdin and stdout <-> MCP over HTTP, message by message; only directories are changed.

What the server offers is what the client sees. A server that goes away is waited for, and asked
again for what it has not answered.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import anyio
import anyio.abc

from orchestrator.client.connection import HttpAnswer, ServerConnection, refusal_of, sse
from orchestrator.errors import OperatorError, OrchestratorError, ServerAway
from orchestrator.surfaces.connect.local_half import LocalHalf
from orchestrator.surfaces.connect.messages import (
    CONNECTION_LOST,
    Message,
    answered,
    cancelled_id,
    directories_in,
    failed,
    headers_for,
    is_answer,
    is_request,
    may_repeat,
    params_of,
    tool_answer,
    tool_of,
    version_of,
    with_directories,
    with_key,
)

log = logging.getLogger(__name__)

MCP_PATH = "/mcp"
SESSION_ID = "mcp-session-id"

RESTART_SECONDS = 120.0
"""For a server that has answered before to be there again."""

TRY_AGAIN_SECONDS = 0.25
LATER_SECONDS = 2.0
"""Between two tries, at first and later."""

GOODBYE_SECONDS = 0.3
"""For the server to hear that its client has left; clients that end us wait half a second."""

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

Send = Callable[[Message], Awaitable[None]]
"""To the client."""


@dataclass
class _Handshake:
    """What was said to begin with in the older era, for a server that has forgotten it."""

    hello: Message | None = None
    session: str = ""
    version: str = ""
    subscribed: dict[str, Message] = field(default_factory=dict)


class Relay:
    """One client, one server."""

    def __init__(self, connection: ServerConnection, local: LocalHalf, send: Send) -> None:
        self._connection = connection
        self._local = local
        self._send = send
        self._handshake = _Handshake()
        self._greeting = anyio.Lock()
        self._under_way: dict[object, anyio.CancelScope] = {}
        self._was_there = False

    async def serve(self, received: anyio.abc.ObjectReceiveStream[Message]) -> None:
        """Relay until the client leaves: what is under way then is taken back."""
        async with anyio.create_task_group() as group:
            async for message in received:
                await self._take(message, group)
            await self._leave()
            group.cancel_scope.cancel()

    async def _take(self, message: Message, group: anyio.abc.TaskGroup) -> None:
        taken_back = cancelled_id(message)
        if taken_back is not None:
            await self._take_back(message, taken_back)
        elif is_request(message):
            scope = anyio.CancelScope()
            self._under_way[message["id"]] = scope
            group.start_soon(self._answer, message, scope)
        else:
            await self._tell(message)
            if message.get("method") == "notifications/initialized":
                group.start_soon(self._listen)

    async def _take_back(self, message: Message, request_id: object) -> None:
        """In the newer era, to hang up is to cancel; in the older one, the server is told."""
        if self._handshake.session:
            await self._tell(message)
        scope = self._under_way.get(request_id)
        if scope is not None:
            scope.cancel()

    # Requests

    async def _answer(self, message: Message, scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await self._answer_or_raise(message)
            except OrchestratorError as exc:
                await self._send(self._refused(message, exc))
            except Exception:
                log.exception("a message could not be relayed")
                await self._send(failed(message, "orchestrator connect made a mistake; see stderr"))
            finally:
                if self._under_way.get(message["id"]) is scope:
                    del self._under_way[message["id"]]

    async def _answer_or_raise(self, message: Message) -> None:
        tool, arguments = tool_of(message), params_of(message).get("arguments")
        if tool and isinstance(arguments, dict):
            if tool == "apply_changes":
                done = await self._local.applied(arguments)
                if done is not None:
                    modern = bool(version_of(message))
                    result = tool_answer(*done, is_error=False, modern=modern)
                    await self._send(answered(message, result))
                    return
            elif directories := directories_in(arguments):
                instead = await self._local.sent(directories, self._progress_of(message))
                arguments = with_directories(arguments, instead)
                message = {**message, "params": {**params_of(message), "arguments": arguments}}
        await self._relayed(with_key(message, token_hex(16)))

    def _refused(self, message: Message, exc: OrchestratorError) -> Message:
        """A tool says what is wrong as its answer; other methods have errors."""
        if not tool_of(message) or isinstance(exc, ServerAway):
            code = CONNECTION_LOST if isinstance(exc, ServerAway) else -32603
            return failed(message, str(exc), code)
        document: dict[str, object] = {"error": {"code": exc.code, "message": str(exc)}}
        modern = bool(version_of(message))
        return answered(message, tool_answer(str(exc), document, is_error=True, modern=modern))

    def _progress_of(self, message: Message) -> Callable[[str], Awaitable[None]]:
        meta = params_of(message).get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        told = 0.0

        async def tell(text: str) -> None:
            nonlocal told
            if token is not None:
                params = {"progressToken": token, "progress": told, "message": text}
                told += 0.1  # the server counts from 1 on
                method = "notifications/progress"
                await self._send({"jsonrpc": "2.0", "method": method, "params": params})

        return tell

    async def _relayed(self, message: Message) -> None:
        """Have the server answer a request; again, if it goes away before it has."""
        give_up = anyio.current_time() + RESTART_SECONDS
        pause = TRY_AGAIN_SECONDS
        while True:
            session = self._handshake.session
            try:
                if await self._exchanged(message, session):
                    self._was_there = True
                    return
                await self._greet_again(session)  # it has forgotten our session, and done nothing
            except ServerAway as exc:
                if not (exc.unsent or may_repeat(message)):
                    raise ServerAway(
                        "the connection to the orchestrator broke while it worked on this, so it "
                        "may have been done: look at the run with get_task_details first"
                    ) from exc
                if not self._was_there or anyio.current_time() + pause > give_up:
                    raise
                await anyio.sleep(pause)
                pause = min(2 * pause, LATER_SECONDS)

    async def _exchanged(self, message: Message, session: str) -> bool:
        """Send a request, and the client all that comes for it; False if the server does not know
        the session. ServerAway if the answer does not come.
        """
        async with self._post(message, session) as response:
            if response.status_code == 404 and session:
                return False
            opened = response.headers.get(SESSION_ID, "")
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/event-stream" and response.status_code == 200:
                async for frame in sse(response):
                    said = _object(frame.data.encode()) if frame.data else None
                    if said is not None and await self._passed_on(message, said, opened):
                        return True
                raise ServerAway(f"the orchestrator at {self._connection.url} broke off its answer")
            whole = await self._connection.whole(response)
        said = _object(whole.content) if kind == "application/json" else None
        if said is None or not is_answer(said):
            raise self._no_answer(whole)
        return await self._passed_on(message, said, opened)

    async def _passed_on(self, message: Message, said: Message, opened: str) -> bool:
        """Send the client what came for a request; whether it was the answer."""
        if not is_answer(said):
            await self._send(said)
            return False
        if "result" in said:
            self._remember(message, said["result"], opened)
        await self._send({**said, "id": message["id"]})
        return True

    def _post(self, message: Message, session: str) -> Any:
        """A request to the server; what `stream` gives."""
        headers = {**HEADERS, **headers_for(message)}
        if session and "mcp-protocol-version" not in headers:
            headers |= {SESSION_ID: session, "mcp-protocol-version": self._handshake.version}
        # How long an answer takes is the server's affair: a silent one is kept alive by its words.
        return self._connection.stream(
            "POST", MCP_PATH, headers=headers, json=message, seconds=None
        )

    def _no_answer(self, response: HttpAnswer) -> OrchestratorError:
        if response.status_code >= 300:
            return refusal_of(response, self._connection.url)
        return OperatorError(
            f"{self._connection.url} answers, but not as an orchestrator does; is that its address?"
        )

    # The older era

    def _remember(self, message: Message, result: Any, session: str) -> None:
        """What a server that is started anew has to be told again."""
        method, uri = message.get("method"), str(params_of(message).get("uri"))
        if method == "initialize" and isinstance(result, dict):
            version = str(result.get("protocolVersion", ""))
            self._handshake = _Handshake(message, session, version)
        elif method == "resources/subscribe":
            self._handshake.subscribed[uri] = message
        elif method == "resources/unsubscribe":
            self._handshake.subscribed.pop(uri, None)

    async def _greet_again(self, forgotten: str) -> None:
        """Open a new session with a server that does not know the one that we had."""
        async with self._greeting:
            known = self._handshake
            if known.session != forgotten or known.hello is None:
                return  # another request has done it
            async with self._post({**known.hello, "id": "again"}, "") as response:
                whole = await self._connection.whole(response)
                if response.status_code != 200:
                    raise self._no_answer(whole)
                known.session = response.headers.get(SESSION_ID, "")
        await self._tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        for request in known.subscribed.values():
            with suppress(OrchestratorError):
                async with self._post({**request, "id": "again"}, known.session) as response:
                    await self._connection.whole(response)

    async def _tell(self, message: Message) -> None:
        """Send what has no answer: a notification, or the client's own answer to the server."""
        if not self._handshake.session and "method" in message:
            return  # the newer era has none over HTTP
        with suppress(ServerAway):  # whom it was for is gone
            async with self._post(message, self._handshake.session) as response:
                await self._connection.whole(response)

    async def _listen(self) -> None:
        """What a server says of itself in the older era, as long as the client is there."""
        while True:
            session = self._handshake.session
            headers = {"accept": "text/event-stream", SESSION_ID: session}
            headers["mcp-protocol-version"] = self._handshake.version
            try:
                async with self._connection.stream(
                    "GET", MCP_PATH, headers=headers, seconds=None
                ) as response:
                    if response.status_code == 405:
                        return
                    if response.status_code == 200:
                        async for frame in sse(response):
                            said = _object(frame.data.encode()) if frame.data else None
                            if said is not None:
                                await self._send(said)
                    elif response.status_code == 404:
                        await self._greet_again(session)
            except OrchestratorError as exc:
                log.info("not listening: %s", exc)
            await anyio.sleep(LATER_SECONDS)

    async def _leave(self) -> None:
        """The client has left: what it waited for is cancelled, its session ended."""
        session, url = self._handshake.session, MCP_PATH
        with anyio.move_on_after(GOODBYE_SECONDS), suppress(OrchestratorError):
            if session:
                async with anyio.create_task_group() as group:
                    for request_id in tuple(self._under_way):
                        params = {"requestId": request_id, "reason": "the client left"}
                        taken_back = {"method": "notifications/cancelled", "params": params}
                        group.start_soon(self._tell, {"jsonrpc": "2.0", **taken_back})
                headers = {SESSION_ID: session, "mcp-protocol-version": self._handshake.version}
                await self._connection.request("DELETE", url, headers=headers)
        for scope in self._under_way.values():
            scope.cancel()


def _object(body: bytes) -> Message | None:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None
