"""The one place that picks real parts: settings in, a working orchestrator out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import anyio
import anyio.to_thread
from pydantic import JsonValue

from orchestrator.catalog import AgentsDir, Problem
from orchestrator.catalog.problems import did_you_mean
from orchestrator.catalog.rules_file import RulesFile
from orchestrator.catalog.runner_file import read_runner_config
from orchestrator.containers.images.fetching import Progress
from orchestrator.containers.labels import ContainerKind
from orchestrator.containers.lazy_runtime import LazyRuntime
from orchestrator.containers.owner import Owner
from orchestrator.containers.runtime import EngineLookup, Runtime
from orchestrator.domain.agent import DEFAULT_RUNNER, AgentSpec, RunnerWish
from orchestrator.domain.container import MIB, File
from orchestrator.domain.task import Task
from orchestrator.domain.tool_lock import Brokered, ToolLock
from orchestrator.domain.tool_server import ToolServer
from orchestrator.engine.outside.outside_service import OutsideService
from orchestrator.engine.outside.upstreams import BrokeredUpstreams
from orchestrator.engine.servers.login import Pasted, log_in
from orchestrator.engine.servers.opening import ServerDecisions, ServerOpener
from orchestrator.engine.servers.tool_servers import ToolServers
from orchestrator.engine.service import Service
from orchestrator.engine.sessions.memory import Memory
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.engine.stage import WaitingStage
from orchestrator.engine.staging import Gateway, Planner, Staging
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.engine.tasks.retention import Retention, keep_of, kept_tidy
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.engine.tasks.watch import Watcher
from orchestrator.engine.tasks.webhook_delivery import WebhookDelivery
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.errors import (
    AgentInvalid,
    CallInvalid,
    EngineUnreachable,
    OperatorError,
    OrchestratorError,
    ServerFailed,
)
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.model.credential import all_credentials
from orchestrator.gateway.model.scripted import ScriptedModel, load_script
from orchestrator.gateway.model.service import missing_credential, open_model_service
from orchestrator.gateway.model.upstream import Upstream
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.gateway.tools.pool import CallFailed, Sharers, WantedServer
from orchestrator.gateway.webhook_post import post_message
from orchestrator.plain_yaml import shortened
from orchestrator.plan import STAND_IN_RUN, Plan, shown_variables
from orchestrator.redaction import Redactor, clean_json
from orchestrator.runners.choice import RunnerWay, choose
from orchestrator.runners.known import RUNNERS
from orchestrator.settings import (
    Settings,
    Webhook,
    environment,
    secret_environment,
)
from orchestrator.state import (
    mount_policy,
    note_decision,
    open_agents,
    open_store,
    open_trust,
    store_bytes,
)
from orchestrator.store.runs import Caps, Store
from orchestrator.store.session_rows import SessionRows
from orchestrator.trust import trust_command
from orchestrator.workspace.agent_files import FilesRefused, read_agent_files
from orchestrator.workspace.archives.uploads import UPLOADS, Uploads
from orchestrator.workspace.kept import CHANGES

if TYPE_CHECKING:
    from orchestrator.containers.docker.engine import Engine
    from orchestrator.containers.docker.runtime import DockerRuntime
    from orchestrator.gateway.tools.live_server import LiveServer
    from orchestrator.telemetry.metrics import Around, Metrics

SCRIPTED_SECRET = "a-script-plays-the-model"  # noqa: S105 it is none
"""For a secret that is not set, where a script plays the model and nothing real could use it."""

TOKENS = "oauth"
"""The folder of the state directory with the tokens of logins."""

NO_IMAGE = (
    "'{image}' is not on the engine, so a run would fail; build it on ours (images/README.md says "
    "how), or pull it with `docker pull`"
)

NO_ENGINE = "the agent image (no engine answers)"
NOT_BUILT = "the agent image (not built yet; `{command}`)"


@asynccontextmanager
async def open_orchestrator(
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    agents: AgentsDir | None = None,
    watching: Watching | None = None,
) -> AsyncIterator[Service]:
    """Everything that runs tasks. The engine is asked for when the first task needs it.

    `watching` is who watches the runs, if that is open already.
    """
    async with AsyncExitStack() as held:
        if watching is None:
            watching = await held.enter_async_context(open_watching(settings))
        yield await held.enter_async_context(_open_service(settings, environ, agents, watching))


class Watching(NamedTuple):
    """Those who watch runs."""

    watchers: tuple[Watcher, ...] = ()
    metrics: Metrics | None = None
    """One of them, if the operator wants numbers."""


@asynccontextmanager
async def open_watching(
    settings: Settings, *, metrics: bool = False, logs: bool = False
) -> AsyncIterator[Watching]:
    """Who watches runs: traces, if the settings name a collector, and what a server wants besides.
    Without such a setting it tells no one, and nothing is loaded for it.
    """
    watchers: list[Watcher] = []
    numbers: Metrics | None = None
    async with AsyncExitStack() as held:
        if settings.otlp_endpoint:
            from orchestrator.telemetry.exporting import open_tracing

            # First: the others see the trace that it gives a run.
            watchers.append(await held.enter_async_context(open_tracing(settings)))
        if metrics:
            from orchestrator.telemetry.metrics import Metrics

            numbers = Metrics()
            watchers.append(numbers)
        if logs:
            from orchestrator.telemetry.run_log import RunLog

            watchers.append(RunLog())
        yield Watching(tuple(watchers), numbers)


async def _surroundings(settings: Settings, service: Service, runtime: LazyRuntime) -> Around:
    """What there is besides runs; of an engine only what needs no new connection to it."""
    from orchestrator.telemetry.metrics import Around

    name, containers = runtime.engine_name, None
    if name:
        with suppress(OrchestratorError):  # it is away; a caller that wants to know asks again
            kinds = Counter(info.kind for info in await runtime.list())
            containers = {kind: kinds[kind] for kind in get_args(ContainerKind)}
    size = await anyio.to_thread.run_sync(store_bytes, settings)
    return Around(spares=service.spares(), containers=containers, store_bytes=size, engine=name)


@asynccontextmanager
async def _open_service(
    settings: Settings,
    environ: Mapping[str, str] | None,
    agents: AgentsDir | None,
    watching: Watching,
) -> AsyncIterator[Service]:
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
            secret_store, dialer = _secret_store(settings), Dialer(environ=variables)
            opener = ServerOpener(
                runtime=runtime,
                engine=runtime,
                secret_store=secret_store,
                dialer=dialer,
                environ=variables,
                audit=store.audit,
                tokens_dir=settings.state_dir / TOKENS,
                project=settings.project,
                ca_certificates=_ca_certificates(variables),
            )
            servers = ToolServers(opener, settings.project)
            async with open_model_service(settings) as models, sessions, pool, tidied, servers:
                script_of = partial(_script, settings)
                parts = Parts(
                    store=store,
                    alive=owner.alive,
                    runtime=runtime,
                    engine=runtime,
                    gateway=Gateway(models, dialer, script_of, scripted=settings.scripted),
                    copies=copies,
                    secret_store=secret_store,
                    sessions=sessions,
                    pool=pool,
                    servers=servers,
                    variables=variables,
                    ca_certificates=_ca_certificates(variables),
                    watchers=watching.watchers,
                )
                service = compose(settings, parts, agents)
                if watching.metrics is not None:
                    look = partial(_surroundings, settings, service, runtime)
                    watching.metrics.look_around_with(look)
                yield service
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
    servers: ToolServers
    variables: Mapping[str, str]
    """Of the environment, that agent.md may name."""
    ca_certificates: str
    watchers: tuple[Watcher, ...] = ()


def compose(settings: Settings, parts: Parts, agents: AgentsDir | None = None) -> Service:
    """The parts, put together, with agents that are known already or looked for; nothing is opened
    or started here.
    """
    agents = open_agents(settings) if agents is None else agents
    planner = Planner(
        catalog=agents.current,
        check_trust=open_trust(settings).check,
        engine=parts.engine,
        environ=parts.variables,
        copies=parts.copies,
        secret_store=parts.secret_store,
        memory=_memory(settings),
        choose=partial(
            choose, runners=RUNNERS, lacks=parts.gateway.lacks, wish=runner_wish(settings)
        ),
        read_files=partial(agent_files, settings),
        ca_certificates=parts.ca_certificates,
    )
    staging = Staging(
        planner=planner,
        runtime=parts.runtime,
        gateway=parts.gateway,
        sessions=parts.sessions,
        pool=parts.pool,
        servers=parts.servers,
    )
    return Service(
        agents=agents,
        store=parts.store,
        staging=staging,
        sessions=parts.sessions,
        copies=parts.copies,
        alive=parts.alive,
        secrets=tuple(each.secret.get_secret_value() for each in all_credentials(settings)),
        caps=Caps(runs=settings.max_runs, runs_per_agent=settings.max_runs_per_agent),
        project=settings.project,
        scripted=settings.scripted,
        watchers=parts.watchers,
    )


@asynccontextmanager
async def open_servers(settings: Settings) -> AsyncIterator[tuple[ToolServers, Store]]:
    """Servers of tools, started as they are for runs, and the record; nothing that runs agents."""
    variables = environment()
    with Owner(settings.state_dir) as owner, open_store(settings, owner.id) as store:
        runtime = LazyRuntime(settings, partial(open_runtime, settings, owner))
        opener = ServerOpener(
            runtime=runtime,
            engine=runtime,
            secret_store=_secret_store(settings),
            dialer=Dialer(environ=variables),
            environ=variables,
            audit=store.audit,
            tokens_dir=settings.state_dir / TOKENS,
            project=settings.project,
            ca_certificates=_ca_certificates(variables),
        )
        try:
            async with ToolServers(opener, settings.project) as servers:
                yield servers, store
        finally:
            await runtime.aclose()


def webhook_delivery(settings: Settings, store: Store) -> WebhookDelivery:
    """What tells the operator's webhooks of runs; OperatorError if one has no secret."""
    dialer = Dialer(environ=environment())

    async def post(hook: Webhook, headers: Mapping[str, str], body: bytes) -> tuple[int, str]:
        return await post_message(hook, dialer, headers, body)

    return WebhookDelivery(
        *(settings.webhooks, settings.webhook_secrets, store.webhooks, settings.project, post)
    )


