"""One container's way to servers of tools: every call is decided here, written down, and only then
made. Nothing that a request says of who makes it is believed: it is the run whose wire it came
through.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import anyio
from pydantic import JsonValue

from orchestrator import tool_rules
from orchestrator.domain import Frozen
from orchestrator.domain.exchange import Approval
from orchestrator.domain.tool_lock import Brokered, JsonMap
from orchestrator.errors import CallerRefused, OrchestratorError
from orchestrator.gateway.doorway import Decided, undecided
from orchestrator.gateway.parent import Ask
from orchestrator.gateway.rpc import RpcObject, text_result
from orchestrator.gateway.tools.patience import AtWork, CallPatience, Company
from orchestrator.gateway.tools.pool import (
    CallFailed,
    Drift,
    Elicit,
    OnProgress,
    ServerPool,
    Sharers,
    WantedServer,
)
from orchestrator.gateway.tools.questions import DECLINE, answer_of, question_of
from orchestrator.gateway.tools.results import (
    PROGRESS_CHARS,
    ShownAnswer,
    one_line,
    shown_result,
    with_file,
)
from orchestrator.gateway.tools.verdicts import verdict_on
from orchestrator.runners.json_fields import dicts_of
from orchestrator.tool_rules import ToolVerdict, What

if TYPE_CHECKING:
    from orchestrator.gateway.tools.live_server import LiveServer

log = logging.getLogger(__name__)

MAX_AT_ONCE = 16
"""Calls of one container that wait for an answer at the same time."""

TOLD_CHARS = 200
"""Of the name of what was called."""

WHY_CHARS = 500
"""Of what a server says about why it failed, in the record."""

NO_RUN = "no run is there to call this for: it has ended, or has not begun"

Approve = Callable[[str, str, dict[str, object]], Awaitable[Approval]]
"""An id, a tool and its arguments -> whether the caller or a person allows it."""

Spill = Callable[[str, bytes], Awaitable[str]]
"""A path in the agent's container and what to write there -> what went wrong, or ""."""


class ToolSeen(Frozen):
    """One call that has ended, or was refused."""

    server: str
    tool: str
    direct: bool
    """It did not come from the agent's CLI, as far as can be told."""
    allowed: bool
    code: str = ""
    rule: str = ""
    why: str = ""
    is_error: bool = False
    bytes: int = 0
    """Of the answer's text."""
    duration_ms: int = 0
    transport: Literal["pipe", "tcp"] = "pipe"
    """The server's: a container of ours, or a URL."""
    protocol: str = ""
    """That it speaks; "" if it was not asked."""


