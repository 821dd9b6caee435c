"""Events as they are kept, read from the store once for all that follow them.

A follower joins, reads from the store what came before, and is then handed what comes. The feed
reads only while it has followers; it wakes when this process keeps an event, and looks now and then
for those of others.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import anyio

from orchestrator.engine.tasks.news import News, wait_for_news
from orchestrator.errors import OrchestratorError
from orchestrator.store.numbered_events import KeptEvent, Kinship, NumberedEvents
from orchestrator.store.runs import Store

log = logging.getLogger(__name__)

FEED_PAGE = 500
"""Events that are read at once."""

MAX_BEHIND_BYTES = 1024 * 1024
"""That wait for one follower; then it is cut, and has to come again."""

PACE_SECONDS = 0.0001
"""Between two rounds, for each follower: with very many of them, events go out in groups."""

MAX_PACE_SECONDS = 0.2

ENDED_LOOK_SECONDS = 5.0
"""Between two looks for runs that ended without an event that says so."""

MAX_KIN = 20_000
"""Runs of which the feed remembers whose they are."""

FAILED_SECONDS = 1.0
"""After which the store is tried again."""


class Follower:
    """One that follows events: of one run, of all that a caller may see, or of a whole project."""

    def __init__(self, *, run_id: str = "", caller: str | None = None) -> None:
        """Neither: the operator, who follows all of the project."""
        self.run_id = run_id
        self.caller = caller
        self.scope = anyio.CancelScope()
        """Of what it does; it is cancelled when the follower is cut."""
        self.cut = False
        self.over = False
        """Its run has ended, or is gone."""
        self.live = False
        """It has read what came before: from now on it must keep up."""
        self.missed = False
        """While it was reading, more came than may wait for it: it has to join again."""
        self._waiting: list[KeptEvent] = []
        self._bytes = 0
        self._woken = anyio.Event()

    async def next(self) -> Sequence[KeptEvent]:
        """What has come, when something has; nothing if its run is over."""
        while not self._waiting and not self.over:
            await self._woken.wait()
            self._woken = anyio.Event()
        return self.take()

    def take(self) -> Sequence[KeptEvent]:
        """What has come and was not taken yet."""
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken

    def give(self, events: Sequence[KeptEvent], size: int) -> None:
        """These have come; `size` is what their frames take."""
        if self._bytes > MAX_BEHIND_BYTES:  # not of this round: that may be more, of a fast run
            self._waiting, self._bytes = [], 0
            self.missed = True
            if self.live:
                self.cut = True
                self.scope.cancel()
        elif not self.missed:
            self._waiting += events
            self._bytes += size
        self._woken.set()

    def end(self) -> None:
        """Its run is over."""
        self.over = True
        self._woken.set()


class EventFeed:
    """For one project. Have `serve` run as long as there are followers."""

    def __init__(self, store: Store, project: str) -> None:
        self.line: NumberedEvents = store.numbered_events
        self.project = project
        self._kept = News()
        store.tell_of_events(self._kept.tell)
        self._followers: set[Follower] = set()
        self._by_run: dict[str, set[Follower]] = defaultdict(set)
        self._last: int | None = None
        """Up to which number events were handed out; None while there is no follower."""
        self._kin: dict[str, Kinship] = {}
        self._joined = anyio.Event()

    @property
    def followers(self) -> int:
        """How many there are."""
        return len(self._followers)

    @contextmanager
    def following(self, follower: Follower) -> Iterator[Follower]:
        """In this block it can join."""
        try:
            yield follower
        finally:
            self._leave(follower)

    async def join(self, follower: Follower) -> int:
        """From now on it is handed what comes; the number up to which it has to read by itself."""
        self._leave(follower)
        follower.missed = False
        follower.take()
        if self._last is None:
            newest = await self.line.newest()
            if self._last is None:  # another one may have joined meanwhile
                self._last = newest
        self._followers.add(follower)
        if follower.run_id:
            self._by_run[follower.run_id].add(follower)
        self._joined.set()
        return self._last

    async def serve(self) -> None:
        """Hand out events, for ever."""
        looked = anyio.current_time()
        while True:
            if not self._followers:
                self._last = None
                self._joined = anyio.Event()
                await self._joined.wait()
            changed = self._kept.next()
            try:
                found = await self._round()
                if anyio.current_time() - looked > ENDED_LOOK_SECONDS:
                    looked = anyio.current_time()
                    await self._end_those_over()
            except OrchestratorError as exc:
                log.warning("events cannot be read: %s", exc)
                await anyio.sleep(FAILED_SECONDS)
                continue
            if found:
                await anyio.sleep(min(PACE_SECONDS * len(self._followers), MAX_PACE_SECONDS))
            else:
                await wait_for_news(changed)

    async def audience(self, run_ids: Iterable[str]) -> dict[str, frozenset[str]]:
        """The callers that may see each of these runs: whose it is, and whom it works for."""
        asked = set(run_ids)
        known: dict[str, Kinship] = {}  # while this waits, others may forget what is remembered
        wanted = asked
        while wanted:
            found = {run_id: self._kin[run_id] for run_id in wanted & self._kin.keys()}
            if unknown := wanted - found.keys():
                found |= await self.line.kinship(unknown)
            known |= found
            wanted = {kin.parent for kin in found.values() if kin.parent} - known.keys()
        if len(self._kin) > MAX_KIN:
            self._kin.clear()
        self._kin |= known
        return {run_id: frozenset(self._callers(run_id)) for run_id in asked}

    def kin(self, run_id: str) -> Kinship | None:
        """Whose a run is that `audience` was asked about; None if it is another project's."""
        kin = self._kin.get(run_id)
        return kin if kin is not None and kin.project == self.project else None

    def _callers(self, run_id: str) -> Iterator[str]:
        seen: set[str] = set()
        while run_id in self._kin and run_id not in seen:
            seen.add(run_id)
            kin = self._kin[run_id]
            if kin.project != self.project:
                return
            yield kin.caller
            run_id = kin.parent

    async def _round(self) -> bool:
        last = self._last
        if last is None:
            return False
        newest = await self.line.newest()
        if newest <= last:
            return False
        found = await self.line.of_project(self.project, last, FEED_PAGE)
        if not found:
            self._last = newest  # what is between is other projects': it is not looked at again
            return False
        audience = await self.audience(event.run_id for event in found)
        # From here on nothing waits: who joins meanwhile would miss events, or get them twice.
        self._last = found[-1].number
        of_run: dict[str, list[KeptEvent]] = defaultdict(list)
        of_caller: dict[str | None, list[KeptEvent]] = {None: found}
        for event in found:
            of_run[event.run_id].append(event)
            for caller in audience[event.run_id]:
                of_caller.setdefault(caller, []).append(event)
        for run_id in of_run.keys() & self._by_run.keys():
            _give(self._by_run[run_id], of_run[run_id])
        followers: dict[str | None, list[Follower]] = defaultdict(list)
        for follower in self._followers:
            if not follower.run_id:
                followers[follower.caller].append(follower)
        for whose in followers.keys() & of_caller.keys():
            _give(followers[whose], of_caller[whose])
        return True

    async def _end_those_over(self) -> None:
        if self._by_run:
            for run_id in await self.line.ended(self._by_run):
                for follower in self._by_run.get(run_id, ()):
                    follower.end()

    def _leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        mine = self._by_run.get(follower.run_id, set())
        mine.discard(follower)
        if not mine:
            self._by_run.pop(follower.run_id, None)


def _give(followers: Iterable[Follower], events: Sequence[KeptEvent]) -> None:
    size = sum(len(event.frame) for event in events)
    for follower in followers:
        follower.give(events, size)
