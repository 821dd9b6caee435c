"""Agent + task -> a plan, and a stage to carry it out on: made now, waiting, or kept."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import SecretStr

from orchestrator.catalog import AgentsDir
from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import AgentSpec, Network
from orchestrator.domain.container import Bind, Launch, User
from orchestrator.domain.task import Task
from orchestrator.engine.copies import Copies
from orchestrator.engine.live import LiveRun
from orchestrator.engine.memory import Memory, MemoryText
from orchestrator.engine.pool import Pool
from orchestrator.engine.record import Record
from orchestrator.engine.session_rows import SessionKey
from orchestrator.engine.sessions import Makings, Sessions
from orchestrator.engine.spare import memory_bytes, spare_key
from orchestrator.engine.stage import Stage, WaitingStage, open_stage
from orchestrator.errors import OrchestratorError
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

log = logging.getLogger(__name__)

ScriptOf = Callable[[AgentSpec], Upstream | None]
"""A script that plays the model for this agent; None for the real model."""

LOOK_SECONDS = 1.0
"""How often agents/ is looked at for spares that are wanted, or not any more."""

MAX_ALIKE = 4
"""Kinds of spares of one agent: with its usual spec, and with the last few workspaces."""

STOCK_SECONDS = 5.0
"""And how often all else that a spare is made of: an image may have another one's name now, and an
engine that was away be back."""

MAX_GOING = 8
"""Spares that have been used and go by themselves. With more of them, a run waits for its own."""

STAND_IN = "(a token for this run only)"


def no_script(_: AgentSpec) -> Upstream | None:
    return None


async def no_image_id(_: str) -> str:
    return ""


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
    versions: tuple[str, ...] = ()
    """What the plan's names stand for now: the image, the directories."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(value.get_secret_value() for value in self.values.values())

    @property
    def spare_key(self) -> str:
        """The same for all runs that one spare could serve."""
        return spare_key(self.plan.container, self.plan.launch, *self.versions)

    @property
    def made_of(self) -> tuple[str, str]:
        """What spares of one agent have in common, whatever their workspace."""
        return self.agent.digest, "".join(self.versions[:1])

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
        image_id: Callable[[str], Awaitable[str]] = no_image_id,
        environ: Mapping[str, str],
        copies: Copies,
        dialer: Dialer,
        secret_store: SecretStore,
        sessions: Sessions,
        pool: Pool[WaitingStage],
        memory: Memory,
        ca_certificates: str = "",
        script_of: ScriptOf = no_script,
    ) -> None:
        self._runtime = runtime
        self._models = models
        self._image = image
        self._image_id = image_id
        self._environ = environ
        self._copies = copies
        self._dialer = dialer
        self._secret_store = secret_store
        self._sessions = sessions
        self._pool = pool
        self._wanted: dict[str, str] = {}
        """Spares that are kept: their key -> their agent, the oldest first."""
        self._stocked: dict[str, tuple[str, str]] = {}
        """What they are made of: the agent and its image, as of now."""
        self._going: set[asyncio.Task[None]] = set()
        self._said: dict[str, str] = {}
        """Why there are no spares, by agent."""
        self._memory = memory
        self._looks = anyio.CapacityLimiter(1)
        """One at a time, or calls to a session would overtake each other here."""
        self._ca_certificates = ca_certificates
        self._script_of = script_of

    async def prepare(self, agent: AgentSpec, task: Task, *, really: bool = True) -> Prepared:
        """What a run needs; not `really`, and no secret is asked for."""
        looks = self._looks
        await anyio.to_thread.run_sync(self._copies.check, agent, task, limiter=looks)
        values = await self._secret_store.resolve(agent) if really else _stand_ins(agent)
        place = Place(
            image=agent.image or await self._image(),
            workspace_owner=workspace_owner(task.workspace),
            git_mounts=await anyio.to_thread.run_sync(
                self._copies.git_mounts, agent, task, limiter=looks
            ),
            ca_certificates=self._ca_certificates,
            seccomp=await self._runtime.seccomp_profile(),
        )
        memory = await anyio.to_thread.run_sync(self._memory.read, agent, limiter=looks)
        planned = self._plan(agent, task, place, values, memory, STAND_IN)
        binds = [mount for mount in planned.container.mounts if isinstance(mount, Bind)]
        versions = tuple(_identity(bind.source) for bind in binds)
        if self._may_wait(agent):
            versions = (await self._image_id(planned.container.image), *versions)
        return Prepared(agent, task, place, values, memory, planned, versions)

    def turn(self, prepared: Prepared) -> AbstractAsyncContextManager[None]:
        """Wait for what only one run can have at a time: a session."""
        if prepared.agent.session.keep:
            return self._sessions.turn(prepared.session)
        return nullcontext()

    @asynccontextmanager
    async def stage(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        """Where the run is played, bound to it for as long as the block lasts."""
        record = live.record
        if prepared.agent.seccomp == "strict" and prepared.place.seccomp is None:
            record.note("warning", "this engine does not take our seccomp profile; its own is used")
        image = prepared.plan.container.image
        record.note("starting", f"a container of {image}", image=image)
        if prepared.agent.session.keep:
            async with self._in_session(prepared, live) as stage:
                yield stage
            return
        if self._may_wait(prepared.agent):
            # From before the claim: a refill in the very same moment would slow down this run.
            self._pool.gate.hush(self._pool.limits.quiet_seconds)
            async with self._claimed(prepared) as waiting:
                self._want_again(prepared)
                self._bind(waiting.stage.reach, prepared, live)
                yield waiting.stage
            return
        reach = self._reach(prepared.agent)
        launch = self._launch(prepared, reach)
        held = self._runtime.open(prepared.plan.container, labels=_labels(prepared.task))
        async with open_stage(held, launch, reach) as stage:
            self._bind(reach, prepared, live)
            yield stage

    @asynccontextmanager
    async def _in_session(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        record, outcome = live.record, live.outcome
        session, makings = prepared.agent.session, self._makings(prepared)
        async with self._sessions.use(prepared.session, session, makings) as use:
            outcome.session, outcome.session_note = prepared.session.name, use.note
            if use.note:
                record.note("warning", use.note)
            self._bind(use.stage.reach, prepared, live)
            await self._memory.place(use.stage.container, prepared.memory)
            try:
                yield use.stage
            finally:
                await self._memory.take_back(use.stage.container, prepared.memory, record)

    # Spares

    @asynccontextmanager
    async def _claimed(self, prepared: Prepared) -> AsyncIterator[WaitingStage]:
        """A spare, or a stage made now. A spare that was used goes by itself afterwards, unless
        somebody could see what it still does; the pool does not end before it.
        """
        made_now = False
        over, scope = anyio.Event(), anyio.CancelScope()
        got: asyncio.Future[WaitingStage] = asyncio.get_running_loop().create_future()

        def make() -> AbstractAsyncContextManager[WaitingStage]:
            nonlocal made_now
            made_now = True
            return self._waiting(prepared, rehearse=False)

        async def hold() -> None:
            try:
                with scope:
                    async with self._pool.claimed(prepared.spare_key, make) as waiting:
                        got.set_result(waiting)
                        await over.wait()
            except Exception as exc:
                if got.done():
                    log.exception("a container of %s did not go as it should", prepared.agent.name)
                else:
                    got.set_exception(exc)

        host = asyncio.create_task(hold(), name="a claim")
        try:
            yield await asyncio.shield(got)
        finally:
            over.set()
            if not got.done():
                scope.cancel()
            failed = got.done() and got.exception() is not None
            if got.done() and not (failed or made_now) and self._may_go(prepared, got.result()):
                self._going.add(host)
                host.add_done_callback(self._going.discard)
            else:
                with anyio.CancelScope(shield=True):  # bounded, by the pool and the runtime
                    await asyncio.wait({host})

    def _may_go(self, prepared: Prepared, used: WaitingStage) -> bool:
        """Whether all that a run did is known and done with, though its container still ends."""
        used.stage.reach.revoke()
        mounts = prepared.plan.container.mounts
        writes = any(isinstance(mount, Bind) and not mount.read_only for mount in mounts)
        return not writes and used.stage.reach.model.is_idle and len(self._going) < MAX_GOING

    async def clear_up(self) -> None:
        """Remove containers that a dead orchestrator left half made; without an engine, nothing."""
        try:
            await self._runtime.reap()
        except OrchestratorError as exc:
            log.debug("nothing is cleared up: %s", exc)

    async def keep_warm(self, agents: AgentsDir) -> None:
        """Have as many spares as the agents ask for, for ever."""
        seen: object = None
        stocked = -math.inf
        while True:
            catalog = agents.current()
            if catalog is not seen or anyio.current_time() - stocked > STOCK_SECONDS:
                seen, stocked = catalog, anyio.current_time()
                await self._stock([a for a in catalog.agents.values() if self._may_wait(a)])
            await anyio.sleep(LOOK_SECONDS)

    async def _stock(self, agents: Sequence[AgentSpec]) -> None:
        """Want spares for these agents, and for no others."""
        found = {agent.name: await self._usual(agent) for agent in agents}
        wanted: dict[str, str] = {}  # from here on nobody comes in between
        for name, prepared in found.items():
            alike = [key for key, known in self._wanted.items() if known == name]
            if prepared is not None and prepared.spare_key not in alike:
                alike = [prepared.spare_key]  # it has changed: none of the old ones will do
            wanted |= dict.fromkeys(alike, name)
        for key in self._wanted.keys() - wanted.keys():
            self._pool.forget(key)
        self._wanted = wanted
        for name, prepared in found.items():
            if prepared is not None:
                self._stocked[name] = prepared.made_of
                self._want(prepared)

    async def _usual(self, agent: AgentSpec) -> Prepared | None:
        """What most runs of an agent need; None if that cannot be had now."""
        said = ""
        try:
            return await self.prepare(agent, Task(agent=agent.name, prompt="-"), really=False)
        except OrchestratorError as exc:
            said = str(exc)
            if self._said.get(agent.name) != said:  # once, not every few seconds
                log.warning("no spares of %s: %s", agent.name, said)
            return None
        finally:
            self._said[agent.name] = said

    def _want(self, prepared: Prepared) -> None:
        self._wanted[prepared.spare_key] = prepared.agent.name
        self._pool.want(prepared.spare_key, prepared.agent.warm, lambda: self._waiting(prepared))

    def _want_again(self, prepared: Prepared) -> None:
        """The next run may well be like this one: on the same workspace, for instance."""
        alike = [key for key, name in self._wanted.items() if name == prepared.agent.name]
        if not alike or prepared.spare_key in alike:
            return  # nobody keeps spares of it, or these are there already
        if prepared.made_of != self._stocked.get(prepared.agent.name):
            return  # the agent has changed since this run began
        for key in alike[1 : len(alike) + 2 - MAX_ALIKE]:
            del self._wanted[key]
            self._pool.forget(key)
        self._want(prepared)

    def _may_wait(self, agent: AgentSpec) -> bool:
        """Whether a spare can stand in for it: nothing of a run may be in one beforehand."""
        exposed = any(secret.expose is not None for secret in agent.secrets)
        return bool(agent.warm) and not agent.session.keep and not exposed

    @asynccontextmanager
    async def _waiting(
        self, prepared: Prepared, *, rehearse: bool = True
    ) -> AsyncIterator[WaitingStage]:
        reach = self._reach(prepared.agent)
        labels = {"orchestrator.agent": prepared.agent.name, "orchestrator.spare": "yes"}
        held = self._runtime.open(prepared.plan.container, labels=labels)
        launch = self._launch(prepared, reach)
        async with open_stage(held, launch, reach, initialize=True, rehearse=rehearse) as stage:
            yield WaitingStage(stage, await memory_bytes(stage.container))

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
            agent_digest=" ".join((agent.digest, *prepared.versions)),
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
        model = self._models.access(upstream=script, server_tools=_server_tools(agent))
        return Reach(model, agent.parent_tools)

    def _bind(self, reach: Reach, prepared: Prepared, live: LiveRun) -> None:
        """Open them to one run."""
        agent, record = prepared.agent, live.record
        record.add_secrets((reach.sought,))
        reach.model.bind(
            budget_usd=live.budget_left, on_request=lambda seen: _note_request(record, seen)
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
        if agent.parent_tools:
            reach.parent.bind(
                live.desk.ask, lambda text, _: record.note("status", text), live.delegate
            )


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


def _identity(path: str) -> str:
    """Which directory it is: another one may have its name by tomorrow."""
    try:
        status = Path(path).stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"


def _route_network(agent: AgentSpec) -> Network:
    """Where secrets may go: to their hosts, at a private address only if agent.md says so."""
    hosts = tuple(dict.fromkeys(host for secret in agent.secrets for host in secret.hosts))
    return Network(
        mode="allow",
        allow=hosts,
        allow_private=agent.network.allow_private,
        deny=agent.network.deny,
    )


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
