"""Dead-man trials: a process that holds containers dies or hangs, and all of them have to go.

Nothing here removes a container before its trial has been judged.
"""

from __future__ import annotations

import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import docker
import docker.errors

from orchestrator.app import open_runtime
from orchestrator.containers.docker.engine import connect
from orchestrator.containers.images.agent_image import build_agent_image
from orchestrator.domain import Frozen
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.settings import read_settings

TRIAL, KIND = "soak.trial", "soak.kind"
"""Labels: which trial a container belongs to, and what runs in it."""

READY_SECONDS = 180.0
"""For a holder to have all its containers, on a machine under load."""

WATCH_SECONDS = 30.0
"""How long a trial watches containers that do not go."""

POLL_SECONDS = 0.02

How = Literal["killed", "closed", "hung"]
"""SIGKILL; all wires closed, by a holder that lives on; SIGSTOP, so that the lease runs out."""


class Gone(Frozen):
    """A container that went, and how long that took."""

    kind: str
    seconds: float


class Trial(Frozen):
    """What became of one holder's containers."""

    how: How
    gone: tuple[Gone, ...]
    left: tuple[str, ...]
    """Those that did not go while we watched, with their state."""
    dead_seconds: float | None = None
    """Until the last PID 1 was gone; an engine may take its time to notice. None: not seen."""

    @property
    def seconds(self) -> float:
        """Until the last one was gone."""
        return WATCH_SECONDS if self.left else max(one.seconds for one in self.gone)


class Engine:
    """The engine as somebody sees it who only looks, with the image to make containers of."""

    def __init__(self, api: docker.APIClient, image: str) -> None:
        self._api = api
        self.image = image

    def containers(self, label: str) -> dict[str, dict[str, Any]]:
        """Every container with a label, in whatever state, by id."""
        rows = self._api.containers(all=True, filters={"label": label})
        return {str(row["Id"]): row for row in rows}

    @contextmanager
    def removals(self, label: str) -> Iterator[dict[str, float]]:
        """When containers with a label were removed, by the engine's own word; by id, and filled
        while the block lasts.
        """
        filters = {"type": "container", "event": "destroy", "label": label}
        events = self._api.events(decode=True, filters=filters)
        told: dict[str, float] = {}
        listening = threading.Thread(target=_note_removals, args=(events, told))
        listening.start()
        try:
            yield told
        finally:
            events.close()
            listening.join()

    def first_processes(self, containers: Iterable[str]) -> set[int]:
        """The PID 1 of each container, as this machine numbers it (a local engine's only)."""
        return {int(self._api.inspect_container(one)["State"]["Pid"]) for one in containers}

    def remove(self, container: str) -> None:
        with suppress(docker.errors.APIError):  # gone in between
            self._api.remove_container(container, force=True)


@contextmanager
def open_engine() -> Iterator[Engine]:
    settings = read_settings()
    engine = connect(settings)
    try:
        yield Engine(engine.api, build_agent_image(engine, settings, DEFAULT_RUNNER, print))
    finally:
        engine.close()


def try_holder(engine: Engine, how: How, count: int, *, lease_seconds: float = 60.0) -> Trial:
    """Have a process hold containers in the middle of runs, take it away, watch them go."""
    label = _new_label()
    try:
        with _holder(engine.image, label, count, lease_seconds) as holder:
            return watch_it_go(engine, holder, how, label, KIND, count)
    finally:
        for container in engine.containers(label):
            engine.remove(container)


def watch_it_go(
    engine: Engine, holder: subprocess.Popen[str], how: How, label: str, kind: str, count: int
) -> Trial:
    """Take a holder of so many running containers away; they have the label, and `kind` is the one
    that says what runs in them.
    """
    running = engine.containers(label)
    states = sorted(row["State"] for row in running.values())
    assert states == ["running"] * count, f"{states} before anything was done to them"
    kinds = {one: row["Labels"].get(kind, "an agent") for one, row in running.items()}
    processes = engine.first_processes(running)
    with engine.removals(label) as removed:
        began = time.time()  # as the engine's events have it
        _take_away(holder, how)
        left, dead_seconds = _watched(engine, label, processes, removed, running.keys())
    gone = tuple(Gone(kind=kinds[one], seconds=at - began) for one, at in removed.items())
    return Trial(
        how=how,
        gone=gone,
        left=_described(left, kind),
        dead_seconds=None if dead_seconds is None else dead_seconds - began,
    )


