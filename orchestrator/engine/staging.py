"""Agent + task -> a plan, and a stage to carry it out on: made now, waiting, or kept."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import AgentSpec, Network
from orchestrator.domain.container import Launch, User
from orchestrator.domain.task import Task
from orchestrator.engine.copies import Copies
from orchestrator.engine.memory import Memory, MemoryText
from orchestrator.engine.record import Record
from orchestrator.engine.run import Outcome
from orchestrator.engine.session_rows import SessionKey
from orchestrator.engine.sessions import Makings, Sessions
from orchestrator.engine.stage import Stage, open_stage
from orchestrator.gateway.dial import Dialer
from orchestrator.gateway.egress import EgressAccess, EgressSeen
from orchestrator.gateway.egress_rules import EgressRules
from orchestrator.gateway.model import ModelRequestSeen, ModelService
from orchestrator.gateway.reach import Reach
from orchestrator.gateway.routes import RouteAccess, RouteSeen
from orchestrator.gateway.secret_store import SecretStore
from orchestrator.gateway.upstream import Upstream
from orchestrator.plan import Place, Plan, plan
from orchestrator.runners import claude

ScriptOf = Callable[[AgentSpec], Upstream | None]
"""A script that plays the model for this agent; None for the real model."""

STAND_IN = "(a token for this run only)"


def no_script(_: AgentSpec) -> Upstream | None:
    return None


@dataclass(frozen=True)
class Prepared:
    """A task that could begin now: what it needs has been found."""

    agent: AgentSpec
    task: Task
    place: Place
    values: Mapping[str, SecretStr]
    memory: MemoryText
    plan: Plan
    """With a stand-in for the token, which belongs to the stage."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(value.get_secret_value() for value in self.values.values())

    @property
    def session(self) -> SessionKey:
        return SessionKey(
            agent=self.agent.name, caller=self.task.caller, name=self.task.session or "default"
        )


class Staging:
    """Finds what a task needs, and the stage it is played on."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        models: ModelService,
        image: Callable[[], Awaitable[str]],
        environ: Mapping[str, str],
        copies: Copies,
        dialer: Dialer,
        secret_store: SecretStore,
        sessions: Sessions,
        memory: Memory,
        ca_certificates: str = "",
        script_of: ScriptOf = no_script,
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._image = image
        self._environ = environ
        self._copies = copies
        self._dialer = dialer
        self._secret_store = secret_store
        self._sessions = sessions
        self._memory = memory
        self._ca_certificates = ca_certificates
        self._script_of = script_of

    async def prepare(self, agent: AgentSpec, task: Task, *, really: bool = True) -> Prepared:
        """What a run needs; not `really`, and no secret is asked for."""
        self._copies.check(agent, task)
        values = await self._secret_store.resolve(agent) if really else _stand_ins(agent)
        place = Place(
            image=agent.image or await self._image(),
            workspace_owner=workspace_owner(task.workspace),
            git_mounts=self._copies.git_mounts(agent, task),
            ca_certificates=self._ca_certificates,
            seccomp=await self._runtime.seccomp_profile(),
        )
        memory = self._memory.read(agent)
        planned = self._plan(agent, task, place, values, memory, STAND_IN)
        return Prepared(agent, task, place, values, memory, planned)

    def turn(self, prepared: Prepared) -> AbstractAsyncContextManager[None]:
        """Wait for what only one run can have at a time: a session."""
        if prepared.agent.session.keep:
            return self._sessions.turn(prepared.session)
        return nullcontext()

    @asynccontextmanager
    async def stage(
        self, prepared: Prepared, record: Record, outcome: Outcome
    ) -> AsyncIterator[Stage]:
        """Where the run is played, bound to it for as long as the block lasts."""
        image = prepared.plan.container.image
        record.note("starting", f"a container of {image}", image=image)
        if prepared.agent.session.keep:
            key = prepared.session
            async with self._sessions.use(
                key, prepared.agent.session, self._makings(prepared)
            ) as use:
                outcome.session, outcome.session_note = key.name, use.note
                if use.note:
                    record.note("warning", use.note)
                self._bind(use.stage.reach, prepared, record)
                await self._memory.place(use.stage.container, prepared.memory)
                try:
                    yield use.stage
                finally:
                    await self._memory.take_back(use.stage.container, prepared.memory, record)
            return
        reach = self._reach(prepared.agent)
        launch = self._launch(prepared, reach)
        held = self._runtime.open(prepared.plan.container, labels=_labels(prepared.task))
        async with open_stage(held, launch, reach) as stage:
            self._bind(reach, prepared, record)
            yield stage

    def variables(self, prepared: Prepared) -> tuple[str, ...]:
        """Values of the orchestrator's variables that enter the container."""
        return tuple(self._environ.get(name, "") for name in prepared.plan.secrets_inside)

    # What it is made of

    def _plan(
        self,
        agent: AgentSpec,
        task: Task,
        place: Place,
        values: Mapping[str, SecretStr],
        memory: MemoryText,
        token: str,
        *,
        conversation: str = "",
        resume: bool = False,
    ) -> Plan:
        exposed = {name: value.get_secret_value() for name, value in values.items()}
        return plan(
            agent,
            task,
            place,
            self._environ,
            token,
            exposed,
            memory=memory.briefing,
            conversation=conversation,
            resume=resume,
        )

    def _launch(
        self, prepared: Prepared, reach: Reach, conversation: str = "", resume: bool = False
    ) -> Launch:
        return self._plan(
            prepared.agent,
            prepared.task,
            prepared.place,
            prepared.values,
            prepared.memory,
            reach.model.token,
            conversation=conversation,
            resume=resume,
        ).launch

    def _makings(self, prepared: Prepared) -> Makings:
        agent = prepared.agent
        return Makings(
            spec=prepared.plan.container,
            labels={
                "orchestrator.agent": agent.name,
                "orchestrator.session": prepared.session.text,
            },
            agent_digest=agent.digest,
            cli_digest=_digest(prepared.plan.launch),
            reach=lambda: self._reach(agent),
            launch=lambda reach, conversation, resume: self._launch(
                prepared, reach, conversation, resume
            ),
            history=lambda conversation: claude.history_file(
                conversation, prepared.plan.launch.cwd
            ),
        )

    def _reach(self, agent: AgentSpec) -> Reach:
        """Services that are open to nobody yet."""
        script = self._script_of(agent)
        return Reach(self._models.access(upstream=script, server_tools=_server_tools(agent)))

    def _bind(self, reach: Reach, prepared: Prepared, record: Record) -> None:
        """Open them to one run."""
        agent = prepared.agent
        record.add_secrets((reach.model.token,))
        reach.model.bind(
            budget_usd=agent.max_budget_usd, on_request=lambda seen: _note_request(record, seen)
        )
        egress = routes = None
        if agent.network.mode != "none":
            egress = EgressAccess(
                agent.network, self._dialer, lambda seen: _note_egress(record, seen)
            )
        if any(secret.hosts for secret in agent.secrets):
            rules = EgressRules(_route_network(agent))
            routes = RouteAccess(
                agent.secrets,
                prepared.values,
                self._dialer,
                lambda seen: _note_route(record, seen),
                vet=lambda host, port, addresses: rules.vet(host, port)(addresses),
                is_direct=lambda host, port: rules.name(host, port).private,
            )
        reach.bind(egress, routes)


