"""codex app-server behind the contract of runners: JSON-RPC in lines, without its version.

A conversation is a thread, a run's turn a turn of it. What is said in a turn steers it; what comes
too late for that, or while it is being interrupted, begins the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from orchestrator.domain.container import Launch
from orchestrator.runners.codex.calls import called, command_of, returned
from orchestrator.runners.codex.endings import turn_ended
from orchestrator.runners.contract import MAX_UNANSWERED
from orchestrator.runners.json_fields import dict_of, id_of, name_of, text_of, texts_of
from orchestrator.runners.lines import CliLines, is_shown_whole, line
from orchestrator.runners.rpc import Answered, RpcDialogue, RpcId, remember, request_id_of
from orchestrator.runners.rule_names import server_prefix
from orchestrator.runners.signs import (
    CannotBegin,
    Listening,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Retrying,
    Said,
    Saying,
    Sign,
    TakenUp,
    ToolCalled,
    TurnEnded,
)

_ASKED_TOOL = re.compile(r'Allow .* to run tool "(.*)"\?', re.DOTALL)
"""The only place where it names the tool of an MCP server that it asks about."""


class _Message(NamedTuple):
    text: str
    message_id: str = ""
    refusal: bytes = b""
    """It says why a call is refused, and this refuses it once codex has taken the reason up."""


class _Pending(NamedTuple):
    """A request of codex's that has no answer yet."""

    rpc_id: RpcId
    kind: Literal["command", "elicitation"]


