"""The events of a session, as a stream that goes on over its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.engine.tasks.event_feed import FEED_PAGE, MAX_KIN, Follower
from orchestrator.surfaces.http.routes.events import EventFrames
from orchestrator.surfaces.http.sessions_facade.told_events import RunTelling, event_frames

if TYPE_CHECKING:
    from orchestrator.store.numbered_events import KeptEvent
    from orchestrator.store.threads import Thread
    from orchestrator.surfaces.http.endpoint import ApiCall


class SessionFrames(EventFrames):
    """Begins, unless a cursor says otherwise, with the newest run, without what was proposed in it
    and is decided: who reads this has not been told of it, and could not decide it again.
    """

    def __init__(self, call: ApiCall, thread: Thread, after: int | None) -> None:
        super().__init__(call, Follower(caller=thread.caller), after)
        self._thread = thread
        self._book = call.parts.tasks.book
        self._exact = after is not None
        self._waiting: set[str] = set()
        self._mine: dict[str, bool] = {}
        self._tellings: dict[str, RunTelling] = {}

    async def _beginning(self, newest: int) -> int:
        runs = await self._store.of_thread(self._thread.thread_id, newest=True)
        if not runs:
            return newest
        view = await self._book.view(runs[0].run_id)
        self._waiting = {each.call_id for each in view.approvals}
        self._waiting |= {each.message_id for each in view.questions}
        first = await self._feed.line.first_of_run(runs[0].run_id)
        return first - 1 if first else newest

    async def _read(self, after: int, upto: int) -> tuple[Sequence[KeptEvent], Sequence[KeptEvent]]:
        page = await self._feed.line.of_thread(self._thread.thread_id, after, FEED_PAGE, upto)
        return page, page

    async def _is_over(self) -> bool:
        thread = self._thread
        found = await self._store.threads.find(thread.thread_id, thread.project, thread.caller)
        return found is None

    async def _told(self, page: Sequence[KeptEvent]) -> bytes:
        frames = []
        for event in page:
            if not await self._is_mine(event.run_id):
                continue
            told = (await self._telling(event)).told(event)
            if self._is_stale(event):
                continue
            frames.append(event_frames(self._thread.thread_id, event, told))
        return b"".join(frames)

    def _is_stale(self, event: KeptEvent) -> bool:
        if self._exact or self._follower.live or event.kind not in ("approval_asked", "asked"):
            return False
        data = json.loads(event.data)
        return data.get("call_id", data.get("message_id")) not in self._waiting

    async def _is_mine(self, run_id: str) -> bool:
        if run_id not in self._mine:
            if len(self._mine) > MAX_KIN:
                self._mine.clear()
            record = await self._store.run(run_id)
            of_thread = record is not None and record.thread == self._thread.thread_id
            self._mine[run_id] = of_thread
        return self._mine[run_id]

    async def _telling(self, event: KeptEvent) -> RunTelling:
        """What this reader was told of a run; for one that reads on, what it was told before."""
        telling = self._tellings.get(event.run_id)
        if telling is None:
            self._tellings.clear()  # one run at a time
            telling = self._tellings[event.run_id] = RunTelling()
            after = 0
            while before := await self._feed.line.of_run(
                event.run_id, after, FEED_PAGE, event.number - 1
            ):
                for each in before:
                    telling.told(each)
                after = before[-1].number
        return telling
