"""Events: of one run or of all that one may see; as pages, or as a stream that goes on."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from orchestrator.domain.result import FINAL
from orchestrator.engine.tasks.event_feed import FEED_PAGE, Follower
from orchestrator.surfaces.http.bodies import (
    MAX_NUMBER,
    EventBody,
    EventGap,
    EventPage,
    EventQuery,
    RunEventQuery,
)
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.problems import HttpRefusal

if TYPE_CHECKING:
    from orchestrator.engine.tasks.event_feed import EventFeed
    from orchestrator.store.numbered_events import KeptEvent

STREAM_TYPE = "text/event-stream"

STREAM_HEADERS = {
    "X-Accel-Buffering": "no",  # or a proxy keeps events until it has many
}

COMMENT_SECONDS = 15.0
"""After which a stream on which nothing happens says so."""

RETRY_FRAME = b"retry: 2000\n\n"
"""Milliseconds after which a browser comes again."""

COMMENT = b": still here\n\n"

MAX_LOOKS = 20
"""Times FEED_PAGE events that are looked at for one JSON page: most may be other callers'."""

REMOVED = "removed"
"""In the place of a status: the run was deleted."""

_CURSOR = re.compile(r"[0-9]{1,19}")


async def of_run(call: ApiCall) -> ApiReply | Response:
    await call.check_seen(call.run_id)
    query: RunEventQuery = call.query
    feed, run_id = call.parts.feed, call.run_id
    after = cursor_of(call, query) or 0
    newest = await feed.line.newest()
    ended = await _has_ended(call)
    last = await feed.line.last_of_run(run_id)
    if not wants_stream(call):
        gap = await _gap(feed, after, newest, of_run=True)
        after = 0 if after > newest else after
        found = await feed.line.of_run(run_id, after, query.limit + 1, kinds=query.kind)
        return _page(found, query.limit, max(after, last), newest, gap, ended=ended)
    if after and ended and last <= after <= newest:
        return Response(status_code=204, headers=STREAM_HEADERS)
    return EventFrames(call, Follower(run_id=run_id), after)


async def of_all(call: ApiCall) -> ApiReply | Response:
    query: EventQuery = call.query
    feed, asker = call.parts.feed, call.asker
    begin = cursor_of(call, query)
    if wants_stream(call):
        return EventFrames(call, Follower(caller=asker.sees_as), begin)
    newest = await feed.line.newest()
    gap = await _gap(feed, begin or 0, newest)
    found: list[KeptEvent] = []
    after = min(begin or 0, newest)
    for _ in range(MAX_LOOKS):
        page = await feed.line.of_project(feed.project, after, FEED_PAGE)
        if not page:
            after = max(after, newest)
            break
        found += await _seen(feed, page, asker.sees_as)
        after = page[-1].number
        if len(found) > query.limit:
            break
    return _page(found, query.limit, after, newest, gap, ended=False)


def _page(
    found: Sequence[KeptEvent],
    limit: int,
    looked: int,
    newest: int,
    gap: EventGap | None,
    *,
    ended: bool,
) -> ApiReply:
    """The first of those that were found, by one that has looked at all up to a number."""
    items = tuple(EventBody.model_validate_json(event.json) for event in found[:limit])
    more = len(found) > limit
    last = items[-1].id if items else 0
    body = EventPage(
        items=items,
        next_after=last if more else max(last, looked),
        newest_event_id=newest,
        gap=gap,
        ended=ended and not more,
    )
    return ApiReply(body)


