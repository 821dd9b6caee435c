"""Everything that happens in a run goes through here: numbered, bounded, without secrets, kept."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Sized

import anyio

from orchestrator.domain.events import Event, EventKind
from orchestrator.engine.flood import ALWAYS, Flood, group
from orchestrator.errors import StoreFailed
from orchestrator.redaction import Redactor, Sought
from orchestrator.store.runs import Store

log = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Of one event's line for people."""

MAX_VALUE = 4000
"""Of one string in an event's data."""

MAX_ITEMS = 100
"""Of one list or object there; that there are more is said."""

DATA_DEPTH = 32
"""Of lists in lists in an event's data; what lies deeper is left out."""

LOOKED_AT = 16
"""So many times what is shown of a text is searched for secrets; of megabytes, that takes long."""

MAX_EVENTS = 20_000
"""Of one run, of what its agent does, of what is said to and asked by it, and of what the gateway
saw, each. Any process in the container can make up the first two."""

EVENTS_PER_SECOND = 100
"""Unless agent.md says otherwise."""

LOG_LINES = 20
"""How many last lines a failure repeats, and how many warnings any result."""

Listener = Callable[[Event], None]


class Record:
    """One run's events, on their way to the store and to listeners."""

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
        self._kept = Counter[str]()
        self._flood = Flood(events_per_second)
        self._tail: deque[str] = deque(maxlen=LOG_LINES)
        self._warnings: dict[str, None] = {}
        self._ended: Event | None = None

    def add_secrets(self, secrets: Iterable[str | Sought]) -> None:
        """From now on, these are not to be seen."""
        self._redactor.add(secrets)

    def listen(self, listener: Listener) -> None:
        """From now on, tell this one as well."""
        self._listeners = (*self._listeners, listener)

    def note(self, kind: EventKind, text: str = "", **data: object) -> None:
        """Something happened. Listeners hear of the end from `tell_end` only."""
        if dropped := self._flood.dropped(kind):
            self._keep("warning", f"{dropped} events came too fast and were not kept", {})
        if self._flood.keeps(kind):
            self._keep(kind, text, data)

    def tell_end(self) -> None:
        """The run's end is in the store; tell the listeners."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._tell(ended)

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # a listener's broken pipe is no fault of the run's
                log.debug("a listener of %s failed", self._run_id, exc_info=True)

    def _keep(self, kind: EventKind, text: str, data: dict[str, object]) -> None:
        if kind not in ALWAYS:
            counted = group(kind)
            self._kept[counted] += 1
            if self._kept[counted] > MAX_EVENTS + 1:
                return
            if self._kept[counted] > MAX_EVENTS:
                kind, text, data = "warning", f"{MAX_EVENTS} events; no more of them are kept", {}
        self._seq += 1
        line = self._short(text, MAX_TEXT)
        event = Event(
            run_id=self._run_id,
            seq=self._seq,
            at=time.time(),
            kind=kind,
            text=line,
            data={key: self._bounded(value, DATA_DEPTH) for key, value in data.items()},
        )
        self._pending.append(event)
        if kind != "saying":
            self._tail.append(f"{kind}: {line}" if line else kind)
        if kind == "warning" and len(self._warnings) < LOG_LINES:
            self._warnings[line] = None
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
                self._pending[:0] = events  # there is a limit to them; they are tried again
                log.warning("%d events of %s are not kept yet: %s", len(events), self._run_id, exc)

    def take(self) -> tuple[Event, ...]:
        """What is not in the store yet; the caller of this brings it there."""
        events, self._pending = tuple(self._pending), []
        return events

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was warned of, each once."""
        return tuple(self._warnings)

    def clean(self, text: str) -> str:
        """The text without what is known to be secret, and without what cannot be kept.

        Half a character, as a file's name may hold it, fits neither into the store nor into JSON.
        """
        return self._redactor.text(text).encode(errors="replace").decode()

    def sure(self, text: str) -> str:
        """The beginning of a text that goes on, up to what may be the beginning of a secret."""
        head = text.encode("utf-8", "surrogatepass")
        decided, _ = self._redactor.masked(head, b"*", last=False)
        return head[: len(decided)].decode("utf-8", "ignore")

    def clean_value(self, value: object) -> object:
        """The same for a JSON value, keys included."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, dict):
            return {self.clean(str(key)): self.clean_value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean_value(item) for item in value]
        return value

    def _short(self, text: str, limit: int) -> str:
        """The beginning of a text, clean: a secret that is cut there is not in it either."""
        if len(text) > LOOKED_AT * limit:
            text = self.sure(text[: LOOKED_AT * limit])
        return self.clean(text)[:limit]

    def _bounded(self, value: object, depth: int) -> object:
        if isinstance(value, str):
            return self._short(value, MAX_VALUE)
        if isinstance(value, dict | list | tuple) and not depth:
            return "…"
        if isinstance(value, dict):
            items = list(value.items())[:MAX_ITEMS]
            kept = {self._short(str(k), MAX_VALUE): self._bounded(v, depth - 1) for k, v in items}
            return kept | ({"…": _more(value)} if len(value) > MAX_ITEMS else {})
        if isinstance(value, list | tuple):
            some = [self._bounded(item, depth - 1) for item in value[:MAX_ITEMS]]
            return [*some, _more(value)] if len(value) > MAX_ITEMS else some
        return value


def _more(value: Sized) -> str:
    return f"… and {len(value) - MAX_ITEMS} more"
