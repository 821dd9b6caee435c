"""copilot --headless behind the contract of runners: the protocol of its SDK, JSON-RPC in frames.

A conversation is a session of its own. What is said in a turn is read between two steps of it;
while the turn is being interrupted, it waits for the end of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from orchestrator.domain.container import Launch
from orchestrator.runners.contract import MAX_UNANSWERED
from orchestrator.runners.copilot.calls import asked, called
from orchestrator.runners.copilot.endings import turn_ended
from orchestrator.runners.copilot.frames import CliFrames, frame
from orchestrator.runners.json_fields import (
    dict_of,
    dicts_of,
    id_of,
    int_of,
    name_of,
    text_of,
    texts_of,
)
from orchestrator.runners.rpc import Answered, RpcDialogue, remember
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

_OPTIONS: dict[str, object] = {
    "skipCustomInstructions": True,
    "installedPlugins": [],
    "includedBuiltinSkills": [],
    "coauthorEnabled": False,
    "manageScheduleEnabled": False,
}
"""What can only be said once a session is there."""


class _CopilotPrompt(NamedTuple):
    text: str
    message_id: str
    steers: bool = False
    """It was sent in a turn."""


class CopilotDialogue(RpcDialogue[_CopilotPrompt]):
    """One process of copilot."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(CliFrames(), frame, {"jsonrpc": "2.0"})
        self._terms = dict_of(launch.opening, "session")
        self._resumes = launch.opening.get("resumes") is True
        self._tools = texts_of(launch.opening, "tools")
        self._servers = dict.fromkeys(dict_of(self._terms, "mcpServers"), "pending")
        self._begun = False
        self._session = ""
        self._listening = False
        self._unsaid: list[_CopilotPrompt] = []
        self._in_turn = False
        self._announced = False
        """This turn's Ready has been told."""
        self._stopping = False
        """The turn is being interrupted."""
        self._stop_wanted = False
        """It will be, once copilot has taken up what was said: before that, it passes an abort over
        and begins the turn all the same."""
        self._error: dict[str, object] | None = None
        self._failure: dict[str, object] = {}
        self._said = ""
        self._text = ""
        """The id of the text that is being said."""
        self._sent: dict[str, _CopilotPrompt] = {}
        """What copilot has, and has not taken up, by what it calls it."""
        self._taken_early: dict[str, bool] = {}
        """Taken up before it was said what they are called."""
        self._calls: dict[str, ToolCalled] = {}
        self._questions: dict[str, PermissionAsked] = {}

    # What is written

    def begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._request("session.resume" if self._resumes else "session.create", self._terms)

    def say(self, text: str, message_id: str = "") -> bytes:
        self._unsaid.append(_CopilotPrompt(text, message_id))
        return self.begin() + self._say_unsaid()

    def interrupt(self) -> bytes:
        if not self._session or not self._in_turn:
            return b""
        self._stopping = True
        self._stop_wanted = self._is_sending
        return b"" if self._stop_wanted else self._abort()

    @property
    def _is_sending(self) -> bool:
        """Something was said that copilot has not answered that it has it."""
        return any(method == "session.send" for method, _ in self._requests.values())

    def _abort(self) -> bytes:
        session = {"sessionId": self._session}
        # A command that goes on in the background would keep the turn from its end.
        return self._request("session.abort", session) + self._request(
            "session.tasks.list", session
        )

    def allow(self, asked: PermissionAsked, tool_input: Mapping[str, object]) -> bytes:  # noqa: ARG002 it takes no other
        return self._answer(asked, {"kind": "approve-once"})

    def deny(self, asked: PermissionAsked, message: str) -> bytes:
        return self._answer(asked, {"kind": "reject", "feedback": message})

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
            sent = prompt._replace(steers=self._in_turn)
            said += self._request("session.send", terms, sent)
            self._in_turn = True
        return said

    # What is heard

    def _on_news(self, method: str, params: Mapping[str, object]) -> Iterator[Sign]:
        ours = self._session and params.get("sessionId") == self._session
        if method == "session.event" and ours:
            happened = dict_of(params, "event")
            yield from self._on_event(text_of(happened, "type"), dict_of(happened, "data"))

    def _on_answer(self, sent: Answered[_CopilotPrompt]) -> Iterator[Sign]:
        result, wrong = sent.result, sent.wrong
        match sent.method:
            case "session.create" | "session.resume":
                self._session = id_of(result, "sessionId")
                if not self._session:
                    yield CannotBegin(why=wrong or "copilot gave the conversation no id")
                    return
                terms = {"sessionId": self._session, **_OPTIONS}
                self._then(self._request("session.options.update", terms))
            case "session.options.update" if wrong:
                yield CannotBegin(why=wrong)  # else instructions of the workspace would be read
            case "session.options.update":
                self._listening = True
                self._then(self._say_unsaid())
                yield Listening(conversation=self._session)
            case "session.tasks.list":
                for task in dicts_of(result, "tasks"):
                    if task.get("status") == "running" and (number := id_of(task, "id")):
                        terms = {"sessionId": self._session, "id": number}
                        self._then(self._request("session.tasks.cancel", terms))
            case "session.send":
                yield from self._on_sent(sent.about, id_of(result, "messageId"), wrong)

    def _on_sent(self, prompt: _CopilotPrompt | None, named: str, wrong: str) -> Iterator[Sign]:
        if prompt is None:
            return
        if wrong and prompt.steers:
            self._unsaid.insert(0, prompt)  # for the next turn
        elif wrong:
            self._in_turn = self._stopping = self._stop_wanted = False
            yield turn_ended({"message": wrong}, "", aborted=False)
            self._then(self._say_unsaid())
        elif self._taken_early.pop(named, False):
            yield from _taken_up(prompt)
        elif named:
            remember(self._sent, named, prompt)
        if self._stop_wanted and not self._is_sending:
            self._stop_wanted = False
            self._then(self._abort())

    def _on_event(self, kind: str, data: Mapping[str, object]) -> Iterator[Sign]:
        match kind:
            case "session.mcp_server_status_changed":
                self._on_server(name_of(data, "serverName"), name_of(data, "status"))
            case "session.mcp_servers_loaded":
                for server in dicts_of(data, "servers"):
                    self._on_server(name_of(server, "name"), name_of(server, "status"))
            case "user.message":
                yield from self._on_taken_up(id_of(data, "messageId"))
            case "assistant.turn_start":
                yield from self._ready()
            case "assistant.message_start":
                self._text = ""
            case "assistant.message_delta":
                begins = id_of(data, "messageId") != self._text
                self._text = id_of(data, "messageId")
                yield Saying(text=text_of(data, "deltaContent"), begins=begins)
            case "assistant.message" if said := text_of(data, "content"):
                self._said = said
                yield Said(text=said)
            case "tool.execution_start":
                call = called(data)
                if call is not None and call.id not in self._calls:
                    remember(self._calls, call.id, call)
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

    def _on_taken_up(self, named: str) -> Iterator[Sign]:
        if prompt := self._sent.pop(named, None):
            yield from _taken_up(prompt)
        elif named and self._is_sending:
            remember(self._taken_early, named, True)

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
        if question is None or len(self._questions) >= MAX_UNANSWERED:
            return
        self._questions[question.request_id] = question
        if call is None:
            said = ToolCalled(id=question.call_id, tool=question.tool, input=question.input)
            remember(self._calls, said.id, said)
            yield said
        yield question

    def _on_idle(self, aborted: bool) -> Iterator[Sign]:
        if not self._in_turn:
            return
        error, self._error = self._error, None
        said, self._said = self._said, ""
        stopped = aborted or self._stopping
        self._stopping = self._stop_wanted = self._announced = False
        if aborted:  # it forgets what it had not taken up
            self._unsaid[:0] = self._sent.values()
            self._sent.clear()
        # What came too late for this turn begins the next one.
        self._in_turn = self._is_sending or bool(self._sent)
        self._failure = {}
        self._calls.clear()
        self._questions.clear()
        yield turn_ended(error, said, aborted=stopped)
        self._then(self._say_unsaid())


def _taken_up(prompt: _CopilotPrompt) -> Iterator[Sign]:
    if prompt.message_id:
        yield TakenUp(message_id=prompt.message_id)
