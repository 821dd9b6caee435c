"""Runs whose orchestrator has died: their wire is gone, and with it their container.

Their result is made of the events and the changes that the store and the disk kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import anyio.to_thread

from orchestrator.domain.events import Event, said_so_far
from orchestrator.domain.result import RunResult, Spent, Usage
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
    """End the runs whose orchestrator has died; the results of those that this call ended."""
    ended = []
    for record in await store.unfinished():
        if record.owner and alive(record.owner):
            continue
        events = await store.events(record.run_id)
        handed = await anyio.to_thread.run_sync(recall, record.run_id)
        family = await _family(store, record.run_id, events)
        result = lost_result(record, events, handed, family)
        if await store.finish(result, (_last_event(result, events),)):
            ended.append(result)
    return tuple(ended)


async def _family(store: Store, run_id: str, events: Iterable[Event]) -> Spent:
    """What runs cost that a run had others do, as their records name them; each once."""
    cost = estimated = 0.0
    known, waiting = {run_id}, [events]
    while waiting:
        for event in waiting.pop():
            child = event.data.get("run_id")
            if event.kind != "delegated" or not isinstance(child, str) or child in known:
                continue
            known.add(child)
            theirs = await store.events(child)
            spent = _spent(theirs)
            cost += spent.cost_usd
            estimated += spent.estimated_usd
            waiting.append(theirs)
    return Spent(cost_usd=cost, estimated_usd=estimated)


def _spent(events: Iterable[Event]) -> Usage:
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
    used = _spent(events)
    told = [event for event in events if event.kind != "saying"]
    lines = [f"{event.kind}: {event.text}" if event.text else event.kind for event in told]
    saved = LOST_SAVED.format(when=handed.when, run_id=record.run_id) if handed else ""
    return RunResult(
        run_id=record.run_id,
        agent=record.agent,
        caller=record.caller,
        status="failed",
        reason="orchestrator_lost",
        message=(LOST_MESSAGE if said else LOST_SILENT) + saved,
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
