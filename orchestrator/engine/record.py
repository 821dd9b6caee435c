"""Everything that happens in a run goes through here: numbered, bounded, without secrets, kept."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import anyio

from orchestrator.domain.events import Event, EventKind
from orchestrator.engine.flood import Flood
from orchestrator.engine.store import Store
from orchestrator.errors import StoreFailed
from orchestrator.redaction import Redactor, Sought

log = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Of one event's line for people."""

MAX_VALUE = 4000
"""Of one string in an event's data."""

MAX_DEPTH = 32
"""Of lists in lists in an event's data; what lies deeper is left out."""

MAX_EVENTS = 20_000
"""Of one run. Whoever can write to the CLI's output can make them up."""

EVENTS_PER_SECOND = 100
"""Unless somebody says otherwise."""

TAIL = 20
"""How many last lines a failure repeats."""

Listener = Callable[[Event], None]


class Record:
    """One run's events, on their way to the store and to whoever listens."""

    def __init__(
        self,
        run_id: str,
        store: Store,
        listeners: Sequence[Listener] = (),
        secrets: Sequence[str | Sought] = (),
        events_per_second: int = EVENTS_PER_SECOND,
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._listeners = tuple(listeners)
        self._redactor = Redactor(secrets)
        self._pending: list[Event] = []
        self._seq = 0
        self._flood = Flood(events_per_second)
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._ended: Event | None = None

    def add_secrets(self, secrets: Iterable[str | Sought]) -> None:
        """From now on, these are not to be seen."""
        self._redactor.add(secrets)

    def listen(self, listener: Listener) -> None:
        """From now on, tell this one as well."""
        self._listeners = (*self._listeners, listener)

    def note(self, kind: EventKind, text: str = "", **data: object) -> None:
        """Something happened. Of the end nobody is told before `tell_end`."""
        if dropped := self._flood.dropped(kind):
            self._keep("warning", f"{dropped} events came too fast and were not kept", {})
        if self._flood.keeps(kind):
            self._keep(kind, text, data)

    def tell_end(self) -> None:
        """The run's end is in the store; whoever listens may know."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._tell(ended)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _keep(self, kind: EventKind, text: str, data: dict[str, object]) -> None:
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
            data={key: self._bounded(value, MAX_DEPTH) for key, value in data.items()},
        )
        self._pending.append(event)
        self._tail.append(f"{kind}: {line}" if line else kind)
        if kind == "ended":
            self._ended = event
        else:
            self._tell(event)

    async def flush(self) -> None:
        """Have everything so far in the store."""
        with anyio.CancelScope(shield=True):  # cancelled in between, they would be nowhere
            events = self.take()
            try:
                if events:
                    await self._store.add_events(events)
            except StoreFailed as exc:
                self._pending[:0] = events  # there are MAX_EVENTS at most; they are tried again
                log.warning("%d events of %s are not kept yet: %s", len(events), self._run_id, exc)

    def take(self) -> tuple[Event, ...]:
        """What is not in the store yet, for whoever brings it there."""
        events, self._pending = tuple(self._pending), []
        return events

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    def clean(self, text: str) -> str:
        """The text without what is known to be secret, and without what cannot be kept.

        Half a character, as a file's name may hold it, fits neither into the store nor into JSON.
        """
        return self._redactor.text(text).encode(errors="replace").decode()

    def clean_value(self, value: object) -> object:
        """The same for a JSON value, keys included."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(str(key)): self.clean_value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean_value(item) for item in value]
        return value

    def _bounded(self, value: object, depth: int) -> object:
        if isinstance(value, str):
            return self.clean(value)[:MAX_VALUE]
        if isinstance(value, dict | list | tuple) and not depth:
            return "…"
        if isinstance(value, dict):
            items = list(value.items())[:100]
            return {self.clean(str(k))[:MAX_VALUE]: self._bounded(v, depth - 1) for k, v in items}
        if isinstance(value, list | tuple):
            return [self._bounded(item, depth - 1) for item in value[:100]]
        return value
