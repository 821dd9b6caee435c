"""Agent + task -> Prepared, and Prepared -> a stage for its run: made now, waiting, or kept."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread
from pydantic import SecretStr

from orchestrator.catalog import Catalog
from orchestrator.containers.images.fetching import Progress
from orchestrator.containers.runtime import Container, EngineLookup, Runtime
from orchestrator.domain.agent import DEFAULT_RUNNER, AgentSpec
from orchestrator.domain.container import Bind, File, Launch, User
from orchestrator.domain.task import Task
from orchestrator.engine.conversation import open_cli
from orchestrator.engine.live import LiveRun
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Record
from orchestrator.engine.servers.tool_servers import ToolServers, brokered_of
from orchestrator.engine.sessions.memory import Memory, MemoryText
from orchestrator.engine.sessions.sessions import Makings, Sessions
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.spare import memory_bytes, takes_spares
from orchestrator.engine.spares.stock import Stock
from orchestrator.engine.stage import LimitCounter, Stage, WaitingStage
from orchestrator.engine.workspaces.copies import Copies, Mounted
from orchestrator.errors import MountRefused, OrchestratorError
from orchestrator.gateway.egress.access import EgressSeen
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.given import most_requests
from orchestrator.gateway.model.service import ModelService
from orchestrator.gateway.model.upstream import Upstream
from orchestrator.gateway.reach import Reach, ways_out
from orchestrator.gateway.secrets.routes import RouteSeen
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.plan import Place
from orchestrator.runners.choice import Choice, RunnerWay
from orchestrator.runners.contract import Runner, WireFormat
from orchestrator.workspace.agent_files import digest_of, place_agent_files

log = logging.getLogger(__name__)

ScriptOf = Callable[[AgentSpec, str], Upstream | None]
"""A script that plays the model for this agent on this runner; None for the real model."""

FRESH_SECONDS = 10.0
"""What was looked up when a task was accepted is looked up again if it begins later than that."""


CatalogNow = Callable[[], Catalog]
"""The agents and servers that there are."""


ChooseRunner = Callable[[AgentSpec], Choice]
"""The runners that could do an agent's work. AgentInvalid if none could."""


class CheckTrust(Protocol):
    """NotTrusted if an agent wants what nobody has trusted it with; else the directory in which
    alone it may write to a workspace, or None. Blocks.
    """

    def __call__(
        self, agent: AgentSpec, others: Catalog, workspace: Path | None
    ) -> Path | None: ...


class _Found(NamedTuple):
    """What the disk says about a task."""

    owner: User | None
    mounted: Mounted
    memory: MemoryText
    write_within: Path | None
    agent_files: tuple[File, ...]


ReadFiles = Callable[[AgentSpec], tuple[File, ...]]
"""The files of an agent's folder that agent.md names. AgentInvalid if one cannot be had. Blocks."""


def no_agent_files(agent: AgentSpec) -> tuple[File, ...]:  # noqa: ARG001 the shape of a reader
    """No agent brings any."""
    return ()


