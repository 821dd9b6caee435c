"""Everything that happens in a run goes through here: numbered, bounded, without secrets, kept."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import anyio

from orchestrator.domain.events import Event, EventKind
from orchestrator.engine.store import Store
from orchestrator.errors import StoreFailed

log = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Of one event's line for people."""

MAX_VALUE = 4000
"""Of one string in an event's data."""

MAX_EVENTS = 20_000
"""Of one run. Whoever can write to the CLI's output can make them up."""

TAIL = 20
"""How many last lines a failure repeats."""

MIN_SECRET = 8
"""Shorter values are not looked for: they would be found everywhere."""

Listener = Callable[[Event], None]


class Record:
    """One run's events, on their way to the store and to whoever listens."""

    def __init__(
        self,
        run_id: str,
        store: Store,
        listeners: Sequence[Listener] = (),
        secrets: Sequence[str] = (),
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._listeners = tuple(listeners)
        self._secrets: tuple[str, ...] = ()
        self.add_secrets(secrets)
        self._pending: list[Event] = []
        self._seq = 0
        self._tail: deque[str] = deque(maxlen=TAIL)

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """From now on, these are not to be seen."""
        found = {s for s in secrets if len(s) >= MIN_SECRET}.union(self._secrets)
        self._secrets = tuple(sorted(found, key=len, reverse=True))

    def note(self, kind: EventKind, text: str = "", **data: object) -> None:
        """Something happened."""
        if self._seq == MAX_EVENTS and kind != "ended":
            kind, text, data = "warning", f"{MAX_EVENTS} events; no more of them are kept", {}
        elif self._seq > MAX_EVENTS and kind != "ended":
            return
        self._seq += 1
        line = self.clean(text)[:MAX_TEXT]
        event = Event(
            run_id=self._run_id,
            seq=self._seq,
            at=time.time(),
            kind=kind,
            text=line,
            data={key: self._bounded(value) for key, value in data.items()},
        )
        self._pending.append(event)
        self._tail.append(f"{kind}: {line}" if line else kind)
        for listener in self._listeners:
            listener(event)

    async def flush(self) -> None:
        """Have everything so far in the store."""
        with anyio.CancelScope(shield=True):  # cancelled in between, they would be nowhere
            events, self._pending = self._pending, []
            try:
                if events:
                    await self._store.add_events(events)
            except StoreFailed:
                log.exception("%d events of %s are not kept", len(events), self._run_id)

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    def clean(self, text: str) -> str:
        """The text without what is known to be secret."""
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text

    def clean_value(self, value: object) -> object:
        """The same for a JSON value."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(str(k)): self.clean_value(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.clean_value(item) for item in value]
        return value

    def _bounded(self, value: object) -> object:
        if isinstance(value, str):
            return self.clean(value)[:MAX_VALUE]
        if isinstance(value, dict):
            return {str(k): self._bounded(v) for k, v in list(value.items())[:100]}
        if isinstance(value, list | tuple):
            return [self._bounded(item) for item in value[:100]]
        return value
