"""The one place that picks real parts: settings in, a working orchestrator out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread

from orchestrator import output
from orchestrator.access import DEFAULT_CALLER, known_caller
from orchestrator.catalog import AgentsDir, load_catalog
from orchestrator.containers.lazy_runtime import LazyRuntime
from orchestrator.containers.mounts import MountPolicy
from orchestrator.containers.owner import Owner
from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.sessions.memory import Memory
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.engine.stage import WaitingStage
from orchestrator.engine.staging import EngineLookup, Gateway, Planner, Staging
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.engine.tasks.retention import Retention, keep_of, kept_tidy
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.errors import EngineUnreachable, ImageMissing, OperatorError
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.model.credential import credential_of
from orchestrator.gateway.model.scripted import ScriptedModel, load_script
from orchestrator.gateway.model.service import open_model_service
from orchestrator.gateway.model.upstream import Upstream
from orchestrator.gateway.secrets.secret_store import SecretStore, secret_files
from orchestrator.plan import STAND_IN_RUN, Plan, shown_variables
from orchestrator.settings import (
    Settings,
    check_declared,
    environment,
    git_configurations,
    moved_credentials,
    secret_environment,
)
from orchestrator.state import open_store, open_trust
from orchestrator.store.runs import Caps, Store
from orchestrator.store.session_rows import SessionRows
from orchestrator.trust import trust_command
from orchestrator.workspace.kept import CHANGES

if TYPE_CHECKING:
    from orchestrator.containers.docker.engine import Engine
    from orchestrator.containers.docker.runtime import DockerRuntime

SCRIPTED_SECRET = "a-script-plays-the-model"  # noqa: S105 it is none
"""For a secret that is not set, where a script plays the model and nothing real could use it."""

NO_ENGINE = "the agent image (no engine answers)"
NOT_BUILT = "the agent image (not built yet; `orchestrator images build`)"


@asynccontextmanager
async def open_orchestrator(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Service]:
    """Everything that runs tasks. The engine is asked for when the first task needs it."""
    with Owner(settings.state_dir) as owner, open_store(settings, owner.id) as store:
        runtime = LazyRuntime(settings, partial(open_runtime, settings, owner))
        copies = open_copies(settings)
        sessions = Sessions(runtime, SessionRows(store, owner.id))
        pool: Pool[WaitingStage] = Pool(pool_limits(settings))
        variables = environment() if environ is None else environ
        try:
            await settle_lost(store, owner.alive, copies.kept.recall)
            tidied = kept_tidy(
                partial(open_retention, settings),
                keep_of(settings.keep_days, settings.keep_mb),
                settings.state_dir / "pruned",
            )
            async with open_model_service(settings) as models, sessions, pool, tidied:
                script_of = partial(_script, settings)
                parts = Parts(
                    store=store,
                    alive=owner.alive,
                    runtime=runtime,
                    engine=runtime,
                    gateway=Gateway(models, Dialer(environ=variables), script_of),
                    copies=copies,
                    secret_store=_secret_store(settings),
                    sessions=sessions,
                    pool=pool,
                    variables=variables,
                    ca_certificates=_ca_certificates(variables),
                )
                yield compose(settings, parts)
        finally:
            await runtime.aclose()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What an orchestrator is made of, opened; tests choose some of it."""

    store: Store
    alive: Callable[[str], bool]
    """Whether an orchestrator of the same state directory lives."""
    runtime: Runtime
    engine: EngineLookup
    gateway: Gateway
    copies: Copies
    secret_store: SecretStore
    sessions: Sessions
    pool: Pool[WaitingStage]
    variables: Mapping[str, str]
    """Of the environment, that agent.md may name."""
    ca_certificates: str