class Planner:
    """Agent + task -> Prepared: looks up all that a run needs, and makes nothing."""

    def __init__(
        self,
        *,
        catalog: CatalogNow,
        check_trust: CheckTrust,
        engine: EngineLookup,
        environ: Mapping[str, str],
        copies: Copies,
        secret_store: SecretStore,
        memory: Memory,
        choose: ChooseRunner,
        read_files: ReadFiles = no_agent_files,
        ca_certificates: str = "",
    ) -> None:
        self._choose = choose
        self._catalog = catalog
        self._check_trust = check_trust
        self._engine = engine
        self._environ = environ
        self._copies = copies
        self._secret_store = secret_store
        self.memory = memory
        self._read_files = read_files
        self._ca_certificates = ca_certificates
        self._looks = anyio.CapacityLimiter(1)
        """One at a time, or calls to a session would overtake each other here."""

    async def prepare(
        self,
        agent: AgentSpec,
        task: Task,
        progress: Progress = lambda _: None,
        *,
        really: bool = True,
        ways: Sequence[RunnerWay] = (),
    ) -> Prepared:
        """What a run needs; not `really`, and no secret is asked for. Nothing is looked up, and so
        nothing is launched, for an agent that wants what nobody has trusted it with.

        `ways` are the runners to try, if they have been chosen before.
        """
        choice = Choice(candidates=tuple(ways)) if ways else self._choose(agent)
        way, *others = choice.candidates
        if way.model != agent.model:
            agent = agent.model_copy(update={"model": way.model})
        catalog = self._catalog()
        brokered = brokered_of(agent, catalog)
        look = partial(self._look, agent, task, catalog)
        found = await anyio.to_thread.run_sync(look, limiter=self._looks)
        values = await self._secret_store.resolve(agent) if really else _stand_ins(agent)
        place = Place(
            image=agent.image or await self._engine.agent_image(way.runner, progress),
            workspace_owner=found.owner,
            workspace=found.mounted.workspace,
            git_mounts=found.mounted.git,
            covers=found.mounted.covers,
            write_within=found.write_within,
            ca_certificates=self._ca_certificates,
            seccomp=await self._engine.seccomp_profile(),
            agent_files=found.agent_files,
        )
        prepared = Prepared(
            *(agent, task, place, self._environ, values, found.memory, way),
            # A session's conversation is one CLI's, which no other can take up.
            others=() if agent.session.keep else tuple(others),
            passed_over=choice.passed_over,
            brokered=brokered,
        )
        container = prepared.plan.container
        binds = [mount for mount in container.mounts if isinstance(mount, Bind)]
        versions = tuple(_identity(bind.source) for bind in binds)
        versions += tuple(each.digest for each in brokered)
        if found.agent_files:
            versions = (*versions, digest_of(found.agent_files))
        if takes_spares(agent):
            versions = (await self._engine.image_id(container.image), *versions)
        return prepared.with_versions(versions)

    def _look(self, agent: AgentSpec, task: Task, others: Catalog) -> _Found:
        """All that is looked for on the disk, at one go. Blocks."""
        within = self._check_trust(agent, others, task.workspace)
        self._copies.check(agent, task)
        mounted = self._copies.mounted(agent, task)
        shown = mounted.workspace
        owner = _owner_of(task.workspace, shown.identity if shown else "")
        files = self._read_files(agent)
        return _Found(owner, mounted, self.memory.read(agent), within, files)

    async def have_image(self) -> None:
        """Have the image that most agents run in, before the first call wants it."""
        runners = Counter[str]()
        for agent in self._catalog().agents.values():
            with suppress(OrchestratorError):  # told when it is called
                runners[self._choose(agent).candidates[0].runner] += agent.image is None
        most = max(runners, key=runners.__getitem__, default=DEFAULT_RUNNER)
        await self._engine.agent_image(most)

    async def as_of_now(self, prepared: Prepared) -> Prepared:
        """The same, looked up again if it has waited: a run in a session before it may have changed
        the agent's memory, and a secret does not last for ever.
        """
        agent, memory = prepared.agent, prepared.memory
        if agent.session.keep and agent.memory != "none":
            memory = await anyio.to_thread.run_sync(self.memory.read, agent, limiter=self._looks)
        if memory == prepared.memory and time.monotonic() - prepared.at < FRESH_SECONDS:
            return prepared
        ways = (prepared.way, *prepared.others)
        return await self.prepare(agent, prepared.task, ways=ways)


