"""The parent service: an MCP server through which an agent asks its caller.

Streamable HTTP, by hand: one POST, one answer (decisions/0012). A request belongs to the run whose
wire it came through; nothing in it that names a run is believed. A question waits for as long as it
takes; meanwhile the answer is a stream of events that says now and then that it is still there,
since claude takes a connection on which nothing comes for a broken one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio
import anyio.abc

from orchestrator import __version__
from orchestrator.errors import OrchestratorError
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
    MAX_MESSAGE_BYTES,
    UNKNOWN_METHOD,
    RpcObject,
    event,
    object_at,
    progress,
    read_message,
    reply,
    request_key,
    rpc_error,
    rpc_result,
    text_result,
)

log = logging.getLogger(__name__)

PARENT_PATH = "/mcp"

MESSAGE_ROOM_BYTES = 16 * MAX_MESSAGE_BYTES
"""All messages that are held at once."""

QUESTION_CHARS = 16_000
"""A question, or the answer to use when the caller gives none."""

SUMMARY_CHARS = 2_000
STATUS_CHARS = 100

MAX_WAITING = 16
"""Questions of one container that wait at the same time."""

MAX_TOLD = 1000
"""Status reports of one run that are passed on. The agent is told when there are more."""

ALIVE_SECONDS = 15.0
"""Between two signs that a question still waits."""

Ask = Callable[[str, str | None], Awaitable[str]]
"""A question and the answer to use when there is none in time -> the answer."""

Delegate = Callable[[str, str, str], Awaitable[str]]
"""An agent's name, a task, and what it should know besides -> the answer."""

Tell = Callable[[str, str], None]
"""A summary of what is being done, and a word for its status, which may be empty."""

ASK_PARENT = {
    "name": "ask_parent",
    "title": "Ask the parent",
    "description": (
        "Ask the caller who gave you this task, and wait for the answer. For what only they can "
        "know or decide; put all that they need into the question. They may take minutes or longer."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "question": {"type": "string", "maxLength": QUESTION_CHARS},
            "default_answer": {
                "type": "string",
                "maxLength": QUESTION_CHARS,
                "description": "What you will go by if no answer comes in time.",
            },
        },
        "required": ["question"],
    },
    "annotations": {"readOnlyHint": True},  # else claude asks one question after the other
}
UPDATE_STATUS = {
    "name": "update_status",
    "title": "Report progress",
    "description": "Tell the caller who gave you this task how far you are. Does not wait.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "summary": {"type": "string", "maxLength": SUMMARY_CHARS},
            "status": {
                "type": "string",
                "maxLength": STATUS_CHARS,
                "description": "One word, such as working or blocked.",
            },
        },
        "required": ["summary"],
    },
}

RUN_SUBAGENT = {
    "name": "run_subagent",
    "title": "Run a subagent",
    "description": "Hand a task to another agent, and wait for its answer.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "agent_name": {"type": "string", "maxLength": STATUS_CHARS},
            "prompt": {"type": "string", "maxLength": QUESTION_CHARS},
            "context": {"type": "string", "maxLength": QUESTION_CHARS},
        },
        "required": ["agent_name", "prompt"],
    },
}

TOOLS = (ASK_PARENT, UPDATE_STATUS, RUN_SUBAGENT)


