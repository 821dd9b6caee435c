"""The machine, for the person at the page: containers, spares, the line, the disk, the doctor."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from orchestrator.errors import OrchestratorError
from orchestrator.surfaces.http.bodies import (
    CheckBody,
    ContainerBody,
    DiskBody,
    DoctorBody,
    EngineBody,
    MachineBody,
    QueueBody,
)
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint

if TYPE_CHECKING:
    from orchestrator.containers.labels import ContainerInfo

STARTED_IN = " in "
"""Between the CLI and its container, in the event of a start."""

MEASURED_SECONDS = 60.0
"""For which the size of the state directory is believed: it is long to add up."""

_measured: dict[Path, tuple[float, int]] = {}
"""When a directory was measured, and what it held."""

_examining = anyio.Lock()
"""One examination at a time: each makes containers."""


async def look(call: ApiCall) -> ApiReply:
    engine, error, containers = await _engine(call)
    service, settings = call.parts.service, call.parts.settings
    under_way = await service.store.unfinished()
    serving: dict[str, str] = {}
    for run in under_way:
        started = await service.store.last_event(run.run_id, "started")
        if started is not None and STARTED_IN in started.text:
            serving[started.text.rpartition(STARTED_IN)[2]] = run.run_id
    shown = tuple(_container(info, serving) for info in containers)
    pending = sum(run.status == "pending" for run in under_way)
    return ApiReply(
        MachineBody(
            engine=engine,
            engine_error=error,
            containers=shown,
            spares=dict(Counter(each.agent for each in shown if each.spare)),
            queue=QueueBody(
                under_way=len(under_way) - pending,
                waiting=pending,
                max_runs=settings.max_runs,
                max_runs_per_agent=settings.max_runs_per_agent,
            ),
            disk=await anyio.to_thread.run_sync(_disk, call),
            event_readers=call.parts.feed.followers,
        )
    )


async def _engine(call: ApiCall) -> tuple[EngineBody | None, str, tuple[ContainerInfo, ...]]:
    from orchestrator.app import open_runtime

    try:
        async with open_runtime(call.parts.settings, reap=False) as runtime:
            about = await runtime.engine.about()
            return EngineBody(**about.model_dump()), "", await runtime.list()
    except OrchestratorError as exc:
        return None, str(exc), ()


def _container(info: ContainerInfo, serving: dict[str, str]) -> ContainerBody:
    labels = info.labels
    run_id = serving.get(info.name, "")
    return ContainerBody(
        name=info.name,
        status=info.status,
        kind=info.kind,
        agent=labels.get("orchestrator.agent", ""),
        run_id=run_id or labels.get("orchestrator.run", ""),
        session=labels.get("orchestrator.session", "").partition("/")[2],
        server=labels.get("orchestrator.server", ""),
        spare="orchestrator.spare" in labels and not run_id,
        created=info.created,
    )


def _disk(call: ApiCall) -> DiskBody:
    path = call.parts.settings.state_dir
    return DiskBody(path=str(path), used_bytes=_used(path), free_bytes=shutil.disk_usage(path).free)


def _used(folder: Path) -> int:
    """What the files in it have; runs and uploads may remove some meanwhile."""
    measured, used = _measured.get(folder, (0.0, 0))
    now = time.monotonic()
    if not measured or now - measured > MEASURED_SECONDS:
        used = 0
        for place, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    used += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 a fast walk
        _measured[folder] = now, used
    return used


async def doctor(call: ApiCall) -> ApiReply:
    from orchestrator.surfaces.cli.setup.doctor import examined

    async with _examining:
        report = await examined(lambda _: None, None, call.parts.settings)
    return ApiReply(
        DoctorBody(
            ok=report.ok,
            error="" if report.error is None else str(report.error),
            checks=tuple(CheckBody(**check.model_dump()) for check in report.checks),
        )
    )


MACHINE_ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/machine", look, "Look at the machine: containers, the line, the disk"),
        {200: MachineBody},
        person=True,
    ),
    Endpoint(
        *("POST", "/v1/doctor", doctor, "Prove what the engine promises"),
        {200: DoctorBody},
        person=True,
        keyed=False,
    ),
)
