"""The verbs for agents outside: list servers, show tools, call one. Each is decided, written down,
and only then done.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
from pydantic import JsonValue

from orchestrator.catalog import AgentsDir
from orchestrator.catalog.folder import KnownServer
from orchestrator.catalog.rules_file import RulesFile
from orchestrator.domain import Frozen
from orchestrator.domain.audit import AuditEntry, stranger
from orchestrator.domain.outside import OutsideCall, OutsideRules, Ruling
from orchestrator.domain.tool_lock import Brokered, JsonMap, ToolLock, definition_tokens
from orchestrator.domain.tool_use import ServerUse
from orchestrator.errors import (
    DeniedByPolicy,
    GatewayRefused,
    NotTrusted,
    OrchestratorError,
    ServerInvalid,
    ServerNotFound,
    ServerUnavailable,
    ToolArgumentsInvalid,
    ToolChanged,
    ToolNotFound,
)
from orchestrator.gateway.tools.pool import OnProgress
from orchestrator.gateway.tools.verdicts import verdict_on
from orchestrator.outside_access import OutsideCaller, decide, identify
from orchestrator.plain_yaml import shortened
from orchestrator.store.audit import (
    MAX_CALLS_EACH,
    MAX_REFUSALS,
    REFUSALS_SECONDS,
    FirstOnes,
    OnceEach,
)
from orchestrator.store.runs import Store

MAX_PATTERN_CHARS = 200
"""Of the pattern that get_server_tools takes: as long as one in the rules."""

NOTE_SECONDS = 5.0
"""For the outcome of a call to be written down, though the call was cancelled."""

SHOWN_FIELDS = ("name", "description", "inputSchema")
"""Of a tool's definition."""

CheckTrusted = Callable[[KnownServer, OutsideRules], None]
"""NotTrusted if agents outside would reach what the operator has not trusted them with. Blocks."""

T = TypeVar("T")


class OutsideConnection(Frozen):
    """Where a call comes from."""

    caller: OutsideCaller
    session: str
    """Whose state it is that servers keep between calls."""
    lasting: bool
    """The client says when the session ends; otherwise what it started ends when it is idle."""


class ShownTools(Frozen):
    """What an agent is shown of a server's tools."""

    tools: tuple[JsonMap, ...]
    total: int
    """How many the server has."""
    tokens: int
    """What these take, about."""


class OutsideAnswer(Frozen):
    """What a server answered, without secrets, and how much of it is shown."""

    answer: JsonMap
    limit_bytes: int


@dataclass(frozen=True)
class UpstreamCall:
    """One call that may be made, as those who make it have to know it."""

    known: KnownServer
    tool: str
    arguments: Mapping[str, JsonValue]
    connection: OutsideConnection
    agent: str
    seconds: float | None
    """Within so long, or what the server's own file allows."""
    on_progress: OnProgress

    @property
    def subject(self) -> str:
        return f"{self.known.server.name}/{self.tool}"


class OutsideUpstreams(Protocol):
    """Servers that run, or are started when they are called."""

    async def call(self, call: UpstreamCall) -> JsonMap:
        """What the server answers, without secrets. ServerUnavailable, ToolChanged or ToolTimeout
        if it does not.
        """
        ...

    async def end(self, session: str) -> None:
        """End what was started for a session."""
        ...


