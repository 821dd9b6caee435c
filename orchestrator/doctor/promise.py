"""A promise: what we say, how to find out, what to do if not. What runs inside is probe.py."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import Launch

PROBE = Path(__file__).with_name("probe.py").read_text()

Finding = tuple[bool, str]
"""Whether a promise holds, and what was seen."""

T = TypeVar("T")


class Promise(NamedTuple, Generic[T]):
    """What we say, how to find out, and what to do when it is not so."""

    name: str
    promise: str
    look: Callable[[T], Awaitable[Finding]]
    advice: str


class ProbeFailed(Exception):
    """A probe could not find out what it was sent for."""


def launch(probe: str, *arguments: str) -> Launch:
    """How a probe is started inside."""
    return Launch(argv=("python3", "-I", "-S", "-c", PROBE, probe, *arguments))


async def ask(
    container: Container, probe: str, *arguments: str, data: bytes = b""
) -> dict[str, Any]:
    """What a probe found out. Its text comes from inside: a stranger's, whatever it was sent."""
    done = await container.run(launch(probe, *arguments), data)
    if done.code:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ProbeFailed(f"the probe ended with exit code {done.code}: {' '.join(words)}")
    facts = json.loads(done.stdout)
    if not isinstance(facts, dict):
        raise ProbeFailed("the probe printed no JSON object; run the doctor again")
    return facts


def tally(outcomes: dict[str, str]) -> str:
    """How many attempts were refused, and in which ways."""
    hows = ", ".join(sorted(set(outcomes.values())))
    return f"{len(outcomes)} attempts refused ({hows})"
