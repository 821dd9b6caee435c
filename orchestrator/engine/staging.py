"""Agent + task -> Prepared, and Prepared -> a stage for its run: made now, waiting, or kept."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread
from pydantic import SecretStr

from orchestrator.containers.runtime import Container, Runtime
from orchestrator.domain.agent import AgentSpec, Network
from orchestrator.domain.container import Bind, Launch, User
from orchestrator.domain.task import Task
from orchestrator.engine.conversation import open_cli
from orchestrator.engine.live import LiveRun
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Record
from orchestrator.engine.sessions.memory import Memory, MemoryText
from orchestrator.engine.sessions.sessions import Makings, Sessions
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.spare import memory_bytes, takes_spares
from orchestrator.engine.spares.stock import Stock
from orchestrator.engine.stage import LimitCounter, Stage, WaitingStage
from orchestrator.engine.workspaces.copies import Copies, Mounted
from orchestrator.errors import MountRefused, OrchestratorError
from orchestrator.gateway.egress.access import EgressAccess, EgressSeen
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.egress.rules import EgressRules
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.given import most_requests
from orchestrator.gateway.model.service import ModelService
from orchestrator.gateway.model.upstream import Upstream
from orchestrator.gateway.reach import Reach
from orchestrator.gateway.secrets.routes import RouteAccess, RouteSeen
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.plan import Place
from orchestrator.runners.claude.launch import history_file

log = logging.getLogger(__name__)

ScriptOf = Callable[[AgentSpec], Upstream | None]
"""A script that plays the model for this agent; None for the real model."""

FRESH_SECONDS = 10.0
"""What was looked up when a task was accepted is looked up again if it begins later than that."""


AgentsNow = Callable[[], Mapping[str, AgentSpec]]
"""The agents that there are, by name."""


class CheckTrust(Protocol):
    """NotTrusted if an agent wants what nobody has trusted it with; else the directory in which
    alone it may write to a workspace, or None. Blocks.
    """

    def __call__(
        self, agent: AgentSpec, others: Mapping[str, AgentSpec], workspace: Path | None
    ) -> Path | None: ...


class EngineLookup(Protocol):
    """What a plan needs to know of the engine that its container is made on."""

    async def agent_image(self) -> str:
        """The image that agents run in, unless agent.md names another."""
        ...

    async def image_id(self, image: str) -> str:
        """What an image's name stands for; "" if that is not known."""
        ...

    async def seccomp_profile(self) -> str | None:
        """The strict profile; None where containers cannot have it."""
        ...


class _Found(NamedTuple):
    """What the disk says about a task."""

    owner: User | None
    mounted: Mounted
    memory: MemoryText
    write_within: Path | None