class OutsideService:
    """What agents outside can do, by the rules of the moment."""

    def __init__(
        self,
        *,
        rules: RulesFile,
        agents: AgentsDir,
        upstreams: OutsideUpstreams,
        store: Store,
        project: str,
        check_trust: CheckTrusted,
        default_agent: str = "",
    ) -> None:
        self.rules = rules
        self.agents = agents
        self._upstreams = upstreams
        self._store = store
        self._project = project
        self._check_trust = check_trust
        self._refusals = OnceEach(store.audit, MAX_REFUSALS, REFUSALS_SECONDS)
        self._rows = FirstOnes(MAX_CALLS_EACH, REFUSALS_SECONDS)
        self._counted = OnceEach(store.audit, MAX_REFUSALS, REFUSALS_SECONDS, counts_allowed=True)
        self._default_agent = default_agent

    async def servers(
        self, connection: OutsideConnection, agent_id: str
    ) -> tuple[KnownServer, ...]:
        """The servers that the agent may use."""

        async def listed(agent: str, rules: OutsideRules) -> tuple[KnownServer, ...]:
            known = self.agents.current().servers
            mine = [known[name] for name in known if decide(rules, agent, name).allowed]
            return tuple([await self._described(each, rules) for each in mine])

        asked = OutsideCall(operation="list_servers", claimed=agent_id)
        return await self._done(connection, asked, listed)

    async def tools(
        self,
        connection: OutsideConnection,
        agent_id: str,
        server: str,
        *,
        names: tuple[str, ...] = (),
        pattern: str = "",
        max_tokens: int | None = None,
    ) -> ShownTools:
        """The tools that the agent may call, of these names, and no more than so many tokens: one
        that does not fit is left out, and a smaller one after it is not.
        """

        async def shown(agent: str, rules: OutsideRules) -> ShownTools:
            if len(pattern) > MAX_PATTERN_CHARS:
                raise ToolArgumentsInvalid(
                    f"pattern has more than {MAX_PATTERN_CHARS} characters; write a shorter one"
                )
            lock = _lock(await self._trusted(server, rules))
            found: list[JsonMap] = []
            used = 0
            for tool in lock.tools:
                wanted = not names or tool.name in names
                if not wanted or (pattern and not fnmatchcase(tool.name, pattern)):
                    continue
                if not decide(rules, agent, server, tool.name).allowed:
                    continue
                definition = {"description": "", **tool.definition}
                definition = {field: definition[field] for field in SHOWN_FIELDS}
                size = definition_tokens(definition)
                if max_tokens is None or used + size <= max_tokens:
                    found.append(definition)
                    used += size
            return ShownTools(tools=tuple(found), total=len(lock.tools), tokens=used)

        asked = OutsideCall(operation="get_server_tools", claimed=agent_id, server=server)
        return await self._done(connection, asked, shown)

    async def call_tool(
        self,
        connection: OutsideConnection,
        agent_id: str,
        server: str,
        tool: str,
        arguments: Mapping[str, JsonValue],
        *,
        on_progress: OnProgress,
        timeout_ms: int | None = None,
    ) -> OutsideAnswer:
        """Call a tool; what the server answered."""

        async def made(agent: str, rules: OutsideRules) -> OutsideAnswer:
            known = await self._trusted(server, rules)
            answer = await self._upstreams.call(
                UpstreamCall(
                    known=known,
                    tool=tool,
                    arguments=await _checked(known, tool, arguments),
                    connection=connection,
                    agent=agent,
                    seconds=None if timeout_ms is None else timeout_ms / 1000,
                    on_progress=on_progress,
                )
            )
            return OutsideAnswer(answer=answer, limit_bytes=known.server.result_kb * 1024)

        asked = OutsideCall(operation="execute_tool", claimed=agent_id, server=server, tool=tool)
        return await self._done(connection, asked, made)

    async def look(self, connection: OutsideConnection, agent_id: str) -> OutsideRules:
        """The rules as they are, for an agent that wants to know how things stand."""

        async def looked(agent: str, rules: OutsideRules) -> OutsideRules:  # noqa: ARG001 any agent may
            return rules

        asked = OutsideCall(operation="get_gateway_status", claimed=agent_id)
        return await self._done(connection, asked, looked)

    async def end(self, session: str) -> None:
        """A connection is gone: end what was started for it."""
        await self._upstreams.end(session)

    async def note_stranger(self, where: str, why: str) -> None:
        """Write down that a request was refused before it was known who calls."""
        await self._refusals.note(stranger(self._project, where, why), f"{where} {why}")

    # How each of them is done

    async def _done(
        self,
        connection: OutsideConnection,
        asked: OutsideCall,
        work: Callable[[str, OutsideRules], Awaitable[T]],
    ) -> T:
        """Decide, write it down, do it, and write down what came of it."""
        began = time.monotonic()
        rules = self.rules.current()
        try:
            who = identify(rules, asked.claimed, connection.caller, self._default_agent)
            asked = asked.model_copy(update={"agent_id": who.agent, "known_by": who.by})
            ruling = _ruling(rules, asked)
            asked = asked.model_copy(update={"rule": ruling.rule})
            if not ruling.allowed:
                raise _denied(asked, ruling)
        except GatewayRefused as exc:
            update = {"code": exc.code, "latency_ms": _ms_since(began)}
            refused = asked.model_copy(update=update)
            entry = self._entry(connection, refused, False, str(exc))
            write = partial(self._store.outside_calls.begin, call=refused)
            await self._refusals.note(entry, write=write)
            raise
        number = await self._begun(self._entry(connection, asked, True, ruling.why), asked)
        code = "CANCELLED"
        try:
            result = await work(asked.agent_id, rules)
            code = ""
        except OrchestratorError as exc:
            code = exc.code
            raise
        finally:
            with anyio.move_on_after(NOTE_SECONDS, shield=True):
                if number is not None:
                    await self._store.outside_calls.ended(number, _ms_since(began), code)
        return result

    async def _begun(self, entry: AuditEntry, asked: OutsideCall) -> int | None:
        """Write a call down before it is made; its row, or None if it has none of its own: a caller
        that calls without end pushes no older decision out of the audit.
        """
        if self._rows.take(entry.who):
            return await self._store.outside_calls.begin(entry, asked)
        rest = f"counted here after {MAX_CALLS_EACH} calls in an hour; {entry.why}"
        write = partial(self._store.outside_calls.begin, call=asked)
        await self._counted.note(entry.model_copy(update={"why": rest}), write=write)
        return None

    def _entry(
        self, connection: OutsideConnection, asked: OutsideCall, allowed: bool, why: str
    ) -> AuditEntry:
        target = "/".join(filter(None, (asked.server, asked.tool)))
        who = asked.agent_id or (f"{asked.claimed} (claimed)" if asked.claimed else "")
        words = (asked.operation, target, who and f"as {who}")
        return AuditEntry.by(
            connection.caller.name,
            "gateway",
            project=self._project,
            allowed=allowed,
            subject=" ".join(filter(None, words)),
            why=why,
        )

    async def _trusted(self, server: str, rules: OutsideRules) -> KnownServer:
        """A server, if a person has agreed to what it reaches and to what it tells models."""
        known = self._known(server)
        try:
            await anyio.to_thread.run_sync(self._check_trust, known, rules)
        except NotTrusted as exc:
            raise ServerUnavailable(str(exc)) from exc
        return known

    async def _described(self, known: KnownServer, rules: OutsideRules) -> KnownServer:
        """The same, without its author's words as long as no person has agreed to them."""
        name = known.server.name
        try:
            _lock(known)
            return await self._trusted(name, rules)
        except ServerUnavailable:
            said = "not to be used yet; the operator looks at it with: orchestrator trust"
            if known.lock is None:
                said = f"{said[:-5]}servers pin {name}"
            server = known.server.model_copy(update={"description": said})
            return known.model_copy(update={"server": server})

    def _known(self, server: str) -> KnownServer:
        try:
            return self.agents.current().server(server)
        except ServerNotFound:
            raise ServerUnavailable(
                f"there is no server '{shortened(server)}'; list_servers names those there are"
            ) from None
        except ServerInvalid as exc:
            raise ServerUnavailable(str(exc)) from exc


