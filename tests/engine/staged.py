"""A stage for runs: an agents folder of one's own, and a service on the real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from orchestrator.app import open_orchestrator
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.lazy_runtime import LazyRuntime
from orchestrator.engine.service import Service
from orchestrator.settings import Settings

AGENT_UID = 1000


def write_agent(settings: Settings, name: str, script: object = None, **fields: object) -> Path:
    """A folder with an agent.md, and a script.yaml if there is something to play."""
    folder = settings.agents_dir / name
    folder.mkdir(parents=True)
    head = yaml.safe_dump({"name": name, "description": f"For a test: {name}.", **fields})
    (folder / "agent.md").write_text(f"---\n{head}---\nDo as you are told.\n")
    if script is not None:
        (folder / "script.yaml").write_text(json.dumps({"steps": script}))
    return folder


def write_workspace(settings: Settings, files: Mapping[str, str]) -> Path:
    """A directory that agents may be shown, and that belongs to somebody who is not root."""
    root = settings.allowed_roots[0] / "project"
    root.mkdir()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """The service as `serve` opens it; fails if a container is left when all runs are over."""
    async with open_orchestrator(settings, {}) as service:
        yield service
        left = await (await engine_of(service)).list()
        assert not left, f"containers left behind: {[info.name for info in left]}"


async def engine_of(service: Service) -> DockerRuntime:
    """The runtime that the service uses, to look at its containers from outside."""
    runtime = service._staging._runtime
    assert isinstance(runtime, LazyRuntime)
    return await runtime._get()
