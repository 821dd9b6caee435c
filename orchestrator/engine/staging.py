"""Agent + task -> a plan, and a stage to carry it out on: made now, waiting, or kept."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
from pydantic import SecretStr

from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Bind, Launch, User
from orchestrator.domain.task import Task
from orchestrator.engine.binding import bind, server_tools
from orchestrator.engine.copies import Copies
from orchestrator.engine.live import LiveRun
from orchestrator.engine.prepared import Needs, Prepared
from orchestrator.engine.sessions.memory import Memory, MemoryText
from orchestrator.engine.sessions.sessions import Makings, Sessions
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.spare import memory_bytes
from orchestrator.engine.spares.stock import Stock, may_wait
from orchestrator.engine.stage import Stage, WaitingStage, open_stage
from orchestrator.errors import OrchestratorError
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.model.service import ModelService
from orchestrator.gateway.model.upstream import Upstream
from orchestrator.gateway.reach import Reach
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.plan import Place
from orchestrator.runners.claude.launch import history_file

log = logging.getLogger(__name__)

ScriptOf = Callable[[AgentSpec], Upstream | None]
"""A script that plays the model for this agent; None for the real model."""

FRESH_SECONDS = 10.0
"""What was looked up when a task was accepted is looked up again if it begins later than that."""

STAND_IN = "(a token for this run only)"


class _Found(NamedTuple):
    """What the disk says about a task."""

    owner: User | None
    git_mounts: tuple[Bind, ...]
    memory: MemoryText


def no_script(_: AgentSpec) -> Upstream | None:
    return None


async def no_image_id(_: str) -> str:
    return ""


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
        self.stock = Stock(pool, self._usual, self._waiting)
        self._memory = memory
        self._looks = anyio.CapacityLimiter(1)
        """One at a time, or calls to a session would overtake each other here."""
        self._ca_certificates = ca_certificates
        self._script_of = script_of

    async def prepare(self, agent: AgentSpec, task: Task, *, really: bool = True) -> Prepared:
        """What a run needs; not `really`, and no secret is asked for."""
        found = await anyio.to_thread.run_sync(self._look, agent, task, limiter=self._looks)
        values = await self._secret_store.resolve(agent) if really else _stand_ins(agent)
        place = Place(
            image=agent.image or await self._image(),
            workspace_owner=found.owner,
            git_mounts=found.git_mounts,
            ca_certificates=self._ca_certificates,
            seccomp=await self._runtime.seccomp_profile(),
        )
        needs = Needs(agent, task, place, self._environ, values, found.memory)
        planned = needs.planned(STAND_IN)
        binds = [mount for mount in planned.container.mounts if isinstance(mount, Bind)]
        versions = tuple(_identity(bind.source) for bind in binds)
        if may_wait(agent):
            versions = (await self._image_id(planned.container.image), *versions)
        return Prepared(**vars(needs), plan=planned, versions=versions)

    def _look(self, agent: AgentSpec, task: Task) -> _Found:
        """All that is looked for on the disk, at one go. Blocks."""
        self._copies.check(agent, task)
        mounts = self._copies.git_mounts(agent, task)
        return _Found(workspace_owner(task.workspace), mounts, self._memory.read(agent))

    async def as_of_now(self, prepared: Prepared) -> Prepared:
        """The same, if it has waited: a session before it may have changed the agent's memory, and
        a secret does not last for ever.
        """
        agent, memory = prepared.agent, prepared.memory
        if agent.session.keep and agent.memory != "none":
            memory = await anyio.to_thread.run_sync(self._memory.read, agent, limiter=self._looks)
        if memory == prepared.memory and time.monotonic() - prepared.at < FRESH_SECONDS:
            return prepared
        return await self.prepare(agent, prepared.task)

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
        if may_wait(prepared.agent):
            async with self.stock.claimed(prepared) as waiting:
                bind(waiting.stage.reach, prepared, live, self._dialer)
                yield waiting.stage
            return
        reach = self._reach(prepared.agent)
        launch = prepared.planned(reach.model.token).launch
        held = self._runtime.open(prepared.plan.container, labels=_labels(prepared.task))
        async with open_stage(held, launch, reach) as stage:
            bind(reach, prepared, live, self._dialer)
            yield stage

    @asynccontextmanager
    async def _in_session(self, prepared: Prepared, live: LiveRun) -> AsyncIterator[Stage]:
        record, outcome = live.record, live.outcome
        session, makings = prepared.agent.session, self._makings(prepared)
        async with self._sessions.use(prepared.session, session, makings) as use:
            outcome.session, outcome.session_note = prepared.session.name, use.note
            if use.note:
                record.note("warning", use.note)
            bind(use.stage.reach, prepared, live, self._dialer)
            await self._memory.place(use.stage.container, prepared.memory)
            try:
                yield use.stage
            finally:
                await self._memory.take_back(use.stage.container, prepared.memory, record)

    async def clear_up(self) -> None:
        """Remove containers that a dead orchestrator left half made, and have the image that most
        agents need, before the first call wants it; without an engine, nothing.
        """
        try:
            await self._runtime.reap()
            await self._image()
        except OrchestratorError as exc:
            log.info("nothing is made ready: %s", exc)
        except Exception:
            log.exception("nothing is made ready")

    async def _usual(self, agent: AgentSpec) -> Prepared:
        return await self.prepare(agent, Task(agent=agent.name, prompt="-"), really=False)

    @asynccontextmanager
    async def _waiting(self, prepared: Prepared, *, rehearse: bool) -> AsyncIterator[WaitingStage]:
        reach = self._reach(prepared.agent)
        labels = {"orchestrator.agent": prepared.agent.name, "orchestrator.spare": "yes"}
        held = self._runtime.open(prepared.plan.container, labels=labels)
        launch = prepared.planned(reach.model.token).launch
        async with open_stage(held, launch, reach, initialize=True, rehearse=rehearse) as stage:
            yield WaitingStage(stage, await memory_bytes(stage.container))

    def variables(self, prepared: Prepared) -> tuple[str, ...]:
        """Values of the orchestrator's variables that enter the container."""
        return tuple(self._environ.get(name, "") for name in prepared.plan.secrets_inside)

    # What it is made of

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
            launch=lambda reach, conversation, resume: (
                prepared.planned(reach.model.token, conversation, resume).launch
            ),
            history=lambda conversation: history_file(conversation, prepared.plan.launch.cwd),
            disk_bytes=agent.resources.disk_bytes,
        )

    def _reach(self, agent: AgentSpec) -> Reach:
        """Services that are open to nobody yet."""
        script = self._script_of(agent)
        model = self._models.access(upstream=script, server_tools=server_tools(agent))
        return Reach(model, agent.parent_tools)


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


def _stand_ins(agent: AgentSpec) -> dict[str, SecretStr]:
    return {secret.name: SecretStr("(a secret)") for secret in agent.secrets}


def _digest(launch: Launch) -> str:
    return hashlib.sha256(launch.model_dump_json().encode()).hexdigest()


def _labels(task: Task) -> dict[str, str]:
    return {"orchestrator.run": task.run_id, "orchestrator.agent": task.agent}