def workspace_owner(workspace: Path | None) -> User | None:
    """Who owns the workspace; nobody, if it is root or not there to be looked at."""
    if workspace is None:
        return None
    try:
        status = workspace.stat()
    except OSError:
        return None
    if not status.st_uid:
        return None
    return User(uid=status.st_uid, gid=status.st_gid or status.st_uid)


def _route_network(agent: AgentSpec) -> Network:
    """Where secrets may go: to their hosts, at a private address only if agent.md says so."""
    hosts = tuple(dict.fromkeys(host for secret in agent.secrets for host in secret.hosts))
    return Network(mode="allow", allow=hosts, allow_private=agent.network.allow_private)


def _stand_ins(agent: AgentSpec) -> dict[str, SecretStr]:
    return {secret.name: SecretStr("(a secret)") for secret in agent.secrets}


def _digest(launch: Launch) -> str:
    return hashlib.sha256(launch.model_dump_json().encode()).hexdigest()


def _labels(task: Task) -> dict[str, str]:
    return {"orchestrator.run": task.run_id, "orchestrator.agent": task.agent}


def _server_tools(agent: AgentSpec) -> frozenset[str]:
    """What agent.md lets the model API do on its own side."""
    asked = any(rule.partition("(")[0] == "WebSearch" for rule in agent.permissions.allow)
    return frozenset({"web_search"}) if asked else frozenset()


def _note_request(record: Record, seen: ModelRequestSeen) -> None:
    tokens = f"{seen.input_tokens} tokens in, {seen.output_tokens} out"
    what = seen.error_type or tokens
    record.note("model_request", f"{seen.status} {seen.model} {what}", **seen.model_dump())


def _note_egress(record: Record, seen: EgressSeen) -> None:
    where = f"{seen.method} {seen.host}:{seen.port}"
    if seen.allowed:
        record.note("egress", where, **seen.model_dump(exclude={"why"}))
    else:
        record.note("egress_denied", f"{where}: {seen.why}", **seen.model_dump())


def _note_route(record: Record, seen: RouteSeen) -> None:
    where = f"{seen.method} {seen.host}{seen.path}"
    if seen.allowed:
        record.note("secret_used", f"{seen.secret} for {where}", **seen.model_dump())
    else:
        record.note("egress_denied", f"{where}: {seen.why}", **seen.model_dump())