class CodexDialogue(RpcDialogue[_Message]):
    """One process of codex app-server."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(CliLines(), line, {})
        self._opening = launch.opening
        self._model = text_of(dict_of(launch.opening, "thread"), "model")
        servers = dict_of(dict_of(dict_of(launch.opening, "thread"), "config"), "mcp_servers")
        self._servers = dict.fromkeys(servers, "starting")
        self._questions: dict[str, _Pending] = {}
        self._calls: dict[str, ToolCalled] = {}
        self._begun = False
        self._thread = ""
        self._turn = ""
        """The turn that is under way, once codex has named it."""
        self._starting = False
        """One was begun that it has not named yet."""
        self._ending = False
        """The turn cannot be steered any more: it is being interrupted, or over."""
        self._stop_wanted = False
        self._unsaid: list[_Message] = []
        self._said = ""
        self._text_item = ""
        self._announced = True
        """This turn's Ready has been told."""

    # What is written

    def begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        client = {"name": "orchestrator", "version": "1"}
        terms = {"clientInfo": client, "capabilities": {"experimentalApi": True}}
        return self._request("initialize", terms)

    def say(self, text: str, message_id: str = "") -> bytes:
        self._unsaid.append(_Message(text, message_id))
        return self.begin() + self._say_unsaid()

    def interrupt(self) -> bytes:
        if self._turn:
            self._ending = True
            return self._request("turn/interrupt", self._of_turn("turnId"))
        self._stop_wanted = self._starting
        return b""

    def allow(self, asked: PermissionAsked, tool_input: Mapping[str, object]) -> bytes:  # noqa: ARG002 it takes no other
        return self._answer(asked, "accept")

    def deny(self, asked: PermissionAsked, message: str) -> bytes:
        declined = self._answer(asked, "decline")
        if not declined or not message or not self._turn or self._ending:
            return declined
        # It has no place for a reason, so that is said to the agent; and before the refusal, or it
        # would come in the middle of the request that follows, which then is broken off.
        return self._steer(_Message(f"{asked.tool} was refused: {message}", refusal=declined))

    def _answer(self, asked: PermissionAsked, word: str) -> bytes:
        question = self._questions.pop(asked.request_id, None)
        if question is None:
            return b""
        result: dict[str, object] = {"decision": word}
        if question.kind == "elicitation":
            result = {"action": word, "content": {}}
        return self._answer_to(question.rpc_id, result)

    def _say_unsaid(self) -> bytes:
        """Begin a turn with what is to be said, or steer the one that is under way."""
        if not self._thread or self._starting or self._ending:
            return b""
        if self._turn:
            waiting, self._unsaid = self._unsaid, []
            return b"".join(map(self._steer, waiting))
        if not self._unsaid:
            return b""
        first = self._unsaid.pop(0)
        self._starting = True
        return self._request("turn/start", {"threadId": self._thread, **_input(first)}, first)

    def _steer(self, message: _Message) -> bytes:
        terms = self._of_turn("expectedTurnId") | _input(message)
        return self._request("turn/steer", terms, message)

    def _of_turn(self, key: str) -> dict[str, object]:
        return {"threadId": self._thread, key: self._turn}

    # What is heard

    def _on_answer(self, sent: Answered[_Message]) -> Iterator[Sign]:
        result, wrong, message = sent.result, sent.wrong, sent.about
        match sent.method:
            case "initialize" if not wrong:
                thread, resumed = dict_of(self._opening, "thread"), text_of(self._opening, "resume")
                terms = {**thread, "threadId": resumed, "excludeTurns": True} if resumed else thread
                method = "thread/resume" if resumed else "thread/start"
                self._then(self._notice("initialized"), self._request(method, terms))
            case "thread/start" | "thread/resume" if thread_id := id_of(
                dict_of(result, "thread"), "id"
            ):
                self._thread = thread_id
                self._then(self._say_unsaid())
                yield Listening(conversation=thread_id)
            case "initialize" | "thread/start" | "thread/resume":
                yield CannotBegin(why=wrong or "codex gave the conversation no id")
            case "turn/start":
                yield from self._on_started(id_of(dict_of(result, "turn"), "id"), wrong)
            case "turn/steer" if message is not None and message.refusal:
                self._then(message.refusal)
            case "turn/steer" if message is not None and wrong:
                self._unsaid.insert(0, message)
                self._ending = bool(self._turn)
                self._then(self._say_unsaid())

    def _on_started(self, turn: str, wrong: str) -> Iterator[Sign]:
        self._starting = False
        if not turn:
            yield TurnEnded(reason="cli_crashed", text=wrong or "codex did not begin the turn")
            return
        self._turn, self._ending = turn, self._stop_wanted
        if self._stop_wanted:
            self._then(self._request("turn/interrupt", self._of_turn("turnId")))
        self._stop_wanted = False
        self._then(self._say_unsaid())

    def _on_question(
        self, rpc_id: RpcId, method: str, params: Mapping[str, object]
    ) -> Iterator[Sign]:
        if len(self._questions) >= MAX_UNANSWERED:
            return
        request_id = request_id_of(rpc_id)
        asked: PermissionAsked | None = None
        kind: Literal["command", "elicitation"] = "command"
        match method:
            case "item/commandExecution/requestApproval":
                asked = self._command_asked(request_id, params)
            case "item/fileChange/requestApproval":
                asked = self._call_asked(request_id, self._calls.get(id_of(params, "itemId")))
            case "mcpServer/elicitation/request":
                kind = "elicitation"
                asked = self._call_asked(request_id, self._tool_call(params))
        if asked is None:
            declined = {"action": "decline", "content": {}}
            self._refuse(rpc_id, declined if kind == "elicitation" else None)
            return
        self._questions[request_id] = _Pending(rpc_id, kind)
        yield asked

    def _command_asked(
        self, request_id: str, params: Mapping[str, object]
    ) -> PermissionAsked | None:
        if not (item := id_of(params, "itemId")):
            return None
        given: dict[str, object] = {"command": command_of(params)}
        place = text_of(params, "cwd")
        if place not in ("", text_of(dict_of(self._opening, "thread"), "cwd")):
            given["cwd"] = place  # the model can have it run anywhere
        if params.get("kind") == "writeStdin":
            given["into_a_running_command"] = True
        return PermissionAsked(
            request_id=request_id,
            call_id=item,
            tool="Bash",
            input=given,
            is_whole=isinstance(params.get("command"), str) and is_shown_whole(given, given),
        )

    def _call_asked(self, request_id: str, call: ToolCalled | None) -> PermissionAsked | None:
        if call is None:
            return None
        return PermissionAsked(
            request_id=request_id,
            call_id=call.id,
            tool=call.tool,
            input=call.input,
            is_whole=is_shown_whole(call.input, call.input),
        )

    def _tool_call(self, params: Mapping[str, object]) -> ToolCalled | None:
        """The call of an MCP tool that is asked about: of its server, with its arguments, and of
        the tool that the question names. None if it may be either of two tools.
        """
        meta = dict_of(params, "_meta")
        if meta.get("codex_approval_kind") != "mcp_tool_call":
            return None  # the server itself asks for something
        prefix = f"{server_prefix(text_of(params, 'serverName'))}__"
        given = dict_of(meta, "tool_params")
        alike = [
            call
            for call in self._calls.values()
            if call.tool.startswith(prefix) and call.input == given
        ]
        named = _ASKED_TOOL.fullmatch(text_of(params, "message"))
        meant = [call for call in alike if named and call.tool == prefix + named[1]]
        if not meant and len({call.tool for call in alike}) == 1:
            meant = alike
        return meant[-1] if meant else None

    def _on_news(self, method: str, params: Mapping[str, object]) -> Iterator[Sign]:
        if method == "mcpServer/startupStatus/updated":
            yield from self._on_server(name_of(params, "name"), text_of(params, "status"))
            return
        if not self._thread or params.get("threadId") != self._thread:
            return
        item = dict_of(params, "item")
        match method:
            case "turn/started":
                self._said, self._announced = "", False
                self._calls.clear()
                yield from self._ready(now="starting" not in self._servers.values())
            case "item/started":
                yield from self._on_item(item, id_of(item, "id"))
            case "item/completed":
                yield from self._on_item_done(item, id_of(item, "id"))
            case "item/agentMessage/delta":
                begins = id_of(params, "itemId") != self._text_item
                self._text_item = id_of(params, "itemId")
                yield Saying(text=text_of(params, "delta"), begins=begins)
            case "serverRequest/resolved":
                request_id = request_id_of(params.get("requestId"))
                if self._questions.pop(request_id, None):
                    yield PermissionWithdrawn(request_id=request_id)
            case "error" if params.get("willRetry") is True:
                yield Retrying(error=text_of(dict_of(params, "error"), "message"))
            case "turn/completed":
                yield from self._on_completed(dict_of(params, "turn"))

    def _on_server(self, name: str, status: str) -> Iterator[Sign]:
        if name in self._servers:
            self._servers[name] = "connected" if status == "ready" else status
            yield from self._ready(now="starting" not in self._servers.values())

    def _ready(self, *, now: bool) -> Iterator[Sign]:
        """Once in each turn, when it is known which servers are there."""
        if now and not self._announced:
            self._announced = True
            yield Ready(
                session_id=self._thread,
                model=self._model,
                tools=texts_of(self._opening, "tools"),
                mcp_servers={self._own_name(name): said for name, said in self._servers.items()},
            )

    def _own_name(self, server: str) -> str:
        """As agent.md calls it."""
        return text_of(dict_of(self._opening, "servers"), server) or server

    def _on_item(self, item: Mapping[str, object], item_id: str) -> Iterator[Sign]:
        if item.get("type") == "userMessage":
            if message_id := id_of(item, "clientId"):
                yield TakenUp(message_id=message_id)
            return
        yield from self._ready(now=True)
        call = called(item, item_id) if item_id else None
        if call is not None:
            remember(self._calls, item_id, call)
            yield call

    def _on_item_done(self, item: Mapping[str, object], item_id: str) -> Iterator[Sign]:
        if item.get("type") == "agentMessage":
            self._said = text_of(item, "text")
            yield Said(text=self._said)
        elif item_id and (done := returned(item, item_id)):
            self._calls.pop(item_id, None)  # nothing is asked about it any more
            yield done

    def _on_completed(self, turn: Mapping[str, object]) -> Iterator[Sign]:
        if id_of(turn, "id") != self._turn:
            return
        yield from self._ready(now=True)
        self._turn, self._starting, self._ending, self._stop_wanted = "", False, False, False
        ended = turn_ended(turn, self._said)
        if ended.interrupted:  # it leaves running what the turn ran
            here = {"threadId": self._thread}
            self._then(self._request("thread/backgroundTerminals/clean", here))
        self._then(self._say_unsaid())
        yield ended


def _input(message: _Message) -> dict[str, object]:
    said: dict[str, object] = {"input": [{"type": "text", "text": message.text}]}
    return said | ({"clientUserMessageId": message.message_id} if message.message_id else {})
