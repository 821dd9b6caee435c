"""The Agent Client Protocol, version 1, behind the contract of runners: JSON-RPC in lines.

What the protocol lacks, each CLI is told by its launch. A first text of ours stands before what is
said: a message that begins with "/" would be a command of the CLI's otherwise, and not reach the
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from orchestrator.domain.container import Launch
from orchestrator.runners.acp.calls import AcpWords, call_id, input_of, output_of, tool_of
from orchestrator.runners.acp.endings import turn_ended
from orchestrator.runners.contract import MAX_UNANSWERED
from orchestrator.runners.json_fields import (
    TEXT_CHARS,
    dict_of,
    dicts_of,
    id_of,
    text_of,
    texts_of,
)
from orchestrator.runners.lines import CliLines, is_shown_whole, line
from orchestrator.runners.rpc import Answered, RpcDialogue, RpcId, remember, request_id_of
from orchestrator.runners.signs import (
    UNKNOWN,
    CannotBegin,
    Listening,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Said,
    Saying,
    Sign,
    TakenUp,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

LEAD = "Task:"
"""The first text of a prompt."""

_CAPABILITIES = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}


class AcpManners(NamedTuple):
    """What differs between CLIs that speak it."""

    words: AcpWords
    steers: bool
    """A prompt that comes in a turn is read between two steps; otherwise it ends the turn, so it
    is kept for the next one."""
    resume_method: str
    replays: bool
    """It tells an old conversation again, also after it has answered that it has it."""
    tells_input_later: bool = False
    """It may ask about a call before it has told its input, and tells that at once. What it asks
    with is not all of it: not where a command runs."""
    authenticate: str = ""
    """The method to be named, if the CLI wants one."""


class _AcpPrompt(NamedTuple):
    """One of ours that has no answer yet."""

    messages: tuple[tuple[str, str], ...]
    """Texts, and our ids of them."""
    is_steer: bool = False


class AcpDialogue(RpcDialogue[_AcpPrompt]):
    """One process of a CLI that speaks ACP."""

    def __init__(self, launch: Launch, manners: AcpManners) -> None:
        super().__init__(CliLines(), line, {"jsonrpc": "2.0"})
        self._manners = manners
        self._opening = launch.opening
        self._servers = texts_of(launch.opening, "servers")
        self._folder = text_of(dict_of(launch.opening, "session"), "cwd")
        self._begun = False
        self._session = ""
        self._replaying = False
        self._unsaid: list[tuple[str, str]] = []
        self._stopping = False
        self._announced = False
        """This turn's Ready has been told."""
        self._text = ""
        self._said = ""
        self._ended: TurnEnded | None = None
        """The verdict, while another prompt of the turn has no answer."""
        self._calls: dict[str, ToolCalled] = {}
        self._questions: dict[str, tuple[RpcId, dict[str, str]]] = {}
        """What waits for a permission: the CLI's own id, and its options by their kinds."""
        self._unclear: dict[str, str] = {}
        """Calls that are asked about before their input is told -> the question."""

    # What is written

    def begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        client = {"name": "orchestrator", "version": "1"}
        terms = {"protocolVersion": 1, "clientCapabilities": _CAPABILITIES, "clientInfo": client}
        return self._request("initialize", terms)

    def say(self, text: str, message_id: str = "") -> bytes:
        self._unsaid.append((text, message_id))
        return self.begin() + self._say_unsaid()

    def interrupt(self) -> bytes:
        if not self._session or not self._prompts:
            return b""
        self._stopping = True
        cancelled = {"outcome": {"outcome": "cancelled"}}
        said = self._notice("session/cancel", {"sessionId": self._session})
        for rpc_id, _ in self._questions.values():
            said += self._answer_to(rpc_id, cancelled)
        self._questions.clear()
        return said

    def allow(self, asked: PermissionAsked, tool_input: Mapping[str, object]) -> bytes:  # noqa: ARG002 it takes no other
        return self._answer(asked, "allow_once")

    def deny(self, asked: PermissionAsked, message: str) -> bytes:
        refused = self._answer(asked, "reject_once")
        if not refused or not message or not self._manners.steers or self._stopping:
            return refused
        # It has no place for a reason, so that is said to the agent in the same breath.
        return refused + self._prompt(((f"{asked.tool} was refused: {message}", ""),))

    def _answer(self, asked: PermissionAsked, kind: str) -> bytes:
        rpc_id, options = self._questions.pop(asked.request_id, (None, {}))
        if rpc_id is None:
            return b""
        outcome: dict[str, object] = {"outcome": "cancelled"}
        if options.get(kind):
            outcome = {"outcome": "selected", "optionId": options[kind]}
        return self._answer_to(rpc_id, {"outcome": outcome})

    def _say_unsaid(self) -> bytes:
        """All that is to be said, if it can be now, as one prompt."""
        waits = self._stopping or (self._prompts and not self._manners.steers)
        if not self._session or self._replaying or waits or not self._unsaid:
            return b""
        messages, self._unsaid = tuple(self._unsaid), []
        return self._prompt(messages)

    def _prompt(self, messages: tuple[tuple[str, str], ...]) -> bytes:
        texts = (LEAD, *(text for text, _ in messages))
        blocks = [{"type": "text", "text": text} for text in texts]
        prompt = _AcpPrompt(messages, is_steer=bool(self._prompts))
        terms = {"sessionId": self._session, "prompt": blocks}
        return self._request("session/prompt", terms, prompt)

    @property
    def _prompts(self) -> list[_AcpPrompt]:
        """Ours that have no answer yet: while there is one, a turn is under way."""
        return [about for _, about in self._requests.values() if about is not None]

    # What is heard

    def _on_news(self, method: str, params: Mapping[str, object]) -> Iterator[Sign]:
        ours = self._session and params.get("sessionId") == self._session
        if method == "session/update" and ours:
            yield from self._on_update(dict_of(params, "update"))

    def _on_answer(self, sent: Answered[_AcpPrompt]) -> Iterator[Sign]:
        if sent.about is not None:
            yield from self._on_prompt_done(sent.about, sent.answer)
        elif sent.wrong:
            yield CannotBegin(why=sent.wrong)
        elif sent.method == "initialize" and self._manners.authenticate:
            how = {"methodId": self._manners.authenticate}
            self._then(self._request("authenticate", how))
        elif sent.method in ("initialize", "authenticate"):
            self._then(self._open())
        else:
            yield from self._on_opened(sent.method, sent.result)

    def _open(self) -> bytes:
        terms, resumed = dict_of(self._opening, "session"), text_of(self._opening, "resume")
        if resumed:
            return self._request(self._manners.resume_method, {**terms, "sessionId": resumed})
        return self._request("session/new", terms)

    def _on_opened(self, method: str, result: Mapping[str, object]) -> Iterator[Sign]:
        self._session = id_of(result, "sessionId") or text_of(self._opening, "resume")
        if not self._session:
            yield CannotBegin(why="the CLI gave the conversation no id")
            return
        self._replaying = method != "session/new" and self._manners.replays
        if not self._replaying:
            yield from self._on_listening()

    def _on_listening(self) -> Iterator[Sign]:
        self._then(self._say_unsaid())
        yield Listening(conversation=self._session)
        if self._prompts:
            yield from self._ready()

    def _ready(self, *answered: _AcpPrompt) -> Iterator[Sign]:
        """Once in each turn, of prompts that are answered or not."""
        if self._announced:
            return
        self._announced = True
        yield Ready(
            session_id=self._session,
            model=text_of(self._opening, "model"),
            tools=texts_of(self._opening, "tools"),
            mcp_servers=dict.fromkeys(self._servers, UNKNOWN),
        )
        for prompt in (*answered, *self._prompts):
            if not prompt.is_steer:
                yield from _taken_up(prompt)

    def _on_update(self, update: Mapping[str, object]) -> Iterator[Sign]:
        kind = update.get("sessionUpdate")
        if self._replaying:
            if kind == "available_commands_update":  # comes when all has been told again
                self._replaying = False
                yield from self._on_listening()
            return
        if not self._prompts or kind in ("available_commands_update", "usage_update"):
            return
        yield from self._ready()
        match kind:
            case "agent_message_chunk":
                text = text_of(dict_of(update, "content"), "text")
                yield Saying(text=text, begins=not self._text)
                self._text = (self._text + text)[:TEXT_CHARS]
            case "tool_call" | "tool_call_update":
                yield from self._on_call(update)

    def _on_call(self, update: Mapping[str, object]) -> Iterator[Sign]:
        yield from self._whole_text()
        number, status = call_id(update), update.get("status")
        known = self._calls.get(number)
        if not number:
            return
        if known is None or (not known.input and "rawInput" in update):
            given = input_of(update, self._folder)
            known = self._remember(number, update, known, given)
            if given or status != "pending":
                yield known
        request_id = "" if status == "pending" else self._unclear.pop(number, "")
        if request_id in self._questions:
            yield _question(request_id, known)
        if status in ("completed", "failed"):
            yield ToolReturned(id=number, text=output_of(update), is_error=status == "failed")

    def _remember(
        self,
        number: str,
        said: Mapping[str, object],
        known: ToolCalled | None,
        given: dict[str, object],
    ) -> ToolCalled:
        tool = known.tool if known else tool_of(said, self._manners.words, self._servers)
        call = ToolCalled(id=number, tool=tool, input=given)
        remember(self._calls, number, call)
        return call

    def _on_question(
        self, rpc_id: RpcId, method: str, params: Mapping[str, object]
    ) -> Iterator[Sign]:
        said = dict_of(params, "toolCall")
        number = call_id(said)
        if len(self._questions) >= MAX_UNANSWERED:
            return
        if method != "session/request_permission" or not number or not self._prompts:
            self._refuse(rpc_id)
            return
        yield from self._ready()
        yield from self._whole_text()
        request_id = request_id_of(rpc_id)
        options = {
            id_of(option, "kind"): id_of(option, "optionId")
            for option in dicts_of(params, "options")
        }
        self._questions[request_id] = (rpc_id, options)
        known = self._calls.get(number)
        given = known.input if known else {}
        if not given and self._manners.tells_input_later:
            self._unclear[number] = request_id
            return
        given = given or input_of(said, self._folder)
        if known is None or not known.input:
            known = self._remember(number, said, known, given)
            yield known
        yield _question(request_id, known)

    def _whole_text(self) -> Iterator[Sign]:
        if self._text:
            self._said, self._text = self._text, ""
            yield Said(text=self._said)

    def _on_prompt_done(self, prompt: _AcpPrompt, answer: Mapping[str, object]) -> Iterator[Sign]:
        yield from self._ready(prompt)  # its turn may be over before the CLI has said anything
        yield from self._whole_text()
        ended = turn_ended(answer, self._said)
        if prompt.is_steer and ended.reason == "ok":
            yield from _taken_up(prompt)
        elif prompt.is_steer:
            self._unsaid[:0] = [each for each in prompt.messages if each[1]]
        if self._ended is None or self._ended.reason == "ok":
            self._ended = ended
        if self._prompts:
            return
        ended, self._ended = self._ended, None
        self._stopping = self._announced = False
        self._said = ""
        self._calls.clear()
        self._unclear.clear()
        for request_id in list(self._questions):
            del self._questions[request_id]
            yield PermissionWithdrawn(request_id=request_id)
        yield ended
        self._then(self._say_unsaid())


def _question(request_id: str, call: ToolCalled) -> PermissionAsked:
    return PermissionAsked(
        request_id=request_id,
        call_id=call.id,
        tool=call.tool,
        input=call.input,
        is_whole=is_shown_whole(call.input, call.input),
    )


def _taken_up(prompt: _AcpPrompt) -> Iterator[Sign]:
    for _, message_id in prompt.messages:
        if message_id:
            yield TakenUp(message_id=message_id)
