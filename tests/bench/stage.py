"""Stage: what every measurement stands on. An open runtime here, the plain tools beside it."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread
import docker

from orchestrator.app import open_runtime
from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.images.agent_image import build_agent_image
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.domain.container import ContainerSpec, Launch
from orchestrator.settings import read_settings

COMMAND = ("true",)
"""What is run wherever only the way to run it is measured."""

LAUNCH = Launch(argv=COMMAND)

COMMAND_SECONDS = 600
"""The longest that a plain tool may take for one measurement."""


@dataclass(frozen=True)
class Stage:
    """An open runtime, its image, and the command line tool to compare with."""

    runtime: DockerRuntime
    spec: ContainerSpec
    docker: str
    """The `docker` command."""
    quick: bool

    @property
    def image(self) -> str:
        return self.spec.image

    def times(self, thorough: int, quick: int) -> int:
        return quick if self.quick else thorough

    async def seconds(self, argv: Sequence[str]) -> float:
        """How long a command takes that must succeed, output thrown away."""
        began = time.perf_counter()
        run = partial(
            subprocess.run,
            argv,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=COMMAND_SECONDS,
        )
        await anyio.to_thread.run_sync(run)
        return time.perf_counter() - began

    @property
    def docker_run(self) -> tuple[str, ...]:
        """What a user would type: no flags but `--rm`."""
        return (self.docker, "run", "--rm", self.image)


@asynccontextmanager
async def open_stage(*, quick: bool) -> AsyncIterator[Stage]:
    command = shutil.which("docker")
    if command is None:
        raise SystemExit("the benchmarks compare with the docker command, which is not on PATH")
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as state:
        settings = read_settings().model_copy(update={"state_dir": Path(state)})
        async with open_runtime(settings) as runtime:
            image = await anyio.to_thread.run_sync(
                build_agent_image, runtime.engine, settings, DEFAULT_RUNNER, _say
            )
            yield Stage(runtime, ContainerSpec(image=image), command, quick)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def library(engine: Engine) -> docker.DockerClient:
    """docker-py as a user would have it, on the same engine."""
    return docker.DockerClient(base_url=engine.address, version="auto")


def median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1000
