"""Runs -> bodies: the envelope, a row of a list, what waits for a word."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.domain.events import said_so_far
from orchestrator.domain.result import FINAL, RunResult, Usage
from orchestrator.errors import RunNotFound
from orchestrator.surfaces.event_lines import event_line
from orchestrator.surfaces.http.bodies import (
    MAX_NUMBER,
    AskedQuestion,
    FileChange,
    InboxItem,
    PendingCall,
    Run,
    RunRow,
    SettledQuestion,
)
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.mcp.answers.shown_changes import shown_changes
from orchestrator.surfaces.text import LINE_CHARS, shortened

if TYPE_CHECKING:
    from orchestrator.domain.exchange import Approval, Question
    from orchestrator.engine.tasks.task_book import TaskView
    from orchestrator.store.numbered_events import Kinship
    from orchestrator.store.reports import RunStep, Spending
    from orchestrator.store.runs import RunRecord
    from orchestrator.surfaces.http.endpoint import ApiCall

LOOKED_EVENTS = 200
"""Of a run under way that are looked through for what its agent said last."""

TAIL_LINES = 20
"""Of what a run under way did last."""

RESULT_FIELDS = frozenset(RunResult.model_fields) & frozenset(Run.model_fields) - {
    *("run_id", "agent", "caller", "status", "changed_files", "patch", "session", "reason")
}
"""What a body takes from a result as it is."""


async def run_body(call: ApiCall, run_id: str, *, fresh: bool = False) -> Run:
    """All that is known of a run; RunNotFound if who asks may not see it. Of a fresh one, which has
    just been accepted, nothing is looked for that comes later: what it asks, hands on and spends.
    """
    service, book = call.parts.service, call.parts.tasks.book
    newest = await call.parts.feed.line.newest()
    view = await book.view(run_id, call.asker.sees_as, fresh=fresh)
    if view.project != service.project:  # of which a person would see all
        raise RunNotFound(f"there is no run {run_id!r} in this project")
    asked = () if fresh else await service.exchanges.questions(run_id)
    live: dict[str, Any] = {}
    if view.status not in FINAL and not fresh:
        events = await service.store.events(run_id, limit=LOOKED_EVENTS, last=True)
        lines = [event_line(event.kind, event.text) for event in events if event.kind != "saying"]
        tail = [f"{line.label}: {line.text}".removesuffix(": ") for line in lines[-TAIL_LINES:]]
        live = {"partial_text": said_so_far(events), "log_tail": tuple(map(shortened, tail))}
        live |= _spent(await service.store.reports.spending(run_ids=[run_id]))
    live |= {"project": view.project if call.asker.person else ""}
    live |= {"workspace": service.sent.shown(view.workspace)}
    return _run(view, asked, live, newest)


def _run(view: TaskView, asked: Sequence[Question], live: Mapping[str, Any], newest: int) -> Run:
    known = view.result
    found = known or RunResult(
        run_id=view.run_id, agent=view.agent, caller=view.caller, status=view.status, reason="ok"
    )
    changes = shown_changes(found, whole=True)
    texts = {name: getattr(found, name) for name in RESULT_FIELDS} | dict(live)
    return Run(
        run_id=view.run_id,
        agent=view.agent,
        caller=view.caller,
        status=view.status,
        reason=view.reason,
        window=view.window,
        prompt=view.prompt,
        context=view.context,
        session=view.session,
        parent_run_id=view.parent_run_id,
        depth=view.depth,
        created=view.created,
        ended=view.ended,
        questions=tuple(map(_question, view.questions)),
        pending_tool_calls=tuple(map(_pending, view.approvals)),
        asked_before=tuple(
            SettledQuestion(**each.model_dump(include=set(SettledQuestion.model_fields)))
            for each in asked
            if each.status != "pending_parent_reply"
        ),
        changed_files=tuple(
            FileChange.model_validate(each) for each in _list(changes.get("changed_files"))
        ),
        patch=str(changes.get("patch", "")),
        patch_cut="patch_uri" in changes,
        unheard=view.unheard,
        newest_event_id=newest,
        **texts,
    )


def run_row(
    record: RunRecord, waiting: int, step: RunStep | None, spent: Sequence[Spending]
) -> RunRow:
    """A run in a list; `spent` of one that has not ended."""
    result = record.result
    usage = Usage() if result is None else result.usage
    so_far = _spent(spent) if result is None and spent else {}
    usage = so_far.get("usage", usage)
    return RunRow(
        **record.model_dump(include=set(RunRow.model_fields) & set(type(record).model_fields))
        | {"prompt": shortened(record.prompt, LINE_CHARS)},
        model=so_far.get("model", "") if result is None else result.model,
        runner="" if result is None else result.runner,
        cost_usd=so_far.get("cost_usd", 0.0) if result is None else result.cost_usd,
        estimated_usd=so_far.get("estimated_usd", 0.0) if result is None else result.estimated_usd,
        family_usd=so_far.get("family_usd", 0.0) if result is None else result.family_usd,
        input_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
        output_tokens=usage.output_tokens,
        duration_ms=0 if result is None else result.duration_ms,
        scripted=bool(so_far.get("scripted")) if result is None else result.scripted,
        requests=usage.requests,
        waiting=waiting,
        step="" if step is None else shortened(step.text or step.kind),
        step_kind="" if step is None else step.kind,
        step_at=None if step is None else step.at,
    )


def waiting_question(question: Question, kin: Kinship) -> InboxItem:
    return InboxItem(
        kind="question",
        run_id=question.run_id,
        agent=kin.agent,
        caller=kin.caller,
        asked=question.asked,
        deadline=question.deadline or None,
        message_id=question.message_id,
        question=question.question,
        default_answer=question.default_answer,
        may_decide=True,
    )


def waiting_call(approval: Approval, kin: Kinship, *, person: bool) -> InboxItem:
    return InboxItem(
        kind="approval",
        run_id=approval.run_id,
        agent=kin.agent,
        caller=kin.caller,
        asked=approval.asked,
        deadline=approval.deadline or None,
        call_id=approval.call_id,
        tool=approval.tool,
        input=json_value(approval.input),
        approval_by=approval.approval_by,
        may_decide=person or approval.approval_by == "parent",
    )


def _question(question: Question) -> AskedQuestion:
    said = question.model_dump(include=set(AskedQuestion.model_fields))
    return AskedQuestion(**said | {"deadline": question.deadline or None})


def _pending(approval: Approval) -> PendingCall:
    said = approval.model_dump(include=set(PendingCall.model_fields))
    more = {"deadline": approval.deadline or None, "input": json_value(approval.input)}
    return PendingCall(**said | more)


def _spent(spent: Sequence[Spending]) -> dict[str, Any]:
    """What is known of the use of a run under way."""
    usage = Usage()
    for each in spent:
        usage = usage.plus(Usage.model_validate(each.model_dump(include=set(Usage.model_fields))))
    return {
        "cost_usd": usage.cost_usd,
        "estimated_usd": usage.estimated_usd,
        "family_usd": usage.cost_usd,
        "family_estimated_usd": usage.estimated_usd,
        "usage": usage,
        "model": spent[-1].model if spent else "",
        "scripted": any(each.scripted for each in spent),
    }


def json_value(value: object) -> Any:
    """A value that JSON can hold: what came from a container may have numbers that are none."""
    return json.loads(json.dumps(value), parse_constant=str)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# Cursors


def cursor_after(*values: object) -> str:
    """Where a page ended, for the next one to begin. Callers need not understand it."""
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def read_cursor(text: str, *kinds: type) -> tuple[Any, ...] | None:
    """The values of a cursor, of these kinds; None for none. HttpRefusal for what is no cursor."""
    if not text:
        return None
    try:
        values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        fits = [type(value) for value in values] == list(kinds) and all(map(_storable, values))
    except (ValueError, binascii.Error, TypeError, RecursionError):
        fits = False
    if not fits:
        raise HttpRefusal(400, "invalid_request", "cursor is none that this server has given")
    return tuple(values)


def _storable(value: object) -> bool:
    """Whether the store can be asked for it; ValueError for a text that is none."""
    if isinstance(value, str):
        value.encode()
    return not isinstance(value, int) or abs(value) <= MAX_NUMBER