async def log_in_to_server(
    settings: Settings, server: ToolServer, show: Callable[[str], None], pasted: Pasted
) -> None:
    """Have a person log in to a server at a URL; what comes of it is kept."""
    with open_store(settings) as store:
        await log_in(
            server,
            await _secret_store(settings).resolve(server),
            settings.state_dir / TOKENS,
            settings.project,
            Dialer(environ=environment()),
            ServerDecisions(store.audit, settings.project, server.name).note,
            show=show,
            pasted=pasted,
        )


@asynccontextmanager
async def open_server(
    settings: Settings, server: ToolServer, lock: ToolLock | None = None
) -> AsyncIterator[LiveServer]:
    """One server of tools, for a person who wants to look at it."""
    wanted = WantedServer(server, lock, Sharers("run", "looked at"))
    async with open_servers(settings) as (servers, _), servers.pool.lease(wanted) as upstream:
        yield upstream


@asynccontextmanager
async def open_outside(settings: Settings, rules: RulesFile) -> AsyncIterator[OutsideService]:
    """What agents outside can do, by these rules."""
    check_trust = open_trust(settings).check_outside
    async with open_servers(settings) as (servers, store):
        yield OutsideService(
            rules=rules,
            agents=open_agents(settings),
            upstreams=BrokeredUpstreams(servers.pool, settings.project),
            store=store,
            project=settings.project,
            check_trust=check_trust,
            default_agent=settings.gateway_default_agent,
        )