class Planner:
    """Agent + task -> Prepared: looks up all that a run needs, and makes nothing."""

    def __init__(
        self,
        *,
        agents: AgentsNow,
        check_trust: CheckTrust,
        engine: EngineLookup,
        environ: Mapping[str, str],
        copies: Copies,
        secret_store: SecretStore,
        memory: Memory,
        ca_certificates: str = "",
    ) -> None:
        self._agents = agents
        self._check_trust = check_trust
        self._engine = engine
        self._environ = environ
        self._copies = copies
        self._secret_store = secret_store
        self.memory = memory
        self._ca_certificates = ca_certificates
        self._looks = anyio.CapacityLimiter(1)
        """One at a time, or calls to a session would overtake each other here."""

    async def prepare(self, agent: AgentSpec, task: Task, *, really: bool = True) -> Prepared:
        """What a run needs; not `really`, and no secret is asked for. Nothing is looked up, and so
        nothing is launched, for an agent that wants what nobody has trusted it with.
        """
        look = partial(self._look, agent, task, self._agents())
        found = await anyio.to_thread.run_sync(look, limiter=self._looks)
        values = await self._secret_store.resolve(agent) if really else _stand_ins(agent)
        place = Place(
            image=agent.image or await self._engine.agent_image(),
            workspace_owner=found.owner,
            workspace=found.mounted.workspace,
            git_mounts=found.mounted.git,
            covers=found.mounted.covers,
            write_within=found.write_within,
            ca_certificates=self._ca_certificates,
            seccomp=await self._engine.seccomp_profile(),
        )
        prepared = Prepared(agent, task, place, self._environ, values, found.memory)
        container = prepared.plan.container
        binds = [mount for mount in container.mounts if isinstance(mount, Bind)]
        versions = tuple(_identity(bind.source) for bind in binds)
        if takes_spares(agent):
            versions = (await self._engine.image_id(container.image), *versions)
        return prepared.with_versions(versions)

    def _look(self, agent: AgentSpec, task: Task, others: Mapping[str, AgentSpec]) -> _Found:
        """All that is looked for on the disk, at one go. Blocks."""
        within = self._check_trust(agent, others, task.workspace)
        self._copies.check(agent, task)
        mounted = self._copies.mounted(agent, task)
        shown = mounted.workspace
        owner = _owner_of(task.workspace, shown.identity if shown else "")
        return _Found(owner, mounted, self.memory.read(agent), within)

    async def have_image(self) -> None:
        """Have the image that most agents run in, before the first call wants it."""
        await self._engine.agent_image()

    async def as_of_now(self, prepared: Prepared) -> Prepared:
        """The same, looked up again if it has waited: a run in a session before it may have changed
        the agent's memory, and a secret does not last for ever.
        """
        agent, memory = prepared.agent, prepared.memory
        if agent.session.keep and agent.memory != "none":
            memory = await anyio.to_thread.run_sync(self.memory.read, agent, limiter=self._looks)
        if memory == prepared.memory and time.monotonic() - prepared.at < FRESH_SECONDS:
            return prepared
        return await self.prepare(agent, prepared.task)


@dataclass(frozen=True)
class Gateway:
    """What leads outside: the model, or scripts in its place, and connections to other hosts."""

    models: ModelService
    dialer: Dialer
    script_of: ScriptOf = lambda _: None

    def reach(self, agent: AgentSpec) -> Reach:
        """Services for a container of this agent. They refuse everything until `bind`."""
        script = self.script_of(agent)
        model = self.models.access(upstream=script, server_tools=_server_tools(agent))
        return Reach(model, agent.parent_tools)

    def bind(self, reach: Reach, prepared: Prepared, live: LiveRun) -> None:
        """Open a container's services to one run: as agent.md says, and on the run's record."""
        agent, record = prepared.agent, live.record
        record.add_secrets((reach.sought,))
        reach.model.bind(
            budget_usd=live.own_budget_usd,
            on_request=partial(_note_request, record),
            others_spent=lambda: live.budget_left is not None and live.budget_left <= 0,
            at_work=live.clock.at_work,
            decided=record.decided,
            model=agent.model,
            most_requests=most_requests(agent),
        )
        egress = routes = None
        if agent.network.mode != "none":
            egress = EgressAccess(
                agent.network, self.dialer, partial(_note_egress, live), decided=record.decided
            )
        if any(secret.hosts for secret in agent.secrets):
            rules = EgressRules(_route_network(agent))
            routes = RouteAccess(
                agent.secrets,
                prepared.values,
                self.dialer,
                partial(_note_route, live),
                decided=record.decided,
                vet=lambda host, port, addresses: rules.vet(host, port)(addresses),
                is_direct=lambda host, port: rules.name(host, port).private,
            )
        reach.bind(egress, routes)
        if agent.parent_tools:
            delegate = live.delegate if agent.subagents else None
            reach.parent.bind(live.desk.ask, partial(_note_status, live), delegate)


