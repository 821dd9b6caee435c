"""What a server answers -> the nouns that commands print. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.store.reports import RunStep, Spending
from orchestrator.store.runs import RunRecord

if TYPE_CHECKING:
    from orchestrator.client.documents import RemoteEvent, RemoteRow, RemoteRun

_OF_RESULT = frozenset(RunResult.model_fields) - {"changed_files"}


def result_of(run: RemoteRun) -> RunResult | None:
    """How a run ended; None if it has not."""
    if not run.has_ended:
        return None
    fields = {name: value for name, value in dict(run).items() if name in _OF_RESULT}
    files = [each.here() for each in run.changed_files]
    return RunResult.model_validate({**fields, "reason": run.reason, "changed_files": files})


def record_of(run: RemoteRun) -> RunRecord:
    return RunRecord(
        run_id=run.run_id,
        agent=run.agent,
        caller=run.caller,
        status=run.status,
        reason=run.reason,
        project=run.project,
        window=run.window,
        prompt=run.prompt,
        context=run.context,
        parent_run_id=run.parent_run_id,
        depth=run.depth,
        workspace=Path(run.workspace) if run.workspace else None,
        session=run.session,
        created=run.created,
        ended=run.ended,
        result=result_of(run),
    )


def view_of(run: RemoteRun) -> TaskView:
    return TaskView(
        run_id=run.run_id,
        agent=run.agent,
        caller=run.caller,
        status=run.status,
        reason=run.reason,
        project=run.project,
        window=run.window,
        prompt=run.prompt,
        context=run.context,
        created=run.created,
        ended=run.ended,
        parent_run_id=run.parent_run_id,
        questions=tuple(each.here() for each in run.questions),
        approvals=tuple(each.here() for each in run.pending_tool_calls),
        result=result_of(run),
        unheard=run.unheard,
    )


def event_of(event: RemoteEvent) -> Event:
    """Of a kind that this version does not know, a warning."""
    kind, text = event.kind, event.text
    if kind not in get_args(EventKind):
        kind, text = "warning", f"{kind}: {text}"
    fields = {"run_id": event.run_id, "seq": event.seq, "at": event.at, "data": event.data}
    return Event.model_validate({**fields, "kind": kind, "text": text})


def spending_of(run: RemoteRun) -> Spending:
    usage = run.usage.model_dump(exclude={"unanswered_usd", "cost_usd", "estimated_usd"})
    return Spending(
        run_id=run.run_id,
        agent=run.agent,
        project=run.project,
        created=run.created,
        model=run.model,
        cost_usd=run.cost_usd,
        estimated_usd=run.estimated_usd,
        scripted=run.scripted,
        **usage,
    )


def step_of(row: RemoteRow) -> RunStep | None:
    """What a run under way was last seen doing."""
    if row.step_at is None:
        return None
    return RunStep(kind=row.step_kind, text=row.step, at=row.step_at)