async def look_at_server(settings: Settings, server: ToolServer) -> ToolLock:
    """What a server offers now, as it would be pinned."""
    async with open_server(settings, server) as upstream:
        with anyio.fail_after(server.start_seconds):
            found = await upstream.listed()
    if server.url is not None:
        return found
    image = await anyio.to_thread.run_sync(_image_id, settings, server.image)
    return found.model_copy(update={"image": image})


async def call_server(
    settings: Settings,
    server: ToolServer,
    lock: ToolLock | None,
    tool: str,
    arguments: Mapping[str, JsonValue],
) -> dict[str, object]:
    """Call a tool by a person's own hand, and write that down before."""
    if lock is not None and lock.tool(tool) is None:
        names = [each.name for each in lock.tools]
        guess = did_you_mean(tool, names)
        raise CallInvalid(
            f"{server.name} has no tool {shortened(tool)!r}"
            + (f" (did you mean {guess!r}?)" if guess else "")
            + f"; it was pinned with: {', '.join(names) or 'none'}"
        )
    await note_decision(settings, "tool", f"{server.name}/{tool}", allowed=True, why="by hand")
    async with open_server(settings, server, lock) as upstream:
        if tool in upstream.drift.changed:
            raise CallInvalid(
                f"{tool} is not what {server.name} was pinned with; look at it with: orchestrator "
                f"servers diff {server.name}"
            )
        try:
            with anyio.fail_after(server.call_seconds):
                answer = await upstream.call(tool, arguments)
        except CallFailed as exc:
            why = Redactor(upstream.secrets()).text(str(exc))
            raise ServerFailed(f"{server.name}/{tool} failed: {json.dumps(why)}") from None
        except TimeoutError:
            seconds = f"{server.call_seconds:g} s"
            raise ServerFailed(f"{server.name}/{tool} did not answer within {seconds}") from None
        clean = clean_json(answer, Redactor(upstream.secrets()).text)
    return clean if isinstance(clean, dict) else {}