class OnTools(Protocol):
    """Tells the run's record what passed."""

    def called(self, seen: ToolSeen) -> None: ...
    def drifted(self, server: str, changed: Sequence[str], new: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class RunTools:
    """What calls of one run need of it."""

    run_id: str
    pool: ServerPool
    scopes: Mapping[str, Sharers]
    """Who shares an instance of each server."""
    on_tools: OnTools
    approve: Approve
    ask: Ask | None
    """None if the agent may not ask."""
    cleaned: Callable[[object], Awaitable[object]]
    """A JSON value without what is secret."""
    spill: Spill
    know: Callable[[Sequence[str]], None]
    """From now on, these are not to be seen."""
    decided: Decided = undecided
    at_work: AtWork = nullcontext


class ToolAccess:
    """The servers that one container may use. What they offer can be listed before a run is there,
    since the CLI asks for it when it starts; calls belong to the run that it is bound to.
    """

    def __init__(self, brokered: Sequence[Brokered] = ()) -> None:
        self.servers = {each.name: each for each in brokered}
        self._run: RunTools | None = None
        self._calls: Counter[str] = Counter()
        self._number = 0
        self._open: set[anyio.CancelScope] = set()
        self._drifts: dict[str, Drift] = {}
        """By server, as the run was told."""
        self.companies: defaultdict[str, Company] = defaultdict(Company)
        self.on_list_changed: Callable[[str], None] = lambda _: None
        """Told which server's list has changed, for clients inside."""

    def bind(self, run: RunTools) -> None:
        """From now on calls are this run's."""
        self._run = run
        self._calls.clear()

    def revoke(self) -> None:
        """The run has ended: give up what is under way."""
        self._run = None
        for scope in self._open:
            scope.cancel()

    def tools(self, server: str) -> tuple[JsonMap, ...]:
        """What the agent is shown of a server's tools."""
        each = self.servers[server]
        return tool_rules.offered(each.use, each.lock, self._changed(server))

    async def call(
        self,
        server: str,
        name: str,
        arguments: Mapping[str, JsonValue],
        *,
        what: What = "tool",
        direct: bool,
        on_progress: OnProgress | None = None,
    ) -> RpcObject:
        """A call of a tool, from the decision to what the agent is shown; or a resource that is
        read, or a prompt that is filled in. It raises nothing: what goes wrong is a tool's result
        that says so.
        """
        run = self._run
        if run is None:
            return text_result(NO_RUN, is_error=True)
        if len(self._open) >= MAX_AT_ONCE:
            said = f"{MAX_AT_ONCE} calls wait already; let one of them end first"
            return text_result(said, is_error=True)
        call = _Call(self, run, self.servers[server], name, what, direct=direct)
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                return await call.made(arguments, on_progress)
            except OrchestratorError as exc:
                call.tell(is_error=True, why=str(exc))
                return text_result(str(exc), is_error=True)
            except anyio.get_cancelled_exc_class():
                call.given_up()
                raise
            finally:
                self._open.discard(scope)
        return text_result("the call was given up", is_error=True)

    async def verdict(
        self,
        each: Brokered,
        name: str,
        what: What,
        arguments: Mapping[str, JsonValue],
        *,
        counted: bool = False,
    ) -> ToolVerdict:
        """What `tool_rules` says of a call, without holding up other runs; `counted` if it is one
        of the calls that were made already.
        """
        changed, calls = self._changed(each.name), self._calls[each.name] - counted
        return await verdict_on(each, name, arguments, changed, calls, what=what)

    def verdict_now(self, each: Brokered, name: str, what: What) -> ToolVerdict:
        """The same without the arguments and without waiting: other calls of the run may have been
        counted since.
        """
        changed, calls = self._changed(each.name), self._calls[each.name]
        return tool_rules.decide(each.use, each.lock, name, what=what, changed=changed, calls=calls)

    def count(self, server: str) -> int:
        """One more call of the run's; which it is."""
        self._calls[server] += 1
        self._number += 1
        return self._number

    def drifted(self, upstream: LiveServer) -> None:
        """How a server's tools differ from those that were pinned: what differs is not callable,
        until it is as it was. The run is told what it was not told before.
        """
        name, drift = upstream.name, upstream.drift
        before = self._drifts.get(name, Drift())
        if self._run is None or drift == before:
            return
        self._drifts[name] = drift
        self._run.on_tools.drifted(name, sorted(drift.changed), sorted(drift.new))
        if drift.changed != before.changed:
            self.on_list_changed(name)

    def _changed(self, server: str) -> frozenset[str]:
        return self._drifts.get(server, Drift()).changed


class _Call:
    """One call of one tool."""

    def __init__(
        self,
        access: ToolAccess,
        run: RunTools,
        each: Brokered,
        name: str,
        what: What,
        *,
        direct: bool,
    ) -> None:
        self._access = access
        self._run = run
        self._each = each
        self._name = name
        self._what = what
        self._direct = direct
        self._began = time.monotonic()
        self._rule = ""
        self._protocol = ""
        self._company = access.companies[each.name]
        self._patience = CallPatience(self._company, each.server.call_seconds, run.at_work)
        self._secrets: Callable[[], Sequence[str]] = tuple
        """What the server knows at this moment; tokens are renewed while it is asked."""

    async def made(
        self, arguments: Mapping[str, JsonValue], on_progress: OnProgress | None
    ) -> RpcObject:
        verdict = await self._access.verdict(self._each, self._name, self._what, arguments)
        if not verdict.allowed:
            return await self._refused(verdict)
        now = self._access.verdict_now(self._each, self._name, self._what)
        if not now.allowed:
            return await self._refused(now)
        number = self._access.count(self._each.name)  # no await since: it is one of max_calls
        if verdict.asks:
            verdict = await self._approved(verdict, number)
            if not verdict.allowed:
                return await self._refused(verdict)
        self._rule = verdict.rule
        how = " (direct)" if self._direct else ""
        await self._run.decided(
            "tool", f"{self._subject} #{number}", allowed=True, why=verdict.rule + how
        )
        return await self._asked(verdict.arguments, number, on_progress)

    @property
    def _subject(self) -> str:
        return f"{self._each.name}/{self._told}"

    @property
    def _told(self) -> str:
        """What is called, for people; patterns in agent.md are written in the same way."""
        before = "" if self._what == "tool" else f"{self._what}:"
        return (before + self._name)[:TOLD_CHARS]

    async def _refused(self, verdict: ToolVerdict) -> RpcObject:
        self.tell(allowed=False, code=verdict.code, rule=verdict.rule, why=verdict.why)
        why = f"{verdict.code}: {verdict.rule}" + (" (direct)" if self._direct else "")
        await self._run.decided("tool", self._subject, allowed=False, why=why)
        said = f"refused by the orchestrator ({verdict.code}): {verdict.why}"
        return text_result(said, is_error=True)

    async def _approved(self, verdict: ToolVerdict, number: int) -> ToolVerdict:
        """Have the caller or a person decide; the run waits. An edited call is looked at again."""
        name = f"mcp__{self._each.name}__{self._told}"
        sent: dict[str, object] = dict(verdict.arguments)
        if self._what == "resource":
            sent = {"uri": self._name}  # all that the server is told
        decided = await self._run.approve(f"{self._run.run_id}-t{number}", name, sent)
        if not decided.approved:
            why = decided.message or "it was not approved; do without it"
            return ToolVerdict(allowed=False, rule=verdict.rule, code="DENIED_BY_POLICY", why=why)
        if decided.new_input is None:
            return verdict
        if self._what == "resource":
            if decided.new_input == sent:
                return verdict
            why = "it was approved with another URI; read that, if you need it"
            return ToolVerdict(allowed=False, rule=verdict.rule, code="DENIED_BY_POLICY", why=why)
        edited = {key: _json(value) for key, value in decided.new_input.items()}
        again = await self._access.verdict(self._each, self._name, self._what, edited, counted=True)
        return again.model_copy(update={"asks": False})

    async def _asked(
        self, arguments: JsonMap, number: int, on_progress: OnProgress | None
    ) -> RpcObject:
        each, run = self._each, self._run
        wanted = WantedServer(each.server, each.lock, run.scopes[each.name], self._elicit())
        with self._patience.working():
            async with run.pool.lease(wanted, self._access.drifted) as upstream:
                self._secrets, self._protocol = upstream.secrets, upstream.protocol
                if self._what == "tool" and self._name in upstream.drift.changed:
                    changed = tool_rules.decide(
                        each.use, each.lock, self._name, changed=upstream.drift.changed
                    )
                    return await self._refused(changed)
                try:
                    with self._patience.lasting():
                        heard = self._with_patience(on_progress)
                        answer = await self._answer(upstream, arguments, heard)
                except CallFailed as exc:
                    answer = _said(str(exc), "the server answered with an error: ")
                if self._patience.over:
                    seconds = f"{each.server.call_seconds:g} s"
                    self.tell(is_error=True, why=f"no answer within {seconds}")
                    said = f"{each.name} did not answer within {seconds}"
                    return text_result(said, is_error=True)
            return await self._shown(answer, number)

    async def _answer(self, upstream: LiveServer, arguments: JsonMap, heard: OnProgress) -> JsonMap:
        if self._what == "tool":
            return await upstream.call(self._name, arguments, heard)
        if self._what == "resource":
            return await upstream.read(self._name)
        texts = {key: str(value) for key, value in arguments.items()}
        return await upstream.prompt(self._name, texts)

    async def _shown(self, answer: Mapping[str, object], number: int) -> RpcObject:
        """What the agent sees of an answer: without secrets, cut, and in a fence."""
        each = self._each
        clean = await self._cleaned(answer)
        file = f"/tmp/{each.name}-{number}.txt"  # noqa: S108 inside the container
        shown = shown_result(
            _as_content(clean if isinstance(clean, dict) else {}),
            server=each.name,
            name=self._told,
            limit=each.server.result_kb * 1024,
            file=file,
        )
        result = await self._spilled(shown, file)
        self.tell(is_error=result["isError"] is True, size=shown.size)
        return result

    async def _spilled(self, shown: ShownAnswer, file: str) -> RpcObject:
        if not shown.whole:
            return shown.result
        problem = await self._run.spill(file, shown.whole.encode(errors="replace"))
        return with_file(shown, file, problem) if problem else shown.result

    def given_up(self) -> None:
        """The agent hung up, or the run has ended: tell it of a call that was on its way."""
        if self._rule:
            self.tell(is_error=True, why="the call was given up")

    def tell(
        self,
        *,
        allowed: bool = True,
        code: str = "",
        rule: str = "",
        why: str = "",
        is_error: bool = False,
        size: int = 0,
    ) -> None:
        self._run.on_tools.called(
            ToolSeen(
                server=self._each.name,
                tool=self._told,
                direct=self._direct,
                allowed=allowed,
                code=code,
                rule=rule or self._rule,
                why=why[:WHY_CHARS],
                is_error=is_error,
                bytes=size,
                duration_ms=round((time.monotonic() - self._began) * 1000),
                transport="pipe" if self._each.server.url is None else "tcp",
                protocol=self._protocol,
            )
        )

    async def _cleaned(self, value: object) -> object:
        """What the server said, without what it knows by now and no agent may."""
        self._run.know(self._secrets())
        return await self._run.cleaned(value)

    def _with_patience(self, on_progress: OnProgress | None) -> OnProgress:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            self._patience.renew()
            if on_progress is None:
                return
            if message is not None:
                message = one_line(str(await self._cleaned(message)), PROGRESS_CHARS)
            await on_progress(progress, total, message)

        return heard

    def _elicit(self) -> Elicit | None:
        """How the server asks something: the caller of the run, if the agent may."""
        ask = self._run.ask
        if ask is None:
            return None

        async def elicit(message: str, schema: JsonMap) -> JsonMap | None:
            with self._company.asked():
                clean = await self._cleaned(message)
                question = question_of(self._each.name, str(clean), schema)
                if question is None:
                    return None
                try:
                    return answer_of(await ask(question, DECLINE), schema)
                except CallerRefused:  # the run has asked too often
                    return None

        return elicit


def _as_content(answer: Mapping[str, object]) -> Mapping[str, object]:
    """What was read, or a prompt's messages, in the form of a tool's answer."""
    if "contents" in answer:
        parts = dicts_of(answer, "contents")
        return {"content": [{"type": "resource", "resource": part} for part in parts]}
    if "messages" in answer:
        said = [message.get("content") for message in dicts_of(answer, "messages")]
        return {"content": said}
    return answer


def _said(text: str, before: str = "") -> JsonMap:
    return {"content": [{"type": "text", "text": before + text}], "isError": True}


def _json(value: object) -> JsonValue:
    parsed: JsonValue = json.loads(json.dumps(value))
    return parsed
