"""Runs: begin, list, look, cancel; what they changed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
from starlette.responses import Response

from orchestrator.domain.result import FINAL
from orchestrator.engine.tasks.task_book import named_statuses
from orchestrator.errors import AskedBefore
from orchestrator.surfaces.http.bodies import (
    AppliedBody,
    ApplyWish,
    FileChange,
    NewRun,
    Run,
    RunPage,
    RunQuery,
)
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.http.run_bodies import cursor_after, read_cursor, run_body, run_row
from orchestrator.surfaces.mcp.arguments import asked_task

if TYPE_CHECKING:
    from orchestrator.domain.task import Task
    from orchestrator.store.reports import Spending

log = logging.getLogger(__name__)

ACCEPT_SECONDS = 20.0
"""For a run to be accepted; an image that has to be built first takes longer."""

BEGUN_RETRY_SECONDS = 30
"""After which to ask for a run again that was not accepted by then."""

NOT_BEGUN = (
    "the run is not begun yet, since what it needs takes longer: its image is being built, or a "
    "secret's command does not answer. It begins when that is there; ask again with the same "
    "Idempotency-Key, or look for it with GET /v1/runs"
)

DIFF_TYPE = "text/x-diff"


async def begin(call: ApiCall) -> ApiReply:
    wish: NewRun = call.body
    once = call.once
    service = call.parts.service
    if once is not None:
        kept = await service.store.request_keys.find(service.project, once)
        if kept is not None:
            return await _shown(call, kept.run_id, replayed=True)
    task = asked_task(
        *(call.asker.caller, wish.agent, wish.prompt, wish.context, wish.workspace, wish.session),
        after=wish.after,
    )
    seconds = None if wish.timeout_ms is None else wish.timeout_ms / 1000
    task = task.model_copy(update={"timeout_seconds": seconds, "once": once})
    await service.check_known(task)
    try:
        run_id = await started(call, task)
    except AskedBefore as exc:
        return await _shown(call, exc.run_id, replayed=True)
    return await _shown(call, run_id)


async def started(call: ApiCall, task: Task) -> str:
    """Begin a run; one that takes longer to begin than a client waits goes on by itself: cancelled
    in between, it might be in the store with no process to run it.
    """
    starting = call.parts.tasks.starting(task)
    done, _ = await asyncio.wait([starting], timeout=ACCEPT_SECONDS)
    if not done:
        starting.add_done_callback(_logged)
        raise HttpRefusal(503, "not_ready", NOT_BEGUN, {"Retry-After": str(BEGUN_RETRY_SECONDS)})
    return starting.result()


def _logged(starting: asyncio.Task[str]) -> None:
    if not starting.cancelled() and (exc := starting.exception()) is not None:
        log.warning("a run could not begin: %s", exc)


async def _shown(call: ApiCall, run_id: str, *, replayed: bool = False) -> ApiReply:
    """A run that was asked for: at once, or when it is settled if the caller wants to wait."""
    headers = {"Location": f"/v1/runs/{run_id}"}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    settled = await _waited(call, run_id)
    if call.wait_seconds is not None:
        headers["Preference-Applied"] = f"wait={call.wait_seconds}"
    fresh = not replayed and call.wait_seconds is None
    body = await run_body(call, run_id, fresh=fresh)
    return ApiReply(body, 200 if settled else 202, headers)


async def _waited(call: ApiCall, run_id: str) -> bool:
    """Wait for a run as long as the request wants; whether it is settled then."""
    seconds = call.wait_seconds
    if seconds is None:
        return False
    (view,) = await call.parts.tasks.book.wait([run_id], None, seconds=seconds)
    return view.settled


async def look(call: ApiCall) -> ApiReply:
    await call.check_seen(call.run_id)
    headers = {}
    if call.wait_seconds is not None:
        await _waited(call, call.run_id)
        headers["Preference-Applied"] = f"wait={call.wait_seconds}"
    return ApiReply(await run_body(call, call.run_id), headers=headers)


async def list_runs(call: ApiCall) -> ApiReply:
    query: RunQuery = call.query
    store, book = call.parts.service.store, call.parts.tasks.book
    caller: str | None = call.asker.caller
    if call.asker.person:
        caller = query.caller or None
    elif query.caller not in ("", caller):
        raise HttpRefusal(403, "person_needed", "only a person may list another caller's runs")
    if query.parent:
        await call.check_seen(query.parent)
        caller = None if not query.caller else query.caller
    newest = await call.parts.feed.line.newest()
    before = read_cursor(query.cursor, float, str)
    records = await book.records(
        caller,
        statuses=named_statuses(query.status),
        agent=query.agent,
        limit=query.limit + 1,
        projects=(call.parts.service.project,),
        results=True,
        asked_for=query.roots,
        parent=query.parent,
        before=before and (float(before[0]), str(before[1])),
    )
    items, more = records[: query.limit], len(records) > query.limit
    under_way = [record.run_id for record in items if record.status not in FINAL]
    questions, approvals = await book.asking() if under_way else ((), ())
    waiting = Counter(each.run_id for each in questions)
    waiting.update(each.run_id for each in approvals)
    steps = await store.reports.steps(under_way) if under_way else {}
    spent: dict[str, list[Spending]] = {}
    for each in await store.reports.spending(run_ids=under_way) if under_way else ():
        spent.setdefault(each.run_id, []).append(each)
    rows = tuple(
        run_row(
            record, waiting[record.run_id], steps.get(record.run_id), spent.get(record.run_id, ())
        )
        for record in items
    )
    cursor = cursor_after(items[-1].created, items[-1].run_id) if more else None
    return ApiReply(RunPage(items=rows, next_cursor=cursor, newest_event_id=newest))


async def cancel(call: ApiCall) -> ApiReply:
    await call.check_seen(call.run_id)
    view = await call.parts.tasks.cancel(call.run_id, call.asker.sees_as)
    body = await run_body(call, call.run_id)
    return ApiReply(body, 200 if view.status in FINAL else 202)


async def patch(call: ApiCall) -> Response:
    copies, run_id = call.parts.service.copies, await call.newest_seen()
    data = await anyio.to_thread.run_sync(copies.patch, run_id)
    return Response(data, media_type=DIFF_TYPE)


async def apply(call: ApiCall) -> ApiReply:
    wish: ApplyWish = call.body
    await call.check_seen(call.run_id)
    do = partial(call.parts.service.apply, call.run_id, call.asker.sees_as)
    work = do(dry_run=wish.dry_run, allow_acting=wish.allow_acting)
    applied = await asyncio.shield(call.parts.tasks.own(work))  # all or nothing
    files = tuple(FileChange(**file.model_dump()) for file in applied.files)
    return ApiReply(
        AppliedBody(
            files=files,
            already=applied.already,
            dry_run=wish.dry_run,
            kept_folders=tuple(map(str, applied.kept_folders)),
        )
    )


RUN_ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/runs", begin, "Begin a run"),
        {202: Run, 200: Run},
        (403, 404, 409, 422, 503),
        body=NewRun,
        waits=True,
        keyed=False,
    ),
    Endpoint(
        *("GET", "/v1/runs", list_runs, "List runs, the newest first"),
        {200: RunPage},
        (403, 404),
        query=RunQuery,
    ),
    Endpoint(*("GET", "/v1/runs/{run_id}", look, "Look at a run"), {200: Run}, (404,), waits=True),
    Endpoint(
        *("POST", "/v1/runs/{run_id}/cancel", cancel, "End a run"), {200: Run, 202: Run}, (404,)
    ),
    Endpoint(
        *("GET", "/v1/runs/{run_id}/patch", patch, "Read all that a run changed"),
        {200: DIFF_TYPE},
        (404, 409),
    ),
    Endpoint(
        *("POST", "/v1/runs/{run_id}/apply", apply, "Apply what a run changed to its workspace"),
        {200: AppliedBody},
        (404, 409, 422),
        body=ApplyWish,
    ),
)
