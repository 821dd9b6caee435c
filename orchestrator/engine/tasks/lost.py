"""Runs whose orchestrator has died: their wire is gone, and with it their container.

Those that waited for a word are suspended: they go on when they have it. The others end; their
result is made of the events and the changes that the store and the disk kept.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import anyio.to_thread

from orchestrator.domain.events import Event, said_so_far
from orchestrator.domain.result import Reason, RunResult, RunStatus, Spent, Usage
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import RunRecord, Store
from orchestrator.workspace.kept import Handed

LOST_MESSAGE = (
    "the orchestrator that ran it has died, and its container with it; what it had said last is in "
    "partial_text. Ask for it again, in the same session if the agent has one"
)

LOST_SILENT = (
    "the orchestrator that ran it has died, and its container with it, before it had said "
    "anything. Ask for it again, in the same session if the agent has one"
)

LOST_SAVED = (
    ". What it had changed in its copy by {when} is kept, though a file may be half written: "
    "`orchestrator show {run_id}` lists it, `orchestrator apply {run_id}` applies it"
)

SUSPENDED_MESSAGE = (
    "the orchestrator was killed while the run waited; the run goes on when it has its answer"
)

LOST_TAIL = 20

COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")

Recall = Callable[[str], Handed | None]
"""What is kept of a run's copy, as workspace/kept.py has it."""


def nothing_kept(_: str) -> Handed | None:
    """For an orchestrator that keeps no copies."""
    return None


async def settle_lost(
    store: Store, alive: Callable[[str], bool], recall: Recall = nothing_kept
) -> tuple[RunResult, ...]:
    """Suspend the runs whose orchestrator has died if they wait for a word, and end the others; the
    results of those that this call ended.
    """
    found = await store.unfinished()
    dead = [record for record in found if not (record.owner and alive(record.owner))]
    if not dead:
        return ()
    waiting = await _suspended(store, dead)
    ended = [
        await end_lost(store, record, recall) for record in dead if record.run_id not in waiting
    ]
    return tuple(result for result in ended if result is not None)


async def _suspended(store: Store, dead: Sequence[RunRecord]) -> frozenset[str]:
    """Suspend what waits, each run with those that work for it and wait too; all that do so."""
    words = await Exchanges(store).waiting()
    records = {record.run_id: record for record in dead}
    families: dict[str, list[RunRecord]] = defaultdict(list)
    for record in dead:
        first: RunRecord | None = record
        while first is not None and first.depth:
            first = records.get(first.parent_run_id)
        if first is not None:  # else whoever it worked for goes on without it, or has ended
            families[first.run_id].append(record)
    suspended: set[str] = set()
    for run_id, family in families.items():
        first = records[run_id]
        if first.suspended is not None:
            suspended |= {each.run_id for each in family if each.suspended is not None}
            continue
        waiting = {each.run_id for each in family if each.run_id in words}
        if waiting:
            whole = sorted(waiting | {run_id})
            await store.suspend(whole, first.owner, SUSPENDED_MESSAGE)
            suspended.update(whole)
    return frozenset(suspended)


async def end_lost(
    store: Store,
    record: RunRecord,
    recall: Recall = nothing_kept,
    *,
    status: RunStatus = "failed",
    reason: Reason = "orchestrator_lost",
    message: str = "",
) -> RunResult | None:
    """End a run that no process has, with all that is kept of it; None if it had ended, or if a
    process has taken it up. Without a message, it is said that its orchestrator has died.
    """
    events = await store.events(record.run_id)
    handed = await anyio.to_thread.run_sync(recall, record.run_id)
    others = await family_usage(store, record.run_id, events)
    result = lost_result(record, events, handed, others)
    if message:
        said = message + _saved(record.run_id, handed)
        update = {"status": status, "reason": reason, "message": said}
        result = result.model_copy(update=update)
    kept = await store.finish(result, (_last_event(result, events),), owner=record.owner)
    return result if kept else None


async def family_usage(store: Store, run_id: str, events: Iterable[Event]) -> Usage:
    """What runs used that a run had others do, as their records name them; each once."""
    used = Usage()
    known, waiting = {run_id}, [events]
    while waiting:
        for event in waiting.pop():
            child = event.data.get("run_id")
            if event.kind != "delegated" or not isinstance(child, str) or child in known:
                continue
            known.add(child)
            theirs = await store.events(child)
            used = used.plus(usage_of(theirs))
            waiting.append(theirs)
    return used


def usage_of(events: Iterable[Event]) -> Usage:
    """What a run used, as its record tells."""
    requests = [event.data for event in events if event.kind == "model_request"]
    counts = {name: int(sum(_number(data, name) for data in requests)) for name in COUNTS}
    unanswered = [data for data in requests if data.get("unanswered") is True]
    return Usage(
        requests=len(requests),
        cost_usd=sum(_number(data, "cost_usd") for data in requests),
        estimated_usd=sum(_number(data, "estimated_usd") for data in requests),
        unanswered_usd=sum(_number(data, "estimated_usd") for data in unanswered),
        **counts,
    )


def lost_result(
    record: RunRecord,
    events: tuple[Event, ...],
    handed: Handed | None = None,
    others: Spent = Spent(),  # noqa: B008 frozen
) -> RunResult:
    """What the record tells of a run that was cut off. Pure."""
    said = said_so_far(events)
    used = usage_of(events)
    told = [event for event in events if event.kind != "saying"]
    lines = [f"{event.kind}: {event.text}" if event.text else event.kind for event in told]
    return RunResult(
        run_id=record.run_id,
        agent=record.agent,
        caller=record.caller,
        status="failed",
        reason="orchestrator_lost",
        message=(LOST_MESSAGE if said else LOST_SILENT) + _saved(record.run_id, handed),
        partial_text=said,
        duration_ms=int((events[-1].at - record.created) * 1000) if events else 0,
        cost_usd=round(used.cost_usd, 6),
        estimated_usd=round(used.estimated_usd, 6),
        family_usd=round(used.cost_usd + others.cost_usd, 6),
        family_estimated_usd=round(used.estimated_usd + others.estimated_usd, 6),
        usage=used,
        session=record.session,
        changed_files=handed.changed_files if handed else (),
        patch=handed.patch if handed else "",
        denied_hosts=tuple(
            dict.fromkeys(
                f"{event.data.get('host')}:{event.data.get('port')}"
                for event in events
                if event.kind == "egress_denied" and event.data.get("port")
            )
        ),
        log_tail=tuple(lines[-LOST_TAIL:]),
    )


def _saved(run_id: str, handed: Handed | None) -> str:
    return LOST_SAVED.format(when=handed.when, run_id=run_id) if handed else ""


def _last_event(result: RunResult, events: tuple[Event, ...]) -> Event:
    return Event(
        run_id=result.run_id,
        seq=events[-1].seq + 1 if events else 1,
        at=time.time(),
        kind="ended",
        text=result.message,
        data={"status": result.status, "reason": result.reason},
    )


def _number(data: dict[str, object], name: str) -> float:
    value = data.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