class EventFrames(Response):
    """What came before, from the store; then what comes, as long as both sides are there."""

    media_type = STREAM_TYPE

    def __init__(self, call: ApiCall, follower: Follower, after: int | None) -> None:
        super().__init__(headers=STREAM_HEADERS)
        del self.headers["content-length"]
        self._feed = call.parts.feed
        self._follower = follower
        self._after = after
        self._leaving = call.parts.leaving
        self._store = call.parts.service.store

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        follower = self._follower
        with self._feed.following(follower):
            async with anyio.create_task_group() as tasks:

                async def until_gone() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    tasks.cancel_scope.cancel()

                async def until_leaving() -> None:
                    await self._leaving.wait()
                    follower.scope.cancel()

                tasks.start_soon(until_gone)
                tasks.start_soon(until_leaving)
                with follower.scope:
                    await send(start)
                    async for frames in self._frames():
                        await send(
                            {"type": "http.response.body", "body": frames, "more_body": True}
                        )
                if not follower.cut:
                    with anyio.move_on_after(LAST_FRAME_SECONDS):
                        await send({"type": "http.response.body", "body": b""})
                tasks.cancel_scope.cancel()
        if follower.cut:
            raise ReaderCut

    async def _frames(self) -> AsyncIterator[bytes]:
        feed, follower = self._feed, self._follower
        newest = await feed.line.newest()
        yield RETRY_FRAME + control_frame("hello", {"newest_event_id": newest})
        if self._after is None:
            self._after = await self._beginning(newest)
        elif gap := await _gap(feed, self._after, newest, of_run=bool(follower.run_id)):
            yield control_frame("gap_detected", gap.model_dump())
            if self._after > newest:
                self._after = 0 if follower.run_id else newest
        async for page in self._before():
            if told := await self._told(page):
                yield told
            if follower.run_id and page[-1].kind == "ended":
                yield _end(page[-1])
                return
        follower.live = True
        while not follower.over:
            page = ()
            with anyio.move_on_after(COMMENT_SECONDS) as quiet:
                page = await follower.next()
            if quiet.cancelled_caught:
                if await self._is_over():
                    return
                yield COMMENT
            elif page:
                self._after = page[-1].number
                if told := await self._told(page):
                    yield told
                if follower.run_id and page[-1].kind == "ended":
                    yield _end(page[-1])
                    return
        # Its run is over, and no event has said so: what there is of it, and that it has ended.
        follower.live = False  # it reads from the store again: it need not keep up
        while rest := await feed.line.of_run(follower.run_id, self._after, FEED_PAGE):
            self._after = rest[-1].number
            yield b"".join(event.frame for event in rest)
        record = await self._store.run(follower.run_id)
        status = REMOVED if record is None else record.status
        yield control_frame("end", {"run_id": follower.run_id, "status": status})

    async def _before(self) -> AsyncIterator[Sequence[KeptEvent]]:
        """What came before this moment. The follower joins first, and again if it read for so long
        that more came than may wait for it.
        """
        feed, follower = self._feed, self._follower
        while True:
            upto = await feed.join(follower)
            after = self._after or 0
            while after < upto:
                page, seen = await self._read(after, upto)
                if not page:
                    break
                self._after = after = page[-1].number
                if seen:
                    yield seen
            self._after = max(after, upto)
            if not follower.missed:
                return

    # What streams of other shapes have otherwise

    async def _beginning(self, newest: int) -> int:
        """After which event a stream begins that nobody has read before."""
        return newest

    async def _read(self, after: int, upto: int) -> tuple[Sequence[KeptEvent], Sequence[KeptEvent]]:
        """The next events that came before this moment, and those of them that are sent."""
        feed, follower = self._feed, self._follower
        if follower.run_id:
            page = await feed.line.of_run(follower.run_id, after, FEED_PAGE, upto)
            return page, page
        page = await feed.line.of_project(feed.project, after, FEED_PAGE, upto)
        return page, await _seen(feed, page, follower.caller)

    async def _is_over(self) -> bool:
        """Whether what is followed is gone; asked now and then."""
        return False

    async def _told(self, page: Sequence[KeptEvent]) -> bytes:
        """Events as frames."""
        return b"".join(event.frame for event in page)


class ReaderCut(Exception):
    """A reader has not read for so long that its stream is broken off."""


LAST_FRAME_SECONDS = 1.0
"""For the end of a stream to be sent."""


async def _seen(
    feed: EventFeed, events: Sequence[KeptEvent], caller: str | None
) -> Sequence[KeptEvent]:
    """Those that a caller may see; None sees all."""
    if caller is None:
        return events
    audience = await feed.audience(event.run_id for event in events)
    return [event for event in events if caller in audience[event.run_id]]


async def _gap(
    feed: EventFeed, after: int, newest: int, *, of_run: bool = False
) -> EventGap | None:
    """What to say if events after the cursor were removed, of whichever run of the project, or the
    cursor is not of this store; None if neither is so. The events of one run go with it.
    """
    removed = 0 if of_run else await feed.line.removed(feed.project)
    if after <= newest and (not after or after >= removed):
        return None
    return EventGap(
        requested_after_id=after,
        oldest_available_id=await feed.line.oldest(feed.project),
        newest_available_id=newest,
    )


async def _has_ended(call: ApiCall) -> bool:
    record = await call.parts.service.store.run(call.run_id)
    return record is None or record.status in FINAL


def control_frame(name: str, said: dict[str, object]) -> bytes:
    """A frame without an id: it moves no cursor."""
    return f"event: {name}\ndata: {json.dumps(said)}\n\n".encode()


def _end(event: KeptEvent) -> bytes:
    status = json.loads(event.data).get("status", "")
    return control_frame("end", {"run_id": event.run_id, "status": status})


def wants_stream(call: ApiCall) -> bool:
    accepted = call.request.headers.get("accept", "")
    return STREAM_TYPE in accepted and call.request.method == "GET"


def cursor_of(call: ApiCall, query: EventQuery) -> int | None:
    """Where a stream goes on: the header is what a browser comes again with."""
    header = call.request.headers.get("last-event-id")
    if header is None:
        return query.after
    if not _CURSOR.fullmatch(header) or int(header) > MAX_NUMBER:
        raise HttpRefusal(400, "invalid_request", "Last-Event-ID is no id of an event")
    return int(header)


EVENT_ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/runs/{run_id}/events", of_run, "Read or follow a run's events"),
        {200: EventPage, 204: None},
        (404,),
        query=RunEventQuery,
        streams=True,
    ),
    Endpoint(
        *("GET", "/v1/events", of_all, "Read or follow the events of all runs that one may see"),
        {200: EventPage},
        query=EventQuery,
        streams=True,
    ),
)
