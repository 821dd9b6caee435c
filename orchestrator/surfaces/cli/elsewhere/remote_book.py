"""The tasks of an orchestrator elsewhere, with what commands ask of the book of this machine's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import FINAL, RunStatus
from orchestrator.engine.tasks.task_book import LAST, TaskView, Until
from orchestrator.errors import CallInvalid, RunNotFound, RunRefused
from orchestrator.surfaces.cli.elsewhere.translated import (
    event_of,
    record_of,
    spending_of,
    step_of,
    view_of,
)
from orchestrator.workspace.kept import RUN_ID

if TYPE_CHECKING:
    from orchestrator.client.api import OrchestratorClient
    from orchestrator.client.documents import RemoteRow, RemoteRun
    from orchestrator.domain.events import Event
    from orchestrator.store.reports import RunStep, Spending
    from orchestrator.store.runs import RunRecord

LOOKED_THROUGH = 200
"""Runs among which one is looked for by the beginning of its id."""

ASKED_AT_ONCE = 8

WAIT_TOGETHER_SECONDS = 2
"""For one of several runs that are waited for, before all are looked at again."""


class RemoteBook:
    """One caller's tasks on one server."""

    def __init__(self, client: OrchestratorClient) -> None:
        self.client = client
        self.store = _RemoteStore(client)

    async def settle(self) -> None:
        """The server does."""

    async def settle_now_and_then(self) -> None:
        """The server does."""

    async def goes_on_by_itself(self, run_id: str) -> bool:  # noqa: ARG002 a server is there
        return True

    async def named(self, text: str, project: str) -> str:  # noqa: ARG002 the server's own
        """The id of the run that is meant, as on this machine."""
        if text == LAST:
            newest = await self.client.runs(roots=True, limit=1)
            if not newest:
                raise RunNotFound(f"nothing has run at {self.client.url} yet")
            return newest[0].run_id
        rows: list[RemoteRow] = []
        if RUN_ID.fullmatch(text) or text == "r":
            try:
                return (await self.client.get(text)).run_id
            except RunNotFound:
                rows = await self.client.runs(limit=LOOKED_THROUGH)
        found = [row.run_id for row in rows if row.run_id.startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            raise CallInvalid(
                f"{text!r} is the beginning of several runs: {', '.join(found[:10])}; write more "
                "of it"
            )
        raise RunNotFound(f"there is no run {text!r}; `orchestrator runs` lists them")

    async def record(self, run_id: str) -> RunRecord:
        return record_of(await self.client.get(run_id))

    async def view(self, run_id: str, caller: str | None = None) -> TaskView:  # noqa: ARG002
        return view_of(await self.client.get(run_id))

    async def wait(
        self,
        run_ids: Sequence[str],
        caller: str | None,  # noqa: ARG002 the token's
        *,
        seconds: float,
        until: Until = "all",
    ) -> tuple[TaskView, ...]:
        """The tasks, as soon as they are settled, or one of them, or when the time is over."""
        deadline = anyio.current_time() + seconds
        while True:
            views = [view_of(await self.client.get(run_id)) for run_id in run_ids]
            under_way = [view for view in views if not view.settled]
            left = deadline - anyio.current_time()
            done = len(views) - len(under_way)
            asks = any(view.asks for view in views)
            if not under_way or asks or (until == "any" and done) or left <= 0:
                return tuple(views)
            together = inf if len(under_way) == 1 else WAIT_TOGETHER_SECONDS
            await self.client.wait(under_way[0].run_id, min(left, together))

    async def records(
        self,
        *,
        statuses: Iterable[RunStatus] = (),
        agent: str = "",
        limit: int = 50,
        projects: object = None,  # noqa: ARG002 the server's own
        results: bool = False,  # noqa: ARG002 they come with it
    ) -> tuple[RunRecord, ...]:
        rows = await self.client.runs(status=tuple(statuses), agent=agent, limit=limit)
        return await self._details(rows)

    async def families(self, *, limit: int, projects: object = None) -> tuple[RunRecord, ...]:  # noqa: ARG002
        """The newest runs that callers asked for, and then those that worked for them."""
        rows = await self.client.runs(roots=True, limit=limit)
        found, above = list(rows), list(rows)
        while above:
            below: list[RemoteRow] = []
            async for children in self._each(above):
                below += children
            found += below
            above = below
        return await self._details(found)

    async def _each(self, rows: Sequence[RemoteRow]) -> AsyncIterator[list[RemoteRow]]:
        """Those that work for each."""
        for row in rows:
            yield await self.client.runs(parent=row.run_id, limit=LOOKED_THROUGH)

    async def _details(self, rows: Sequence[RemoteRow]) -> tuple[RunRecord, ...]:
        """All of each run: a row has not its result."""
        found: dict[str, RemoteRun] = {}
        several = anyio.CapacityLimiter(ASKED_AT_ONCE)

        async def look(run_id: str) -> None:
            async with several:
                try:
                    found[run_id] = await self.client.get(run_id)
                except RunNotFound:
                    return  # it has just been removed

        async with anyio.create_task_group() as group:
            for row in rows:
                group.start_soon(look, row.run_id)
        self.store.seen(rows, found)
        return tuple(record_of(found[row.run_id]) for row in rows if row.run_id in found)

    async def asking(self) -> tuple[tuple[Question, ...], tuple[Approval, ...]]:
        items = await self.client.inbox()
        common = ("run_id", "asked")
        questions = [
            Question(
                message_id=each.message_id,
                question=each.question,
                default_answer=each.default_answer,
                deadline=each.deadline or 0.0,
                **{name: getattr(each, name) for name in common},
            )
            for each in items
            if each.kind == "question"
        ]
        approvals = [
            Approval.model_validate(
                {
                    **{name: getattr(each, name) for name in common},
                    "call_id": each.call_id,
                    "tool": each.tool,
                    "input": each.input,
                    "approval_by": each.approval_by,
                    "deadline": each.deadline or 0.0,
                }
            )
            for each in items
            if each.kind == "approval"
        ]
        return tuple(questions), tuple(approvals)

    async def reply(self, run_id: str, message_id: str, answer: str, caller: str | None) -> None:  # noqa: ARG002
        await self.client.answer(run_id, message_id, answer)

    async def decide(
        self,
        run_id: str,
        caller: str | None,  # noqa: ARG002 the token's
        *,
        approve: Sequence[str] = (),
        reject: Sequence[str] = (),
        approve_all: bool = False,
        reject_all: bool = False,
        inputs: dict[str, dict[str, object]] | None = None,
        message: str = "",
    ) -> tuple[Approval, ...]:
        """Decide tool calls that wait; those that are named, or all of the run's own."""
        view = await self.view(run_id)
        pending = {each.call_id: each for each in view.approvals if each.run_id == run_id}
        unknown = [call for call in (*approve, *reject) if call not in pending]
        if unknown:
            raise RunRefused(
                f"run {run_id} has no tool call {', '.join(unknown)} that waits to be approved; "
                f"waiting: {', '.join(sorted(pending)) or 'none'}"
            )
        allowed = {*approve, *(pending.keys() - set(reject) if approve_all else ())}
        refused = {*reject, *(pending.keys() - allowed if reject_all else ())}
        decisions: dict[str, dict[str, Any]] = {}
        for call in pending:
            if call in allowed:
                decisions[call] = {"action": "approve"}
                if inputs and call in inputs:
                    decisions[call]["input"] = inputs[call]
            elif call in refused:
                decisions[call] = {"action": "reject", **({"why": message} if message else {})}
        if decisions:
            await self.client.decide(run_id, decisions)
        return tuple(
            pending[call].model_copy(
                update={
                    "decision": "approved" if call in allowed else "rejected",
                    "new_input": made.get("input"),
                    "message": made.get("why", ""),
                }
            )
            for call, made in decisions.items()
        )

    async def cancel(self, run_id: str, caller: str | None, *, seconds: float) -> TaskView:  # noqa: ARG002
        return view_of(await self.client.cancel(run_id, seconds))


class _RemoteStore:
    """What commands read of runs besides."""

    def __init__(self, client: OrchestratorClient) -> None:
        self._client = client
        self._rows: dict[str, RemoteRow] = {}
        self._runs: dict[str, RemoteRun] = {}
        self._last: dict[int, int] = {}
        """The ids of events by their numbers in their run."""
        self.reports = self

    def seen(self, rows: Iterable[RemoteRow], runs: dict[str, RemoteRun]) -> None:
        """What the list of before was made of."""
        self._rows = {row.run_id: row for row in rows}
        self._runs = runs

    async def events(self, run_id: str, after: int = 0) -> tuple[Event, ...]:
        found = await self._client.past_events(run_id, self._last.get(after, 0))
        if found:
            self._last = {found[-1].seq: found[-1].id}
        return tuple(map(event_of, found))

    async def steps(self, run_ids: Iterable[str]) -> dict[str, RunStep]:
        steps = {each: step_of(self._rows[each]) for each in run_ids if each in self._rows}
        return {run_id: step for run_id, step in steps.items() if step is not None}

    async def spending(self, *, run_ids: Iterable[str]) -> tuple[Spending, ...]:
        wanted = [self._runs[each] for each in run_ids if each in self._runs]
        return tuple(spending_of(run) for run in wanted if run.usage.requests)


def has_ended(view: TaskView) -> bool:
    return view.status in FINAL