class Staging:
    """Prepared -> the stage that its run is played on."""

    def __init__(
        self,
        *,
        planner: Planner,
        runtime: Runtime,
        gateway: Gateway,
        sessions: Sessions,
        pool: Pool[WaitingStage],
    ) -> None:
        self.planner = planner
        self._runtime = runtime
        self._gateway = gateway
        self._sessions = sessions
        self.stock = Stock(pool, self._usual, self._spare)

    def session_lock(self, prepared: Prepared) -> AbstractAsyncContextManager[None]:
        """Wait for the run's session, which one run has at a time; nothing without one."""
        if prepared.agent.session.keep:
            return self._sessions.lock(prepared.session)
        return nullcontext()

    @asynccontextmanager
    async def stage(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        """A stage that is bound to the run for as long as the block lasts."""
        record = live.record
        if prepared.agent.seccomp == "strict" and prepared.place.seccomp is None:
            record.note("warning", "this engine does not take our seccomp profile; its own is used")
        image = prepared.plan.container.image
        record.note("starting", f"a container of {image}", image=image)
        if prepared.agent.session.keep:
            opened = self._in_session(prepared, live)
        elif takes_spares(prepared.agent):
            opened = self._claimed(prepared, live)
        else:
            opened = self._made_now(prepared, live)
        async with opened as stage:
            yield stage

    @asynccontextmanager
    async def _made_now(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        async with self._new(prepared) as stage:
            self._gateway.bind(stage.reach, prepared, live)
            yield stage

    @asynccontextmanager
    async def _claimed(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        async with self.stock.claimed(prepared) as spare:
            self._gateway.bind(spare.stage.reach, prepared, live)
            yield spare.stage

    @asynccontextmanager
    async def _in_session(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        session, makings = prepared.agent.session, self._makings(prepared)
        async with self._sessions.use(prepared.session, session, makings) as use:
            live.joined(use.note, goes_on=use.goes_on)
            self._gateway.bind(use.stage.reach, prepared, live)
            await self.planner.memory.place(use.stage.container, prepared.memory)
            try:
                yield use.stage
            finally:
                memory = self.planner.memory
                await memory.take_back(use.stage.container, prepared.memory, live.record)

    async def clear_up(self) -> None:
        """Remove containers that a dead orchestrator left half made, and have the image that most
        agents need, before the first call wants it; without an engine, nothing.
        """
        try:
            await self._runtime.reap()
            await self.planner.have_image()
        except OrchestratorError as exc:
            log.info("nothing is made ready: %s", exc)
        except Exception:
            log.exception("nothing is made ready")

    async def _usual(self, agent: AgentSpec) -> Prepared:
        """What most runs of an agent need, for its spares."""
        task = Task(agent=agent.name, prompt="-")
        return await self.planner.prepare(agent, task, really=False)

    @asynccontextmanager
    async def _spare(self, prepared: Prepared, *, rehearse: bool) -> AsyncIterator[WaitingStage]:
        async with self._new(prepared, waited=True, rehearse=rehearse) as stage:
            yield WaitingStage(stage, await memory_bytes(stage.container))

    @asynccontextmanager
    async def _new(
        self, prepared: Prepared, *, waited: bool = False, rehearse: bool = False
    ) -> AsyncIterator[Stage]:
        """A stage in a container of its own; leaving the block leaves nothing of either."""
        reach = self._gateway.reach(prepared.agent)
        launch = prepared.planned(reach.model.token).launch
        made = self._runtime.open(prepared.plan.container, labels=prepared.labels)
        async with made as container:
            await reach.offer(container)
            opened = open_stage(container, launch, reach, waited=waited, rehearse=rehearse)
            async with opened as stage:
                yield stage

    def _makings(self, prepared: Prepared) -> Makings:
        agent = prepared.agent

        def open_again(
            container: Container, reach: Reach, limits: LimitCounter, talk: str, resume: bool
        ) -> AbstractAsyncContextManager[Stage]:
            launch = prepared.planned(reach.model.token, talk, resume).launch
            return open_stage(container, launch, reach, limits=limits, waited=True)

        return Makings(
            spec=prepared.plan.container,
            labels=prepared.labels,
            agent_digest=" ".join((agent.digest, *prepared.versions)),
            cli_digest=_digest(prepared.plan.launch),
            reach=lambda: self._gateway.reach(agent),
            open_stage=open_again,
            history=lambda conversation: history_file(conversation, prepared.plan.launch.cwd),
            disk_bytes=agent.resources.disk_bytes,
        )


@asynccontextmanager
async def open_stage(
    container: Container,
    launch: Launch,
    reach: Reach,
    *,
    limits: LimitCounter | None = None,
    waited: bool = False,
    rehearse: bool = False,
) -> AsyncIterator[Stage]:
    """Start the CLI in a container; leaving the block ends the CLI, and what it could reach."""
    async with open_cli(container, launch, ready=waited, rehearse=rehearse) as conversation:
        try:
            yield Stage(container, conversation, reach, limits=limits, waited=waited)
        finally:
            reach.revoke()


def _owner_of(workspace: Path | None, identity: str) -> User | None:
    """The user whom the workspace belongs to; None if that is root, or it cannot be looked at.

    With an identity, MountRefused if it is another directory by now.
    """
    if workspace is None:
        return None
    try:
        status = workspace.stat()
    except FileNotFoundError as exc:
        raise MountRefused(f"{workspace} does not exist, so no agent can be shown it") from exc
    except OSError:
        return None
    if identity not in ("", f"{status.st_dev}:{status.st_ino}"):
        raise MountRefused(f"another directory has just taken the place of {workspace}; try again")
    if not status.st_uid:
        return None
    return User(uid=status.st_uid, gid=status.st_gid or status.st_uid)


def _identity(path: str) -> str:
    """Which directory it is: another one may have its name by tomorrow."""
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"


def _stand_ins(agent: AgentSpec) -> dict[str, SecretStr]:
    return {secret.name: SecretStr(f"<{secret.name}>") for secret in agent.secrets}


def _digest(launch: Launch) -> str:
    return hashlib.sha256(launch.model_dump_json().encode()).hexdigest()


def _server_tools(agent: AgentSpec) -> frozenset[str]:
    """What agent.md lets the model API do on its own side."""
    return frozenset({"web_search"}) if agent.searches_web else frozenset()


def _route_network(agent: AgentSpec) -> Network:
    """Where secrets may go: to their hosts, at a private address only if agent.md says so."""
    hosts = tuple(dict.fromkeys(host for secret in agent.secrets for host in secret.hosts))
    return Network(
        mode="allow",
        allow=hosts,
        allow_private=agent.network.allow_private,
        deny=agent.network.deny,
    )


def _note_request(record: Record, seen: ModelRequestSeen) -> None:
    tokens = f"{seen.input_tokens} tokens in, {seen.output_tokens} out"
    what = seen.error_type or tokens
    if seen.left_out:
        what += f", without {', '.join(seen.left_out)}"
    if seen.estimated_usd:
        what += f", estimated at ${seen.estimated_usd:.4f} besides ${seen.cost_usd:.4f}"
    record.note("model_request", f"{seen.status} {seen.model} {what}", **seen.model_dump())


def _note_status(live: LiveRun, text: str, status: str) -> None:
    live.clock.seen_at_work()
    live.record.note("status", f"{status}: {text}" if status else text, status=status)


def _note_egress(live: LiveRun, seen: EgressSeen) -> None:
    live.clock.seen_at_work()
    record = live.record
    where = f"{seen.method} {seen.host}:{seen.port}"
    if seen.allowed:
        record.note("egress", where, **seen.model_dump(exclude={"why"}))
    else:
        record.note("egress_denied", f"{where}: {seen.why}", **seen.model_dump())


def _note_route(live: LiveRun, seen: RouteSeen) -> None:
    live.clock.seen_at_work()
    record = live.record
    where = f"{seen.method} {seen.host}{seen.path}"
    if seen.allowed:
        record.note("secret_used", f"{seen.secret} for {where}", **seen.model_dump())
    else:
        record.note("egress_denied", f"{where}: {seen.why}", **seen.model_dump())
