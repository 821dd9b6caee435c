"""copilot --headless behind the contract of runners: the protocol of its SDK, JSON-RPC in frames.

A conversation is a session of its own. What is said in a turn is read between two steps of it;
while the turn is being interrupted, it waits for the end of that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from orchestrator.domain.container import Launch
from orchestrator.runners.copilot.calls import asked, called
from orchestrator.runners.copilot.endings import turn_ended
from orchestrator.runners.copilot.frames import CliFrames, frame
from orchestrator.runners.json_fields import dict_of, dicts_of, id_of, int_of, name_of, text_of
from orchestrator.runners.lines import CliLine, noise
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
    ToolReturned,
)

MAX_REPLIES = 64
"""That are written at a time: any process in the container can make requests up."""

MAX_REMEMBERED = 256
"""Calls and messages of a turn that are remembered."""

TASK_ID_CHARS = 64
"""Of an id that is repeated to it."""

_OPTIONS: dict[str, object] = {
    "skipCustomInstructions": True,
    "installedPlugins": [],
    "includedBuiltinSkills": [],
    "coauthorEnabled": False,
    "manageScheduleEnabled": False,
}
"""What can only be said once a session is there."""

Remembered = TypeVar("Remembered")


class _CopilotPrompt(NamedTuple):
    text: str
    message_id: str


class _Request(NamedTuple):
    """One of ours that has no answer yet."""

    method: str
    message_id: str = ""


class CopilotDialogue:
    """One process of copilot."""

    def __init__(self, launch: Launch) -> None:
        self._terms = dict_of(launch.opening, "session")
        self._resumes = launch.opening.get("resumes") is True
        self._tools = tuple(tool for tool in _texts(launch.opening, "tools"))
        self._servers = dict.fromkeys(dict_of(self._terms, "mcpServers"), "pending")
        self._frames = CliFrames()
        self._numbers = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._replies: list[bytes] = []
        self._begun = False
        self._session = ""
        self._listening = False
        self._unsaid: list[_CopilotPrompt] = []
        self._in_turn = False
        self._announced = False
        """This turn's Ready has been told."""
        self._stopping = False
        self._error: dict[str, object] | None = None
        self._failure: dict[str, object] = {}
        self._said = ""
        self._text = ""
        """The id of the text that is being said."""
        self._messages: dict[str, str] = {}
        """What copilot calls messages of ours -> what we do."""
        self._calls: dict[str, ToolCalled] = {}
        self._questions: dict[str, PermissionAsked] = {}

    # What is written

    def begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._request("session.resume" if self._resumes else "session.create", self._terms)

    def rehearse(self) -> bytes:
        return b""

    def say(self, text: str, message_id: str = "") -> bytes:
        self._unsaid.append(_CopilotPrompt(text, message_id))
        return self.begin() + self._say_unsaid()

    def interrupt(self) -> bytes:
        if not self._session or not self._in_turn:
            return b""
        self._stopping = True
        session = {"sessionId": self._session}
        # A command that goes on in the background would keep the turn from its end.
        return self._request("session.abort", session) + self._request(
            "session.tasks.list", session
        )

    def allow(self, asked: PermissionAsked, tool_input: Mapping[str, object]) -> bytes:  # noqa: ARG002 it takes no other
        return self._answer(asked, {"kind": "approve-once"})

    def deny(self, asked: PermissionAsked, message: str) -> bytes:
        return self._answer(asked, {"kind": "reject", "feedback": message})

    def replies(self) -> bytes:
        said, self._replies = b"".join(self._replies), []
        return said

    def _answer(self, asked: PermissionAsked, result: Mapping[str, object]) -> bytes:
        if self._questions.pop(asked.request_id, None) is None:
            return b""
        return self._request(
            "session.permissions.handlePendingPermissionRequest",
            {"sessionId": self._session, "requestId": asked.request_id, "result": result},
        )

    def _say_unsaid(self) -> bytes:
        if not self._listening or self._stopping:
            return b""
        unsaid, self._unsaid = self._unsaid, []
        said = b""
        for prompt in unsaid:
            terms: dict[str, object] = {"sessionId": self._session, "prompt": prompt.text}
            if self._in_turn:
                terms["mode"] = "immediate"
            self._in_turn = True
            said += self._request("session.send", terms, prompt.message_id)
        return said

    def _request(self, method: str, params: Mapping[str, object], message_id: str = "") -> bytes:
        number = next(self._numbers)
        self._requests[number] = _Request(method, message_id)
        return frame({"jsonrpc": "2.0", "id": number, "method": method, "params": params})

    def _reply(self, said: bytes) -> None:
        if said and len(self._replies) < MAX_REPLIES:
            self._replies.append(said)

    # What is heard

    def hear(self, data: bytes) -> list[Sign]:
        return list(self._understood(self._frames.feed(data)))

    def hear_end(self) -> list[Sign]:
        return list(self._understood(self._frames.finish()))

    def _understood(self, heard: Iterable[CliLine]) -> Iterator[Sign]:
        for event, text in heard:
            if event is None:
                yield noise(text)
            elif "method" not in event:
                yield from self._on_answer(event)
            elif "id" in event:
                wrong = {"code": -32601, "message": "not supported"}
                self._reply(frame({"jsonrpc": "2.0", "id": event["id"], "error": wrong}))
            elif event["method"] == "session.event":
                params = dict_of(event, "params")
                if self._session and params.get("sessionId") == self._session:
                    happened = dict_of(params, "event")
                    yield from self._on_event(text_of(happened, "type"), dict_of(happened, "data"))

    def _on_answer(self, event: Mapping[str, object]) -> Iterator[Sign]:
        request = self._requests.pop(int_of(event, "id") or 0, None)
        if request is None:
            return
        result, wrong = dict_of(event, "result"), text_of(dict_of(event, "error"), "message")
        match request.method:
            case "session.create" | "session.resume":
                self._session = id_of(result, "sessionId")
                if not self._session:
                    yield CannotBegin(why=wrong or "copilot gave the conversation no id")
                    return
                terms = {"sessionId": self._session, **_OPTIONS}
                self._reply(self._request("session.options.update", terms))
            case "session.options.update" if wrong:
                yield CannotBegin(why=wrong)  # else instructions of the workspace would be read
            case "session.options.update":
                self._listening = True
                self._reply(self._say_unsaid())
                yield Listening(conversation=self._session)
            case "session.tasks.list":
                for task in dicts_of(result, "tasks"):
                    if task.get("status") == "running" and (number := text_of(task, "id")):
                        terms = {"sessionId": self._session, "id": number[:TASK_ID_CHARS]}
                        self._reply(self._request("session.tasks.cancel", terms))
            case "session.send" if wrong:
                self._in_turn = False
                yield turn_ended({"message": wrong}, "", aborted=False)
            case "session.send" if (named := id_of(result, "messageId")) and request.message_id:
                _remember(self._messages, named, request.message_id)

    def _on_event(self, kind: str, data: Mapping[str, object]) -> Iterator[Sign]:
        match kind:
            case "session.mcp_server_status_changed":
                self._on_server(name_of(data, "serverName"), name_of(data, "status"))
            case "session.mcp_servers_loaded":
                for server in dicts_of(data, "servers"):
                    self._on_server(name_of(server, "name"), name_of(server, "status"))
            case "user.message":
                if message_id := self._messages.pop(text_of(data, "messageId"), ""):
                    yield TakenUp(message_id=message_id)
            case "assistant.turn_start":
                yield from self._ready()
            case "assistant.message_start":
                self._text = ""
            case "assistant.message_delta":
                begins = text_of(data, "messageId") != self._text
                self._text = text_of(data, "messageId")
                yield Saying(text=text_of(data, "deltaContent"), begins=begins)
            case "assistant.message" if said := text_of(data, "content"):
                self._said = said
                yield Said(text=said)
            case "tool.execution_start":
                call = called(data)
                if call is not None and call.id not in self._calls:
                    _remember(self._calls, call.id, call)
                    yield call
            case "tool.execution_complete" if call_id := id_of(data, "toolCallId"):
                wrong = text_of(dict_of(data, "error"), "message")
                said = text_of(dict_of(data, "result"), "content")
                failed = data.get("success") is not True
                yield ToolReturned(id=call_id, text=wrong if failed else said, is_error=failed)
            case "permission.requested":
                yield from self._on_permission(data)
            case "permission.completed" if request_id := id_of(data, "requestId"):
                if self._questions.pop(request_id, None) is not None:
                    yield PermissionWithdrawn(request_id=request_id)
            case "model.call_failure":
                self._failure = dict(data)
            case "assistant.turn_retry":
                yield Retrying(
                    attempt=(int_of(self._failure, "retryAttempt") or 0) + 1,
                    status=int_of(self._failure, "statusCode"),
                    error=text_of(self._failure, "errorMessage") or text_of(data, "reason"),
                )
            case "session.error":
                self._error = dict(data)
            case "session.idle":
                yield from self._on_idle(data.get("aborted") is True)

    def _on_server(self, name: str, status: str) -> None:
        if name in self._servers:
            self._servers[name] = status or "unknown"

    def _ready(self) -> Iterator[Sign]:
        """Once in each turn."""
        if not self._announced:
            self._announced = True
            yield Ready(
                session_id=self._session,
                model=text_of(self._terms, "model"),
                tools=self._tools,
                mcp_servers=dict(self._servers),
            )

    def _on_permission(self, data: Mapping[str, object]) -> Iterator[Sign]:
        call = self._calls.get(id_of(dict_of(data, "permissionRequest"), "toolCallId"))
        question = asked(data, call)
        if question is None or len(self._questions) >= MAX_REPLIES:
            return
        self._questions[question.request_id] = question
        if call is None:
            said = ToolCalled(id=question.call_id, tool=question.tool, input=question.input)
            _remember(self._calls, said.id, said)
            yield said
        yield question

    def _on_idle(self, aborted: bool) -> Iterator[Sign]:
        if not self._in_turn:
            return
        error, self._error = self._error, None
        said, self._said = self._said, ""
        stopped = aborted or self._stopping
        self._in_turn = self._stopping = self._announced = False
        self._failure = {}
        self._calls.clear()
        self._questions.clear()
        yield turn_ended(error, said, aborted=stopped)
        self._reply(self._say_unsaid())


def _remember(book: dict[str, Remembered], key: str, value: Remembered) -> None:
    book[key] = value
    if len(book) > MAX_REMEMBERED:
        del book[next(iter(book))]


def _texts(values: Mapping[str, object], key: str) -> list[str]:
    found = values.get(key)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