def compose(settings: Settings, parts: Parts) -> Service:
    """The parts, put together; nothing is opened or started here."""
    credential = credential_of(settings)
    agents = AgentsDir(settings.agents_dir, output.check_schema)
    planner = Planner(
        agents=lambda: agents.current().agents,
        check_trust=open_trust(settings).check,
        engine=parts.engine,
        environ=parts.variables,
        copies=parts.copies,
        secret_store=parts.secret_store,
        memory=_memory(settings),
        ca_certificates=parts.ca_certificates,
    )
    staging = Staging(
        planner=planner,
        runtime=parts.runtime,
        gateway=parts.gateway,
        sessions=parts.sessions,
        pool=parts.pool,
    )
    return Service(
        agents=agents,
        store=parts.store,
        staging=staging,
        sessions=parts.sessions,
        copies=parts.copies,
        alive=parts.alive,
        secrets=(credential.secret.get_secret_value(),) if credential else (),
        caps=Caps(runs=settings.max_runs, runs_per_agent=settings.max_runs_per_agent),
        project=settings.project,
        scripted=settings.scripted,
    )


@asynccontextmanager
async def open_tasks(settings: Settings) -> AsyncIterator[tuple[Service, Tasks]]:
    """An orchestrator, and the runs that go on in it by themselves."""
    async with open_orchestrator(settings) as service, Tasks(service) as tasks:
        yield service, tasks


def own_caller(settings: Settings, named: str | None = None) -> str:
    """Who calls through this process, by its user's own hand or by a client that he started; an
    empty name is none, and not who it would be without a word.
    """
    if named:
        check_declared(settings, named, "--caller")
    return known_caller(
        settings.named_caller if named is None else named,
        settings.caller if named is None else DEFAULT_CALLER,
        deny_missing=settings.deny_on_missing_caller,
    )


class ShownPlan(NamedTuple):
    """What a run would launch, with stand-ins for all values that are the run's or secret."""

    plan: Plan
    labels: Mapping[str, str]
    """Of its container."""
    unset: tuple[str, ...]
    """Variables that agent.md names and that are not set: a run would fail."""
    trust: ShownTrust


class ShownTrust(NamedTuple):
    """Whether an agent may have what it wants."""

    reaches: bool
    """It wants something that a person has to agree to."""
    wants: tuple[str, ...]
    """What of that nobody has agreed to yet: a run would be refused."""
    command: str
    """What to type for that."""


async def show_plan(settings: Settings, agent_name: str, workspace: Path | None) -> ShownPlan:
    """What a run would launch, by the planner that runs have. Needs no engine, makes nothing, and
    asks for no secret.
    """
    environ = environment()
    agents = load_catalog(settings.agents_dir, output.check_schema)
    agent = agents.agent(agent_name)
    task = Task(
        agent=agent_name,
        prompt="(the task)",
        workspace=workspace,
        caller=settings.caller,
        project=settings.project,
        run_id=STAND_IN_RUN,
    )
    shown, unset = shown_variables(agent, environ)
    engine = await anyio.to_thread.run_sync(_engine_as_found, settings)
    planner = Planner(
        agents=lambda: agents.agents,
        check_trust=lambda *_: None,  # whoever decides about trust wants to see the plan first
        engine=engine,
        environ=shown,
        copies=open_copies(settings),
        secret_store=_secret_store(settings),
        memory=_memory(settings),
        ca_certificates=_ca_certificates(environ),
    )
    prepared = await planner.prepare(agent, task, really=False)
    policy = mount_policy(settings, engine.address)  # which a runtime applies to what it makes
    container = policy.checked(prepared.plan.container).spec
    plan = prepared.plan.model_copy(update={"container": container})
    trust = open_trust(settings)
    shown_trust = ShownTrust(
        reaches=bool(trust.extent(agent, agents.agents, workspace).grants),
        wants=trust.wants(agent, agents.agents, workspace),
        command=trust_command(trust.agents_dir),
    )
    return ShownPlan(plan, prepared.labels, unset, shown_trust)


@dataclass(frozen=True)
class _EngineAsFound:
    """EngineLookup (engine/staging.py) for a plan that is only shown: nothing is built."""

    address: str
    image: str
    seccomp: str | None

    async def agent_image(self) -> str:
        return self.image

    async def image_id(self, image: str) -> str:  # noqa: ARG002 no spare is made of it
        return ""

    async def seccomp_profile(self) -> str | None:
        return self.seccomp


