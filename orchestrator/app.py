"""The one place that picks real parts: settings in, a working orchestrator out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread

from orchestrator.containers.docker_runtime import DockerRuntime
from orchestrator.containers.engine import connect
from orchestrator.containers.mounts import MountPolicy
from orchestrator.containers.owner import Owner
from orchestrator.settings import Settings


@asynccontextmanager
async def open_runtime(settings: Settings, *, reap: bool = True) -> AsyncIterator[DockerRuntime]:
    """The container runtime on the engine that answers; what a crash left is removed first."""
    engine = await anyio.to_thread.run_sync(connect, settings)
    try:
        with Owner(settings.state_dir) as owner:
            policy = MountPolicy(
                roots=settings.allowed_roots,
                home=settings.home,
                engine_is_local=engine.address.startswith("unix://"),
            )
            async with DockerRuntime(engine, owner, policy) as runtime:
                if reap:
                    await runtime.reap()
                yield runtime
    finally:
        engine.close()