def _ruling(rules: OutsideRules, asked: OutsideCall) -> Ruling:
    if not asked.server and asked.operation in ("list_servers", "get_gateway_status"):
        return Ruling(allowed=True, why="what may not be used is left out")
    tool = asked.tool if asked.operation == "execute_tool" else None
    return decide(rules, asked.agent_id, asked.server, tool)


def _denied(asked: OutsideCall, ruling: Ruling) -> DeniedByPolicy:
    what = "/".join(filter(None, (shortened(asked.server), shortened(asked.tool))))
    return DeniedByPolicy(
        f"agent '{asked.agent_id}' may not use {what}: {ruling.why}; retrying will not help",
        rule=ruling.rule,
    )


def _lock(known: KnownServer) -> ToolLock:
    if known.lock is not None:
        return known.lock
    name = known.server.name
    why = "no person has read what its tools are"
    if known.problems:
        why = "; ".join(map(str, known.problems))
    raise ServerUnavailable(
        f"the server {name} cannot be used: {why}. The operator looks at it with: orchestrator "
        f"servers pin {name}"
    )


async def _checked(
    known: KnownServer, tool: str, arguments: Mapping[str, JsonValue]
) -> Mapping[str, JsonValue]:
    """The arguments, if the tool is there and takes them."""
    everything = ServerUse(use=known.server.name, allow=("*",))
    each = Brokered(use=everything, server=known.server, lock=_lock(known))
    verdict = await verdict_on(each, tool, arguments)
    if verdict.allowed:
        return verdict.arguments
    refusals = {"ARGUMENTS_INVALID": ToolArgumentsInvalid, "TOOL_CHANGED": ToolChanged}
    raise refusals.get(verdict.code, ToolNotFound)(verdict.why)


def _ms_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 2)