def _engine_as_found(settings: Settings) -> _EngineAsFound:
    """What the engine says, or stand-ins if none answers. Blocks."""
    from orchestrator.containers.docker.facts import takes_profile
    from orchestrator.containers.images.agent_image import find_agent_image
    from orchestrator.containers.seccomp import profile

    try:
        with open_engine(settings) as engine:
            with engine.translated():
                seccomp = profile() if takes_profile(engine.api.info()) else None
            try:
                image = settings.agent_image or find_agent_image(engine, settings)
            except ImageMissing:
                image = NOT_BUILT
            return _EngineAsFound(engine.address, image, seccomp)
    except EngineUnreachable:
        image = settings.agent_image or NO_ENGINE
        return _EngineAsFound(settings.engine_candidates[0], image, profile())


def _secret_store(settings: Settings) -> SecretStore:
    stand_in = SCRIPTED_SECRET if settings.scripted else ""
    return SecretStore(settings.secrets_file, secret_environment(), stand_in=stand_in)


def _memory(settings: Settings) -> Memory:
    return Memory(settings.agents_dir, settings.state_dir / "memory")


def pool_limits(settings: Settings) -> PoolLimits:
    return PoolLimits(
        max_spares=settings.max_spares,
        max_memory_bytes=settings.max_spares_mb * 1024 * 1024,
        pause_after_seconds=settings.pause_spares_seconds,
    )


@contextmanager
def open_retention(settings: Settings) -> Iterator[Retention]:
    """Removes runs; needs no engine."""
    with open_store(settings) as store:
        yield Retention(store, open_copies(settings))


def open_copies(settings: Settings) -> Copies:
    """What agents did to their copies; needs no engine."""
    return Copies(settings.state_dir / CHANGES, mount_policy(settings))


def _ca_certificates(environ: Mapping[str, str]) -> str:
    """The certificates that this machine was told to trust, for containers as well."""
    path = environ.get("SSL_CERT_FILE")
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as exc:
        raise OperatorError(f"SSL_CERT_FILE={path} cannot be read; correct or unset it") from exc


def _script(settings: Settings, agent: AgentSpec) -> Upstream | None:
    if not settings.scripted:
        return None
    path = settings.agents_dir / agent.name / "script.yaml"
    if not path.exists():
        raise OperatorError(
            f"ORCHESTRATOR_SCRIPTED is set, but {path} is not there to play the model"
        )
    return ScriptedModel(load_script(path)).upstream()


@asynccontextmanager
async def open_runtime(
    settings: Settings, owner: Owner | None = None, *, reap: bool = True
) -> AsyncIterator[DockerRuntime]:
    """The container runtime on the engine that answers; what a crash left is removed first."""
    # Imported here: docker takes 200 ms, which a server should not spend before its hello.
    from orchestrator.containers.docker.engine import connect
    from orchestrator.containers.docker.runtime import open_docker

    engine = await anyio.to_thread.run_sync(connect, settings)
    try:
        with nullcontext(owner) if owner is not None else Owner(settings.state_dir) as held:
            policy = mount_policy(settings, engine.address)
            async with open_docker(engine, held, policy) as runtime:
                if reap:
                    await runtime.reap()
                yield runtime
    finally:
        engine.close()


@contextmanager
def open_engine(settings: Settings) -> Iterator[Engine]:
    """The engine that answers, for its images; blocks."""
    from orchestrator.containers.docker.engine import connect

    engine = connect(settings)
    try:
        yield engine
    finally:
        engine.close()


def mount_policy(settings: Settings, address: str = "") -> MountPolicy:
    """What containers of the engine at this address may be shown; without one, of this machine."""
    return MountPolicy(
        roots=settings.allowed_roots,
        home=settings.home,
        own=(
            settings.agents_dir,
            settings.cache_dir,
            Path.cwd() / "orchestrator.yaml",
            *((settings.claude_binary,) if settings.claude_binary else ()),
        ),
        hidden=(
            settings.state_dir,
            settings.secrets_file,
            *((settings.tls_dir,) if settings.tls_dir else ()),
        ),
        secret_files=lambda: (
            *secret_files(settings.secrets_file),
            *moved_credentials(settings.home),
        ),
        git_configs=git_configurations(settings.home),
        engine_sockets=tuple(
            Path(socket.removeprefix("unix://"))
            for socket in (address, *settings.engine_candidates)
            if socket.startswith("unix://")
        ),
        engine_is_local=not address or address.startswith("unix://"),
    )
