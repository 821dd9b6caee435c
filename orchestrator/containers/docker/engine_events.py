"""One stream of engine events for all containers: which one died, with which code, and of what."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.hijack import Connection, follow_events
from orchestrator.containers.labels import STATE
from orchestrator.containers.runtime import Fate
from orchestrator.errors import OrchestratorError

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.5
"""Between attempts to hear from an engine that went away."""

ENGINE_EVENT_BYTES = 1024 * 1024
"""One event; labels are what makes them long."""


class EventStream:
    """Follows the engine's events from `start` to `stop`, through restarts of the engine."""

    def __init__(self, engine: Engine, state: str) -> None:
        self._engine = engine
        self._filters = {
            "type": ["container"],
            "label": [f"{STATE}={state}"],
            "event": ["die", "oom", "destroy"],
        }
        self._fates: dict[str, Fate] = {}
        self._since = f"{time.time():.9f}"
        self._last_nano = 0
        self._task: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    async def start(self) -> None:
        """Return once the engine has begun to tell."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="engine-events")
        await self._connected.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def watch(self, container: str) -> Fate:
        """Hear of this container from now on; `unwatch` it at the end."""
        return self._fates.setdefault(container, Fate(since_nano=self._last_nano))

    def unwatch(self, container: str) -> None:
        self._fates.pop(container, None)

    async def _follow(self) -> None:
        while True:
            connection = Connection(lambda _: _Lines(self._on_line))
            try:
                await follow_events(self._engine, self._filters, self._since, connection)
                self._connected.set()
                await connection.receiver.lost.wait()
            except OrchestratorError as exc:
                log.debug("no events from the engine: %s", exc)
            finally:
                connection.close()
            self._connected.set()  # `start` must not wait for an engine that is away
            await asyncio.sleep(RECONNECT_SECONDS)

    def _on_line(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            self._on_event(event["Action"], event["Actor"], event.get("timeNano", 0))
        except (ValueError, KeyError, TypeError):
            return  # an error text, or a kind of event that we do not know

    def _on_event(self, action: str, actor: dict[str, object], time_nano: int) -> None:
        # The next connection asks from here on, so that nothing is missed in between.
        self._last_nano = time_nano
        self._since = f"{time_nano // 10**9}.{time_nano % 10**9:09d}"
        fate = self._fates.get(str(actor["ID"]))
        if fate is None or 0 < time_nano <= fate.since_nano:  # of a kept container's life before
            return
        if action == "oom":
            fate.out_of_memory.set()
        elif action == "die":
            attributes = actor.get("Attributes")
            code = attributes.get("exitCode", "") if isinstance(attributes, dict) else ""
            fate.exit_code = int(code) if str(code).lstrip("-").isdigit() else None
            fate.died.set()
        elif action in ("destroy", "remove"):
            fate.died.set()
            fate.gone.set()


class _Lines:
    """Receives one connection's events, and hands on each line that is complete."""

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self.lost = asyncio.Event()
        self._on_line = on_line
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-ENGINE_EVENT_BYTES:]
        for line in lines:
            self._on_line(line)

    def disconnected(self) -> None:
        self.lost.set()

    def hold(self) -> None:
        """Nothing more is written than the request."""

    def release(self) -> None:
        """As `hold`."""
