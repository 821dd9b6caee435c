"""Everything that happens in a run goes through here: numbered, bounded, without secrets, kept."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence, Sized

import anyio
import anyio.to_thread

from orchestrator.domain.audit import AuditAct, AuditEntry
from orchestrator.domain.container import MIB
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.task import Task
from orchestrator.engine.flood import ALWAYS, Flood, group
from orchestrator.errors import StoreFailed
from orchestrator.redaction import Redactor, Sought, clean_json
from orchestrator.store.audit import MAX_SUBJECT, MAX_WHY, OnceEach
from orchestrator.store.runs import Store

log = logging.getLogger(__name__)

MAX_TEXT = 2000
"""Of one event's line for people."""

MAX_VALUE = 4000
"""Of one string in an event's data."""

MAX_ITEMS = 100
"""Of one list or object there; that there are more is said."""

MAX_DATA = 16_000
"""Of all strings in an event's data together; what comes after is left out."""

DATA_DEPTH = 32
"""Of lists in lists in an event's data; what lies deeper is left out."""

LOOKED_AT = 2
"""So many times what is shown of a text is searched for secrets. An agent can write what takes a
second a megabyte, and all runs wait meanwhile."""

CLEANED_HERE = 16_000
"""Characters that are searched for secrets at once; more, and a thread does it."""

MAX_EVENT_BYTES = {"chatter": 8 * MIB, "words": 4 * MIB, "outside": 4 * MIB, "model": 4 * MIB}
"""Of one run, as they are kept; see MAX_EVENTS."""

MAX_EVENTS = 20_000
"""Of one run, of what its agent does, of what is said to and asked by it, and of what the gateway
saw, each. Any process in the container can make up the first two."""

MAX_DECISIONS = 1000
"""Of one run in the audit, of each act, let or refused: different hosts, secrets and calls."""

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
        *,
        task: Task | None = None,
        before: Sequence[Event] = (),
    ) -> None:
        """With its task, decisions about what the agent may do are written down too. `before` is
        what happened in an earlier life of the run: it goes on after that.
        """
        self._run_id = run_id
        self._task = task
        self._decisions = OnceEach(store.audit, MAX_DECISIONS)
        self._store = store
        self._listeners = tuple(listeners)
        self._redactor = Redactor(secrets)
        self._pending: list[Event] = []
        self._seq = before[-1].seq if before else 0
        self._kept = Counter[str]()
        self._kept_bytes = Counter[str]()
        self._full: set[str] = set()
        """Groups of which no more is kept."""
        self._unkept = 0
        self._flood = Flood(events_per_second)
        self._tail: deque[str] = deque(maxlen=LOG_LINES)
        self._warnings: dict[str, None] = {}
        self._ended: Event | None = None
        for event in before:
            self._remember(event.kind, event.text)

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

    async def decided(self, act: AuditAct, subject: str, *, allowed: bool, why: str = "") -> None:
        """Write down what the agent is let or refused, before it is; once for each such thing, and
        how often it was refused.
        """
        if self._task is None:
            return
        entry = AuditEntry(
            project=self._task.project,
            who=f"agent {self._task.agent}",
            act=act,
            subject=self._short(subject, MAX_SUBJECT),
            run_id=self._run_id,
            allowed=allowed,
            why=self._short(why, MAX_WHY),
        )
        await self._decisions.note(entry, key=subject)

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
        if kind == "ended" and self._unkept:
            self._add("warning", f"{self._unkept} events more were not kept", {})
        if kind in ALWAYS:
            self._add(kind, self._short(text, MAX_TEXT), self._clean_data(data))
            return
        counted = group(kind)
        if counted in self._full:
            self._unkept += 1
            return
        line, clean = self._short(text, MAX_TEXT), self._clean_data(data)
        self._kept[counted] += 1
        self._kept_bytes[counted] += len(line.encode()) + len(json.dumps(clean))
        if self._kept[counted] > MAX_EVENTS:
            self._close(counted, f"{MAX_EVENTS} events")
        elif self._kept_bytes[counted] > MAX_EVENT_BYTES[counted]:
            self._close(counted, f"{MAX_EVENT_BYTES[counted] // MIB} MiB of events")
        else:
            self._add(kind, line, clean)

    def _close(self, counted: str, most: str) -> None:
        self._full.add(counted)
        self._unkept += 1
        self._add("warning", f"{most}; no more of them are kept", {})

    def _add(self, kind: EventKind, line: str, clean: dict[str, object]) -> None:
        self._seq += 1
        event = Event(
            run_id=self._run_id, seq=self._seq, at=time.time(), kind=kind, text=line, data=clean
        )
        self._pending.append(event)
        self._remember(kind, line)
        if kind == "ended":
            self._ended = event
        else:
            self._tell(event)

    def _remember(self, kind: EventKind, line: str) -> None:
        if kind != "saying":
            self._tail.append(f"{kind}: {line}" if line else kind)
        if kind == "warning" and len(self._warnings) < LOG_LINES:
            self._warnings[line] = None

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
        return head[: self._redactor.sure(head)].decode("utf-8", "ignore")

    def clean_value(self, value: object) -> object:
        """The same for a JSON value, keys included."""
        return clean_json(value, self.clean)

    async def cleaned(self, value: object) -> object:
        """The same, of what may be so long that other runs must not wait for it."""
        if _length(value) <= CLEANED_HERE:
            return self.clean_value(value)
        return await anyio.to_thread.run_sync(self.clean_value, value)

    def _short(self, text: str, limit: int) -> str:
        """The beginning of a text, clean: a secret that is cut there is not in it either."""
        if len(text) > LOOKED_AT * limit:
            text = self.sure(text[: LOOKED_AT * limit])
        return self.clean(text)[:limit]

    def _clean_data(self, data: dict[str, object]) -> dict[str, object]:
        left = [MAX_DATA]
        return {key: self._bounded(value, DATA_DEPTH, left) for key, value in data.items()}

    def _bounded(self, value: object, depth: int, left: list[int]) -> object:
        """`left` is how many characters there may still be, of the data as a whole."""
        if isinstance(value, str):
            short = self._short(value, min(MAX_VALUE, left[0])) if left[0] > 0 else value and "…"
            left[0] -= len(short)
            return short
        if not isinstance(value, dict | list | tuple):
            return value
        left[0] -= 2
        if not depth or left[0] <= 0:
            return "…"
        if isinstance(value, dict):
            items = list(itertools.islice(value.items(), MAX_ITEMS))
            kept = {
                str(self._bounded(str(k), 0, left)): self._bounded(v, depth - 1, left)
                for k, v in items
            }
            return kept | ({"…": _more(value)} if len(value) > MAX_ITEMS else {})
        some = [self._bounded(item, depth - 1, left) for item in value[:MAX_ITEMS]]
        return [*some, _more(value)] if len(value) > MAX_ITEMS else some


def _length(value: object) -> int:
    """Of all texts in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _length(item) for key, item in value.items())
    return sum(map(_length, value)) if isinstance(value, list | tuple) else 0


def _more(value: Sized) -> str:
    return f"… and {len(value) - MAX_ITEMS} more"
