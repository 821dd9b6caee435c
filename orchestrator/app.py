"""The one place that picks real parts: settings in, a working orchestrator out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from orchestrator import output
from orchestrator.catalog import AgentsDir
from orchestrator.containers.labels import ContainerInfo
from orchestrator.containers.mounts import MountPolicy
from orchestrator.containers.owner import Owner
from orchestrator.containers.runtime import Container, Reaped
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import ContainerSpec
from orchestrator.engine.copies import Copies
from orchestrator.engine.service import Service
from orchestrator.engine.sessions.memory import Memory
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.engine.stage import WaitingStage
from orchestrator.engine.staging import Staging
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.engine.tasks.retention import Retention, keep_of, kept_tidy
from orchestrator.errors import OperatorError
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.model.credential import credential_of
from orchestrator.gateway.model.scripted import ScriptedModel, load_script
from orchestrator.gateway.model.service import open_model_service
from orchestrator.gateway.model.upstream import Upstream
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.settings import Settings, environment, secret_environment
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionRow, SessionRows
from orchestrator.workspace.kept import CHANGES

if TYPE_CHECKING:
    from orchestrator.containers.docker.runtime import DockerRuntime

SCRIPTED_SECRET = "a-script-plays-the-model"  # noqa: S105 it is none
"""Instead of a secret that nobody has given, where no real model could use it."""

IMAGE_SECONDS = 10.0
"""For how long an image is believed to be what it was: to ask takes as long as a claim."""


@asynccontextmanager
async def open_orchestrator(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Service]:
    """Everything that runs tasks. The engine is asked for when the first task needs it."""
    with Owner(settings.state_dir) as owner:
        runtime = LazyRuntime(settings, owner)
        store = Store(settings.state_dir / "runs.sqlite", owner.id)
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
                credential = credential_of(settings)
                staging = Staging(
                    runtime=runtime,
                    models=models,
                    image=runtime.agent_image,
                    image_id=runtime.image_id,
                    environ=variables,
                    copies=copies,
                    dialer=Dialer(environ=variables),
                    secret_store=SecretStore(
                        settings.secrets_file,
                        secret_environment(),
                        stand_in=SCRIPTED_SECRET if settings.scripted else "",
                    ),
                    sessions=sessions,
                    pool=pool,
                    memory=Memory(settings.agents_dir, settings.state_dir / "memory"),
                    ca_certificates=_ca_certificates(variables),
                    script_of=lambda agent: _script(settings, agent),
                )
                yield Service(
                    agents=AgentsDir(settings.agents_dir, output.check_schema),
                    store=store,
                    staging=staging,
                    sessions=sessions,
                    copies=copies,
                    alive=owner.alive,
                    secrets=(credential.secret.get_secret_value(),) if credential else (),
                    max_runs=settings.max_runs,
                    max_runs_per_agent=settings.max_runs_per_agent,
                )
        finally:
            await runtime.aclose()
            store.close()


def pool_limits(settings: Settings) -> PoolLimits:
    return PoolLimits(
        max_spares=settings.max_spares,
        max_memory_bytes=settings.max_spares_mb * 1024 * 1024,
        pause_after_seconds=settings.pause_spares_seconds,
    )


async def living_sessions(settings: Settings) -> tuple[SessionRow, ...]:
    """The sessions of all orchestrators; needs no engine. Whose owner is dead has stopped."""
    store = Store(settings.state_dir / "runs.sqlite")
    try:
        with Owner(settings.state_dir) as owner:
            rows = await SessionRows(store, owner.id).all()
            return tuple(
                row if owner.alive(row.owner) else row.model_copy(update={"state": "stopped"})
                for row in rows
            )
    finally:
        store.close()


@contextmanager
def open_retention(settings: Settings) -> Iterator[Retention]:
    """What removes runs; needs no engine."""
    store = Store(settings.state_dir / "runs.sqlite")
    try:
        yield Retention(store, open_copies(settings))
    finally:
        store.close()


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


def mount_policy(settings: Settings, address: str = "") -> MountPolicy:
    """What containers of the engine at this address may be shown; without one, of this machine."""
    return MountPolicy(
        roots=settings.allowed_roots,
        home=settings.home,
        own=(settings.agents_dir, settings.cache_dir, Path.cwd() / "orchestrator.yaml"),
        hidden=(settings.state_dir, settings.secrets_file),
        engine_sockets=tuple(
            Path(socket.removeprefix("unix://"))
            for socket in (address, *settings.engine_candidates)
            if socket.startswith("unix://")
        ),
        engine_is_local=not address or address.startswith("unix://"),
    )


class LazyRuntime:
    """Runtime (containers/runtime.py) on an engine that is looked for when first needed."""

    def __init__(self, settings: Settings, owner: Owner) -> None:
        self._settings = settings
        self._owner = owner
        self._stack = AsyncExitStack()
        self._lock = anyio.Lock()
        self._runtime: DockerRuntime | None = None
        self._images: dict[str, tuple[str, float]] = {}
        """What is known of images, and since when."""
        self._looking: dict[str, asyncio.Task[str]] = {}

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):  # every wait inside is bounded
            await asyncio.gather(*self._looking.values(), return_exceptions=True)
            await self._stack.aclose()

    async def agent_image(self) -> str:
        """The image that agents run in, built if it is missing."""
        from orchestrator.containers.images.agent_image import build_agent_image

        engine = (await self._get()).engine
        build = partial(build_agent_image, engine, self._settings, lambda _: None)
        return await self._known("", build)

    async def image_id(self, image: str) -> str:
        """What an image's name stands for; "" if nothing has that name."""
        from orchestrator.containers.images.agent_image import image_id

        engine = (await self._get()).engine
        return await self._known(image, partial(image_id, engine, image))

    async def _known(self, name: str, find: Callable[[], str]) -> str:
        """What was found out about images a moment ago, or is now; building one goes on when
        whoever asked has no time to wait for it.
        """
        found, at = self._images.get(name, ("", -math.inf))
        if found and anyio.current_time() - at <= IMAGE_SECONDS:
            return found

        async def look() -> str:
            try:
                found = await anyio.to_thread.run_sync(find)
                self._images[name] = found, anyio.current_time()
                return found
            finally:
                del self._looking[name]

        if name not in self._looking:
            self._looking[name] = asyncio.create_task(look())
        return await asyncio.shield(self._looking[name])

    @asynccontextmanager
    async def open(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> AsyncIterator[Container]:
        runtime = await self._get()
        async with runtime.open(spec, labels=labels, name=name) as container:
            yield container

    @asynccontextmanager
    async def keep(
        self, key: str, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[Container]:
        runtime = await self._get()
        async with runtime.keep(key, spec, labels=labels) as container:
            yield container

    async def seccomp_profile(self) -> str | None:
        return await (await self._get()).seccomp_profile()

    async def forget(self, key: str) -> bool:
        return await (await self._get()).forget(key)

    async def list(self) -> tuple[ContainerInfo, ...]:
        return await (await self._get()).list()

    async def reap(self) -> tuple[Reaped, ...]:
        return await (await self._get()).reap()

    async def _get(self) -> DockerRuntime:
        async with self._lock:
            if self._runtime is None:
                self._runtime = await self._stack.enter_async_context(
                    open_runtime(self._settings, self._owner)
                )
            return self._runtime
