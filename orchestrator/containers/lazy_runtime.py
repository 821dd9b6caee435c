"""A runtime on an engine that is looked for when the first container is wanted.

A server says hello to its client before there is an engine, and also if there is none.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from orchestrator.containers.images.fetching import Progress
from orchestrator.containers.labels import ContainerInfo
from orchestrator.containers.runtime import Container, Reaped
from orchestrator.domain.container import ContainerSpec
from orchestrator.settings import Settings

if TYPE_CHECKING:
    from orchestrator.containers.docker.runtime import DockerRuntime

BUILD_TOLD_SECONDS = 10.0
"""Between two lines for a caller that waits for the image, at the same step too."""

IMAGE_SECONDS = 10.0
"""For how long an image is believed to be what it was: to ask takes as long as a claim."""

OpenRuntime = Callable[[], "AbstractAsyncContextManager[DockerRuntime]"]


class LazyRuntime:
    """Runtime (containers/runtime.py) on an engine that is looked for when first needed."""

    def __init__(self, settings: Settings, open_runtime: OpenRuntime) -> None:
        self._settings = settings
        self._open_runtime = open_runtime
        self._stack = AsyncExitStack()
        self._lock = anyio.Lock()
        self._runtime: DockerRuntime | None = None
        self._images: dict[str, tuple[str, float]] = {}
        """Image -> what was found out about it, and when."""
        self._looking: dict[str, asyncio.Task[str]] = {}
        self._builds: dict[str, _BuildNews] = {}
        """Runner -> what is done now to make its image."""

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):  # every wait inside is bounded
            await asyncio.gather(*self._looking.values(), return_exceptions=True)
            await self._stack.aclose()

    async def agent_image(self, runner: str, progress: Progress = lambda _: None) -> str:
        """The image of a runner, built if it is missing; `progress` hears of the build."""
        from orchestrator.containers.images.agent_image import build_agent_image  # noqa: PLC0415 docker takes 200 ms

        engine = (await self._get()).engine
        loop = asyncio.get_running_loop()
        news = self._builds.setdefault(runner, _BuildNews())

        def tell(step: str) -> None:
            loop.call_soon_threadsafe(news.note, step)

        def build() -> str:
            try:
                return build_agent_image(engine, self._settings, runner, tell)
            finally:
                tell("")

        with news.heard_by(progress):
            return await self._known(f"runner {runner}", build)  # no image has such a name

    async def image_id(self, image: str) -> str:
        """What an image's name stands for; "" if nothing has that name."""
        from orchestrator.containers.images.agent_image import image_id  # noqa: PLC0415 docker takes 200 ms

        engine = (await self._get()).engine
        return await self._known(image, partial(image_id, engine, image))

    async def _known(self, name: str, find: Callable[[], str]) -> str:
        """What was found out about an image a moment ago, or is now. Finding out goes on when the
        call that wanted it is cancelled: a build would begin anew with each call.
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

    @property
    def engine_name(self) -> str:
        """Docker or podman; "" before it was needed."""
        runtime = self._runtime
        return "" if runtime is None else "podman" if runtime.facts.is_podman else "docker"

    async def _get(self) -> DockerRuntime:
        async with self._lock:
            if self._runtime is None:
                self._runtime = await self._stack.enter_async_context(self._open_runtime())
            return self._runtime


class _BuildNews:
    """What is done now to make an image: told to all who wait for it, and again if it takes
    long. Lives in the event loop.
    """

    def __init__(self) -> None:
        self._step = ""
        self._since = 0.0
        self._listeners: list[Progress] = []
        self._timer: asyncio.TimerHandle | None = None

    def note(self, step: str) -> None:
        """The next step; "" is the end."""
        self._step, self._since = step, anyio.current_time()
        self._tell(step)

    @contextmanager
    def heard_by(self, listener: Progress) -> Iterator[None]:
        if self._step:
            listener(self._step)
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def _tell(self, line: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._step:
            return
        for listener in self._listeners:
            listener(line)
        self._timer = asyncio.get_running_loop().call_later(BUILD_TOLD_SECONDS, self._tell_again)

    def _tell_again(self) -> None:
        self._tell(f"{self._step} ({anyio.current_time() - self._since:.0f} s)")
