"""An engine and a ContainerSpec -> one Check per promise, each tried out on a probe container.

Engines differ in what they ignore: an unknown option, a control group that is not delegated, a
limit without swap accounting. They say so in a log at best, so we look for ourselves.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import anyio

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.runtime import Runtime
from orchestrator.doctor.container_promises import (
    ENDINGS,
    ENGINE,
    HELLO_PROMISE,
    INSIDE_PROMISES,
    Probes,
)
from orchestrator.doctor.gateway_promises import GATEWAY
from orchestrator.doctor.promise import Promise
from orchestrator.doctor.server_promises import SERVERS_OF_TOOLS
from orchestrator.doctor.workspace_promises import WORKSPACES
from orchestrator.domain import Frozen
from orchestrator.domain.container import ContainerSpec

CHECK_SECONDS = 60.0
"""One check. Most take milliseconds, but a container starts slowly on a machine under load."""

DETAIL_CHARS = 300
"""How much a check tells of what was seen."""

T = TypeVar("T")


class Check(Frozen):
    """One promise, and whether it holds here."""

    name: str
    promise: str
    ok: bool
    detail: str
    """What was seen."""
    advice: str
    """What to do about it; empty when the promise holds."""
    warning: bool = False
    """It holds, or nothing depends on it yet; but a person should know."""


async def examine(
    engine: Engine, runtime: Runtime, spec: ContainerSpec, workspace: Path | None = None
) -> AsyncGenerator[Check, None]:
    """Look at one promise after the other; nothing more to see when no container starts.

    `workspace` is a directory that containers may be shown. It is, and nothing is written to it.

    Use `contextlib.aclosing`: between two checks it holds a container.
    """
    yield await check(ENGINE, engine)
    async with AsyncExitStack() as stack:
        probes = Probes(runtime, spec, stack, workspace)
        yield await check(HELLO_PROMISE, probes)
        if probes.container is None:
            return
        for inside in (*INSIDE_PROMISES, *GATEWAY):
            yield await check(inside, probes.container)
    for ending in (*WORKSPACES, *SERVERS_OF_TOOLS, *ENDINGS):
        yield await check(ending, probes)


async def check(promise: Promise[T], subject: T) -> Check:
    """Look, within bounds. An error is a finding like any other, and never a good one."""
    try:
        with anyio.fail_after(CHECK_SECONDS):
            ok, detail = await promise.look(subject)
    except TimeoutError:
        ok, detail = False, f"not answered within {CHECK_SECONDS:.0f} s"
    except Exception as exc:  # noqa: BLE001 whatever it was, the promise was not seen to hold
        ok, detail = False, str(exc) or type(exc).__name__
    return Check(
        name=promise.name,
        promise=promise.promise,
        ok=ok,
        detail=_one_line(detail),
        advice="" if ok else promise.advice,
    )


def _one_line(text: str) -> str:
    line = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(line.split())[:DETAIL_CHARS]