class ParentAccess:
    """One container's way to the caller of the run that it is bound to.

    The server itself is always there, so that a CLI that was started early finds it.
    """

    def __init__(
        self,
        ask: Ask | None = None,
        tell: Tell | None = None,
        *,
        tools: Sequence[str] = ("ask_parent", "update_status"),
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._delegate: Delegate | None = None
        self._tools = tuple(tools)
        self._told = 0
        self._waiting: set[_Question] = set()
        self._room = BodyRoom(MESSAGE_ROOM_BYTES)

    def bind(self, ask: Ask, tell: Tell, delegate: Delegate | None = None) -> None:
        """From now on questions and reports are this run's."""
        self._ask, self._tell, self._delegate, self._told = ask, tell, delegate, 0

    def revoke(self) -> None:
        """The run has ended: give up the questions that wait, and tell the agent so."""
        self._ask = self._tell = self._delegate = None
        for question in self._waiting:
            question.give_up()

    async def service(self, stream: ByteStream) -> None:
        """Answer a connection: `container.listen(PARENT_PORT, "parent", access.service)`."""
        async with anyio.create_task_group() as tasks:
            await serve_http(stream, partial(self._answer, tasks), self._room)
            tasks.cancel_scope.cancel()

    async def _answer(self, tasks: anyio.abc.TaskGroup, request: HttpRequest) -> HttpResponse:
        if request.header("origin"):
            return plain_response(403, "no page of a browser has business here")
        if request.path != PARENT_PATH:
            return plain_response(404, f"the parent is at {PARENT_PATH}")
        if request.method == "DELETE":
            return HttpResponse(200)  # a session is nothing that we keep
        if request.method != "POST":
            return plain_response(405, "POST one message; nothing is sent unasked")
        message = read_message(request.body)
        if isinstance(message, HttpResponse):
            return message
        method, number, params = message
        if number is None:
            if method == "notifications/cancelled":
                self._cancel(request_key(request, params.get("requestId")))
            return HttpResponse(202)
        if method == "tools/call":
            return self._call(tasks, request, number, params)
        if method == "initialize":
            session = ("mcp-session-id", secrets.token_hex(16))
            return rpc_result(number, _introduction(params), session)
        if method == "tools/list":
            return rpc_result(
                number, {"tools": [tool for tool in TOOLS if tool["name"] in self._tools]}
            )
        if method == "ping":
            return rpc_result(number, {})
        # Also of server/discover: a newer client takes it for "say initialize, then".
        return rpc_error(number, UNKNOWN_METHOD, f"there is no method {method[:100]!r} here")

    def _call(
        self,
        tasks: anyio.abc.TaskGroup,
        request: HttpRequest,
        number: int | str,
        params: RpcObject,
    ) -> HttpResponse:
        name, arguments = params.get("name"), object_at(params, "arguments")
        if name not in self._tools:
            there = " and ".join(self._tools) or "none"
            return rpc_error(number, INVALID_PARAMS, f"there is no such tool; there are {there}")
        try:
            if name == "update_status":
                return rpc_result(number, text_result(self._report(arguments)))
            waits = self._errand if name == "run_subagent" else self._question
            question = waits(arguments, request_key(request, number))
        except _Unusable as exc:
            return rpc_result(number, text_result(str(exc), is_error=True))
        self._waiting.add(question)
        tasks.start_soon(question.ask)
        body = _events(question, number, object_at(params, "_meta").get("progressToken"))
        return HttpResponse(200, EVENT_STREAM, body, partial(self._let_go, question))

    def _report(self, arguments: Mapping[str, object]) -> str:
        summary = _argument(arguments, "summary", SUMMARY_CHARS)
        status = _argument(arguments, "status", STATUS_CHARS, optional=True)
        if self._tell is None:
            raise _Unusable(NOBODY)
        self._told += 1
        if self._told > MAX_TOLD:
            raise _Unusable(
                f"{MAX_TOLD} reports were passed on, which is the most; go on without reporting"
            )
        self._tell(summary, status)
        return "reported"

    def _question(self, arguments: Mapping[str, object], key: tuple[str, object]) -> _Question:
        text = _argument(arguments, "question", QUESTION_CHARS)
        default = _argument(arguments, "default_answer", QUESTION_CHARS, optional=True)
        if self._ask is None:
            raise _Unusable(NOBODY)
        if len(self._waiting) >= MAX_WAITING:
            raise _Unusable(f"{MAX_WAITING} questions wait already; let one be answered first")
        return _Question(key, partial(self._ask, text, default or None))

    def _errand(self, arguments: Mapping[str, object], key: tuple[str, object]) -> _Question:
        agent = _argument(arguments, "agent_name", STATUS_CHARS)
        prompt = _argument(arguments, "prompt", QUESTION_CHARS)
        context = _argument(arguments, "context", QUESTION_CHARS, optional=True)
        if self._delegate is None:
            raise _Unusable(NOBODY)
        if len(self._waiting) >= MAX_WAITING:
            raise _Unusable(f"{MAX_WAITING} wait already; let one of them end first")
        return _Question(key, partial(self._delegate, agent, prompt, context))

    async def _let_go(self, question: _Question) -> None:
        question.give_up()  # the client may have hung up
        self._waiting.discard(question)

    def _cancel(self, key: tuple[str, object]) -> None:
        for question in self._waiting:
            if question.key == key:
                question.give_up()


NOBODY = "no run is there to tell: it has ended, or has not begun"


class _Unusable(Exception):
    """A call that cannot be done as it stands; the agent is told why."""


class _Question:
    """One that waits for its answer."""

    def __init__(self, key: tuple[str, object], ask: Callable[[], Awaitable[str]]) -> None:
        self.key = key
        self.settled = anyio.Event()
        self.result: RpcObject = text_result(
            "the question was withdrawn before it was answered", is_error=True
        )
        self._ask = ask
        self._asking = anyio.CancelScope()

    async def ask(self) -> None:
        with self._asking:
            try:
                self.result = text_result(await self._ask())
            except OrchestratorError as exc:
                self.result = text_result(str(exc), is_error=True)
            except Exception as exc:  # noqa: BLE001 whatever it is, the agent gets an answer
                log.error("a question could not be asked: %s", type(exc).__name__)  # noqa: TRY400
                why = "the question could not be asked; go on without an answer"
                self.result = text_result(why, is_error=True)
        self.settled.set()

    def give_up(self) -> None:
        self._asking.cancel()


async def _events(question: _Question, number: int | str, token: object) -> AsyncIterator[bytes]:
    beats = 0
    while not question.settled.is_set():
        beats += 1
        yield progress(token, beats, text="waiting for the answer")
        with anyio.move_on_after(ALIVE_SECONDS):
            await question.settled.wait()
    yield event(reply(number, question.result))


def _introduction(params: Mapping[str, object]) -> RpcObject:
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "parent", "version": __version__},
    }


def _argument(
    arguments: Mapping[str, object], name: str, most: int, *, optional: bool = False
) -> str:
    value = arguments.get(name)
    if value is None and optional:
        return ""
    if not isinstance(value, str) or not (optional or value.strip()):
        raise _Unusable(f"{name} must be a text" + ("" if optional else ", and not an empty one"))
    if len(value) > most:
        raise _Unusable(f"{name} has {len(value)} characters, and at most {most} are taken")
    return value.encode(errors="replace").decode()  # half a character is none