def _image_id(settings: Settings, image: str | None) -> str:
    """What the image of a server stands for; "" for our own, which is rebuilt with each release."""
    from orchestrator.containers.images.agent_image import image_id

    if image is None:
        return ""
    with open_engine(settings) as engine:
        return image_id(engine, image)


@asynccontextmanager
async def open_tasks(
    settings: Settings, agents: AgentsDir | None = None, watching: Watching | None = None
) -> AsyncIterator[tuple[Service, Tasks]]:
    """An orchestrator, and the runs that go on in it by themselves."""
    opened = open_orchestrator(settings, agents=agents, watching=watching)
    async with opened as service, Tasks(service) as tasks:
        yield service, tasks


def runner_wish(settings: Settings) -> RunnerWish:
    """What the operator says about runners; OperatorError if he names one that there is not.
    Blocks.
    """
    if settings.runner and settings.runner not in RUNNERS:
        guess = did_you_mean(settings.runner, RUNNERS)
        hint = f"did you mean {guess!r}?" if guess else f"there are {', '.join(RUNNERS)}"
        raise OperatorError(
            f"no runner {settings.runner!r}; {hint} (--runner, ORCHESTRATOR_RUNNER)"
        )
    path = settings.runner_config
    config = None if path is None else read_runner_config(path)
    return RunnerWish(preferred=settings.runner, config=config)


class ShownPlan(NamedTuple):
    """What a run would launch, with stand-ins for all values that are the run's or secret."""

    plan: Plan
    labels: Mapping[str, str]
    """Of its container."""
    unset: tuple[str, ...]
    """Variables that agent.md names and that are not set: a run would fail."""
    trust: ShownTrust
    brokered: tuple[Brokered, ...] = ()
    """Servers outside that it uses, and what they were pinned with."""
    next_ways: tuple[RunnerWay, ...] = ()
    """Runners that would go on where the first cannot."""
    passed_over: tuple[str, ...] = ()
    """Runners that would not be tried, and why."""
    no_credential: str = ""
    """The variables of which one has to be set for its model: a run would fail."""
    for_caller: bool = False
    """Without what servers of tools are made of, which is the operator's."""


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
    agents = open_agents(settings).current()
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
        catalog=lambda: agents,
        check_trust=lambda *_: None,  # whoever decides about trust wants to see the plan first
        engine=engine,
        environ=shown,
        copies=open_copies(settings),
        secret_store=_secret_store(settings),
        memory=_memory(settings),
        choose=partial(
            choose,
            runners=RUNNERS,
            lacks=partial(missing_credential, settings),
            wish=await anyio.to_thread.run_sync(runner_wish, settings),
        ),
        read_files=partial(agent_files, settings),
        ca_certificates=_ca_certificates(environ),
    )
    prepared = await planner.prepare(agent, task, really=False)
    policy = mount_policy(settings, engine.address)  # which a runtime applies to what it makes
    container = policy.checked(prepared.plan.container).spec
    plan = prepared.plan.model_copy(update={"container": container})
    trust = open_trust(settings)
    shown_trust = ShownTrust(
        reaches=bool(trust.extent(agent, agents, workspace).grants),
        wants=trust.wants(agent, agents, workspace),
        command=trust_command(trust.agents_dir),
    )
    return ShownPlan(
        *(plan, prepared.labels, unset, shown_trust, prepared.brokered),
        next_ways=prepared.others,
        passed_over=prepared.passed_over,
        no_credential=missing_credential(settings, plan.way.wire_format),
    )