@dataclass(frozen=True)
class Gateway:
    """What leads outside: the model, or scripts in its place, and connections to other hosts."""

    models: ModelService
    dialer: Dialer
    script_of: ScriptOf = lambda *_: None
    scripted: bool = False
    """Scripts play the model, for all agents."""

    def lacks(self, wire_format: WireFormat) -> str:
        """Which credentials are missing for models that are spoken to so; "" if scripts play them,
        or none is.
        """
        return "" if self.scripted else self.models.lacks_credential(wire_format)

    def reach(self, prepared: Prepared) -> Reach:
        """Services for a container of this agent. They refuse everything until `bind`."""
        agent = prepared.agent
        script = self.script_of(agent, prepared.way.runner)
        model = self.models.access(
            wire_format=prepared.way.wire_format,
            upstream=script,
            server_tools=_server_tools(agent),
        )
        return Reach(model, agent.parent_tools, prepared.brokered)

    def bind(self, reach: Reach, prepared: Prepared, live: LiveRun) -> None:
        """Open a container's services to one run: as agent.md says, and on the run's record."""
        agent, record = prepared.agent, live.record
        record.add_secrets((reach.sought,))
        reach.model.bind(
            budget_usd=live.own_budget_usd,
            on_request=partial(_note_request, record),
            others_spent=lambda: live.budget_left is not None and live.budget_left <= 0,
            at_work=live.asking_model,
            decided=record.decided,
            model=agent.model,
            most_requests=most_requests(agent, counts=prepared.runner.abilities.counts_turns),
            is_offered=partial(prepared.runner.is_offered, agent),
        )
        ways = ways_out(
            agent.network,
            agent.secrets,
            prepared.values,
            self.dialer,
            on_egress=partial(_note_egress, live),
            on_route=partial(_note_route, live),
            decided=record.decided,
        )
        reach.bind(*ways)
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
        servers: ToolServers,
    ) -> None:
        self.planner = planner
        self._runtime = runtime
        self._gateway = gateway
        self._sessions = sessions
        self._servers = servers
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
        async with self._servers.ended_with(prepared), opened as stage:
            yield stage

    def _bind(self, stage: Stage, prepared: Prepared, live: LiveRun) -> None:
        self._gateway.bind(stage.reach, prepared, live)
        self._servers.bind(stage, prepared, live)

    @asynccontextmanager
    async def _made_now(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        async with self._new(prepared) as stage:
            self._bind(stage, prepared, live)
            yield stage

    @asynccontextmanager
    async def _claimed(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        async with self.stock.claimed(prepared) as spare:
            self._bind(spare.stage, prepared, live)
            yield spare.stage

    @asynccontextmanager
    async def _in_session(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        session, makings = prepared.agent.session, self._makings(prepared)
        async with self._sessions.use(prepared.session, session, makings) as use:
            live.joined(use.note, goes_on=use.goes_on)
            self._bind(use.stage, prepared, live)
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
        reach = self._gateway.reach(prepared)
        launch, runner = prepared.planned(reach.model.token).launch, prepared.runner
        made = self._runtime.open(prepared.plan.container, labels=prepared.labels)
        async with made as container:
            await reach.offer(container)
            files = prepared.plan.agent_files
            opened = open_stage(
                *(container, launch, runner, reach, files), waited=waited, rehearse=rehearse
            )
            async with opened as stage:
                yield stage

    def _makings(self, prepared: Prepared) -> Makings:
        agent = prepared.agent
        runner = prepared.runner

        def open_again(
            container: Container, reach: Reach, limits: LimitCounter, talk: str, resume: bool
        ) -> AbstractAsyncContextManager[Stage]:
            launch = prepared.planned(reach.model.token, talk, resume).launch
            files = prepared.plan.agent_files
            return open_stage(container, launch, runner, reach, files, limits=limits, waited=True)

        return Makings(
            spec=prepared.plan.container,
            labels=prepared.labels,
            agent_digest=" ".join((agent.digest, *prepared.versions)),
            cli_digest=_digest(prepared.plan.launch),
            reach=lambda: self._gateway.reach(prepared),
            open_stage=open_again,
            history=lambda talk: runner.history_file(talk, prepared.plan.launch.cwd),
            disk_bytes=agent.resources.disk_bytes,
        )


@asynccontextmanager
async def open_stage(
    container: Container,
    launch: Launch,
    runner: Runner,
    reach: Reach,
    agent_files: Sequence[File] = (),
    *,
    limits: LimitCounter | None = None,
    waited: bool = False,
    rehearse: bool = False,
) -> AsyncIterator[Stage]:
    """Start the CLI in a container, which has the agent's files by then; leaving the block ends
    the CLI, and what it could reach.
    """
    await place_agent_files(container, agent_files)
    opened = open_cli(container, launch, runner, ready=waited, rehearse=rehearse)
    async with opened as conversation:
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
        named = seen.why.startswith((f"{seen.host}:", f"[{seen.host}]:"))
        record.note(
            "egress_denied", seen.why if named else f"{where}: {seen.why}", **seen.model_dump()
        )


def _note_route(live: LiveRun, seen: RouteSeen) -> None:
    live.clock.seen_at_work()
    record = live.record
    where = f"{seen.method} {seen.host}{seen.path}"
    if seen.allowed:
        record.note("secret_used", f"{seen.secret} for {where}", **seen.model_dump())
    else:
        record.note("egress_denied", f"{where}: {seen.why}", **seen.model_dump())