def try_reaper(engine: Engine, count: int) -> tuple[str, ...]:
    """Kill a holder while it starts containers; what the next orchestrator's reaper does not find.

    A container that was created and never started has no PID 1 to notice that its holder is gone,
    and the engine removes only what has run.
    """
    label = _new_label()
    try:
        with tempfile.TemporaryDirectory(prefix="orchestrator-soak-") as state:
            with _process(engine.image, label, count, 60.0, state) as holder:
                until = time.monotonic() + READY_SECONDS
                while not engine.containers(label) and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
                holder.kill()
            return anyio.run(_reap_until_gone, engine, label, Path(state))
    finally:
        for container in engine.containers(label):
            engine.remove(container)


async def _reap_until_gone(engine: Engine, label: str, state_dir: Path) -> tuple[str, ...]:
    settings = read_settings().model_copy(update={"state_dir": state_dir})
    async with open_runtime(settings) as runtime:
        until = time.monotonic() + WATCH_SECONDS
        while (left := engine.containers(label)) and time.monotonic() < until:
            await runtime.reap()  # again, since the engine may still be creating one
            await anyio.sleep(POLL_SECONDS)
    return _described(left, KIND)


def summary(trials: Sequence[Trial]) -> str:
    """p50 and max of the time to gone, by what ran inside."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        seconds[f"{trial.how}: all of a trial"].append(trial.seconds)
        if trial.dead_seconds is not None:
            seconds[f"{trial.how}: every PID 1 dead"].append(trial.dead_seconds)
        for one in trial.gone:
            seconds[f"{trial.how}: {one.kind}"].append(one.seconds)
    left = sum(len(trial.left) for trial in trials)
    lines = [
        f"  {name:<34} n={len(taken):<5} p50 {statistics.median(taken) * 1000:6.0f} ms"
        f"   max {max(taken) * 1000:6.0f} ms"
        for name, taken in sorted(seconds.items())
    ]
    return "\n".join([f"\n{len(trials)} trials, {left} containers left", *lines])


@contextmanager
def _holder(
    image: str, label: str, count: int, lease_seconds: float
) -> Iterator[subprocess.Popen[str]]:
    """A holder that has all its containers."""
    with (
        tempfile.TemporaryDirectory(prefix="orchestrator-soak-") as state,
        _process(image, label, count, lease_seconds, state) as process,
    ):
        _expect(process, "ready")
        yield process


@contextmanager
def _process(
    image: str, label: str, count: int, lease_seconds: float, state_dir: str
) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tests.soak.holder", "--image", image]
    argv += ["--label", label, "--count", str(count), "--lease", str(lease_seconds)]
    argv += ["--state-dir", state_dir]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _take_away(holder: subprocess.Popen[str], how: How) -> None:
    if how == "killed":
        holder.kill()
    elif how == "hung":
        holder.send_signal(signal.SIGSTOP)
    else:
        assert holder.stdin is not None
        print("close", file=holder.stdin, flush=True)


def _expect(holder: subprocess.Popen[str], word: str) -> None:
    """Wait for a word; a holder that has not said it in time is killed, and so says nothing."""
    assert holder.stdout is not None
    timer = threading.Timer(READY_SECONDS, holder.kill)
    timer.start()
    try:
        said = holder.stdout.readline().strip()
    finally:
        timer.cancel()
        timer.join()
    assert said == word, f"the holder said {said!r}, not {word!r}"


def _watched(
    engine: Engine,
    label: str,
    processes: set[int],
    removed: Collection[str],
    running: Collection[str],
) -> tuple[dict[str, dict[str, Any]], float | None]:
    """Until all are gone, or the trial is over: what is left, and when the last PID 1 had gone."""
    dead = None
    until = time.monotonic() + WATCH_SECONDS
    while len(removed) < len(running) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        if dead is None and not any(Path(f"/proc/{pid}").exists() for pid in processes):
            dead = time.time()
    return engine.containers(label), dead


def _note_removals(events: Any, told: dict[str, float]) -> None:
    with suppress(docker.errors.DockerException, OSError):  # closed in the middle of a word
        for event in events:
            told[event["Actor"]["ID"]] = event["timeNano"] / 1e9


def _described(left: dict[str, dict[str, Any]], kind: str) -> tuple[str, ...]:
    return tuple(
        f"{row['Labels'].get(kind, 'an agent')}: {row['Id'][:12]} {row['Status']}"
        for row in left.values()
    )


def _new_label() -> str:
    return f"{TRIAL}={secrets.token_hex(6)}"