@dataclass(frozen=True)
class _EngineAsFound:
    """EngineLookup (containers/runtime.py) for a plan that is only shown: nothing is built."""

    address: str
    images: Mapping[str, str]
    """Runner -> its image."""
    seccomp: str | None

    async def agent_image(self, runner: str, progress: Progress = lambda _: None) -> str:  # noqa: ARG002 nothing is made
        return self.images.get(runner, NO_ENGINE)

    async def image_id(self, image: str) -> str:  # noqa: ARG002 no spare is made of it
        return ""

    async def seccomp_profile(self) -> str | None:
        return self.seccomp


def _engine_as_found(settings: Settings) -> _EngineAsFound:
    """What the engine says, or stand-ins if none answers. Blocks."""
    from orchestrator.containers.docker.facts import takes_profile
    from orchestrator.containers.images.agent_image import build_command, images_found
    from orchestrator.containers.seccomp import profile

    named: dict[str, str] = {DEFAULT_RUNNER: settings.agent_image} if settings.agent_image else {}
    try:
        with open_engine(settings) as engine:
            with engine.translated():
                seccomp = profile() if takes_profile(engine.api.info()) else None
            images = {
                runner: found or NOT_BUILT.format(command=build_command(runner))
                for runner, found in images_found(engine, settings).items()
            }
            return _EngineAsFound(engine.address, {**images, **named}, seccomp)
    except EngineUnreachable:
        return _EngineAsFound(settings.engine_candidates[0], named, profile())


def without_image(settings: Settings, agents: AgentsDir) -> tuple[Problem, ...]:
    """What to say of agents whose image is not on the engine; nothing if no engine answers.
    Blocks.
    """
    from orchestrator.containers.images.base_image import image_exists

    named = {agent.name: agent.image for agent in agents.current().agents.values() if agent.image}
    if not named:
        return ()
    try:
        with open_engine(settings) as engine:
            there = {image: image_exists(engine, image) for image in set(named.values())}
    except OperatorError:
        return ()
    return tuple(
        agents.problem(name, ("image",), NO_IMAGE.format(image=shortened(image)))
        for name, image in named.items()
        if not there[image]
    )


def _secret_store(settings: Settings) -> SecretStore:
    stand_in = SCRIPTED_SECRET if settings.scripted else ""
    return SecretStore(settings.secrets_file, secret_environment(), stand_in=stand_in)


def agent_files(settings: Settings, agent: AgentSpec) -> tuple[File, ...]:
    """What an agent brings of its folder; AgentInvalid if it cannot be had. Blocks."""
    folder = settings.agents_dir / agent.name
    try:
        keeps = mount_policy(settings).keeps_from_agents
        return read_agent_files(folder, agent.files, keeps) if agent.files else ()
    except FilesRefused as exc:
        raise AgentInvalid(f"agent {agent.name!r} does not run: files[{exc.at}]: {exc}") from exc


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
    uploads = Uploads(settings.state_dir.resolve() / UPLOADS, settings.upload_mb * MIB)
    return Copies(settings.state_dir / CHANGES, mount_policy(settings), uploads)


def _ca_certificates(environ: Mapping[str, str]) -> str:
    """The certificates that this machine was told to trust, for containers as well."""
    path = environ.get("SSL_CERT_FILE")
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except (OSError, ValueError) as exc:
        raise OperatorError(f"SSL_CERT_FILE={path} cannot be read; correct or unset it") from exc


def _script(settings: Settings, agent: AgentSpec, runner: str) -> Upstream | None:
    """What plays the model of an agent on a runner: its script for that one, or for all."""
    if not settings.scripted:
        return None
    folder = settings.agents_dir / agent.name
    path = folder / f"script.{runner}.yaml"
    path = path if path.exists() else folder / "script.yaml"
    if not path.exists():
        raise OperatorError(
            f"ORCHESTRATOR_SCRIPTED is set, and there is no {path} to play the model; write one, "
            "with `steps:` and `- text: …` below it, or unset the variable"
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
