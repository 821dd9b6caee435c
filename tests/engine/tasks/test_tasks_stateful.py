"""Random commands, crashes and restarts: the store stays true, and no answer is lost or doubled."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from orchestrator.domain.exchange import Approval
from orchestrator.domain.result import FINAL, WAITING
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.errors import RunNotFound, RunRefused
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import RunRecord, Store
from tests.engine.scripted_runs import Process, kinds

PATIENCE = 30
"""For anything to become visible in the store."""

PAUSE_SECONDS = 0.002
"""Between two looks."""

ACKNOWLEDGED = "acknowledged_by_subagent"

HASTY = 0.01
"""Seconds that some agents wait for an answer: none comes in time."""

T = TypeVar("T")


class Questions(RuleBasedStateMachine):
    """One process that runs tasks and may be killed, and one that only looks and answers."""

    runs = Bundle("runs")
    questions = Bundle("questions")
    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._starting = anyio.from_thread.start_blocking_portal()
        self._portal = self._starting.__enter__()
        self._living: set[str] = set()
        self._owners = 0
        self._names = 0
        self._process = self._new_process()
        self._other = self._new_process()
        self._eyes = self._portal.call(Store, Path(self._folder.name) / "runs.sqlite", "eyes")
        self._look = Exchanges(self._eyes)
        self._given: dict[str, str] = {}
        """Question -> the answer that somebody was told is given."""
        self._delivered: list[tuple[str, str]] = []
        """What agents got: run, answer."""
        self._scopes: dict[str, anyio.CancelScope] = {}
        """Question -> what ends the agent's waiting for it."""
        self._crashed: set[str] = set()
        self._decided: dict[tuple[str, str], Approval] = {}
        self._obeyed: list[tuple[str, str, str]] = []
        """What agents were told of their calls: run, call, decision."""
        self._told: dict[str, list[str]] = {}
        self._ends: dict[str, RunRecord] = {}
        self._hasty: set[str] = set()

    def teardown(self) -> None:
        for process in (self._process, self._other):
            self._do(process.stop())
        self._eyes.close()
        self._starting.__exit__(None, None, None)
        self._folder.cleanup()

    # What agents do

    @initialize(target=runs)
    def begin(self) -> MultipleResults[str]:
        return multiple(self._start(hasty=False), self._start(hasty=False), self._start(hasty=True))

    @rule(target=runs, hasty=st.booleans())
    def start(self, hasty: bool) -> str:
        return self._start(hasty=hasty)

    @rule(target=questions, run_id=runs)
    def ask(self, run_id: str) -> tuple[str, str]:
        run_id = self._one_at_work(run_id)
        before = {each.message_id for each in self._do(self._look.questions(run_id))}
        live, delivered = self._process.service.live[run_id], len(self._delivered)
        scope = self._portal.call(anyio.CancelScope)

        async def deed() -> None:
            with scope:
                answer = await live.desk.ask("Which colour?", "grey")
                self._delivered.append((run_id, answer))

        self._portal.call(self._process.service.do, run_id, deed)

        def new() -> list[str]:
            known = {each.message_id for each in self._do(self._look.questions(run_id))}
            return list(known - before)

        (message_id,) = self._until(new)
        self._scopes[message_id] = scope
        if run_id in self._hasty:
            self._until(lambda: len(self._delivered) > delivered)
        else:
            self._until(lambda: self._record(run_id).status == "waiting_parent_reply")
        return run_id, message_id

    @rule(target=calls, run_id=runs, again=st.booleans())
    def ask_for_a_tool(self, run_id: str, again: bool) -> tuple[str, str]:
        run_id = self._one_at_work(run_id)
        known = [each.call_id for each in self._do(self._look.approvals(run_id))]
        self._names += 1
        call = known[0] if again and known else f"c{self._names}"
        live, heard = self._process.service.live[run_id], len(self._obeyed)

        async def deed() -> None:
            decided = await live.desk.approve(call, "Bash", {"command": call})
            self._obeyed.append((run_id, call, decided.decision))

        self._portal.call(self._process.service.do, run_id, deed)
        if call in known:  # one word for two calls would be one too many
            self._until(lambda: len(self._obeyed) > heard)
            assert self._obeyed[-1] == (run_id, call, "rejected")
            self._obeyed.pop()
        elif run_id in self._hasty:
            self._until(lambda: (run_id, call, "timed_out") in self._obeyed)
        else:
            self._until(lambda: self._do(self._look.approval(run_id, call)) is not None)
            self._until(lambda: self._record(run_id).status in WAITING)
        return run_id, call

    @rule(question=questions)
    def stop_waiting_for_an_answer(self, question: tuple[str, str]) -> None:
        run_id, message_id = question
        is_open = self._is_open(run_id, message_id)
        if message_id in self._scopes and self._at_work(run_id):
            self._portal.call(self._scopes[message_id].cancel)
            self._until(lambda: not self._is_open(run_id, message_id))
            self._until(lambda: (self._record(run_id).status in WAITING) == self._waits(run_id))
        if is_open:
            with pytest.raises(RunRefused):
                self._do(self._other.tasks.book.reply(run_id, message_id, "too late", "main"))

    @rule(target=runs, run_id=runs)
    def complete(self, run_id: str) -> str:
        if self._at_work(run_id):
            self._portal.call(self._process.service.complete, run_id, f"result of {run_id}")
            self._until(lambda: self._record(run_id).status in FINAL)
            assert self._record(run_id).status == "completed"
        return self._start(hasty=False)

    # What callers do

    @rule(question=questions, answer=st.sampled_from(("blue", "red", "")), here=st.booleans())
    def reply(self, question: tuple[str, str], answer: str, here: bool) -> None:
        run_id, message_id = question
        is_open, delivered = self._is_open(run_id, message_id), len(self._delivered)
        tasks = (self._process if here else self._other).tasks
        try:
            self._do(tasks.book.reply(run_id, message_id, answer, "main"))
        except RunRefused:
            assert not (is_open and answer)
            return
        assert is_open
        self._given[message_id] = answer
        self._until(lambda: len(self._delivered) > delivered)
        self._until(lambda: (self._record(run_id).status in WAITING) == self._waits(run_id))

    @rule(target=runs, question=questions, answer=st.sampled_from(("blue", "red")))
    def reply_and_crash(self, question: tuple[str, str], answer: str) -> str:
        run_id, message_id = question
        if self._is_open(run_id, message_id):
            self._do(self._other.tasks.book.reply(run_id, message_id, answer, "main"))
            self._given[message_id] = answer
        return self._crash(look_first=True)

    @rule(run_id=runs)
    def reply_to_what_was_never_asked(self, run_id: str) -> None:
        with pytest.raises(RunRefused, match="has asked no question"):
            self._do(self._other.tasks.book.reply(run_id, "m0", "blue", "main"))
        with pytest.raises(RunNotFound):
            self._do(self._other.tasks.book.reply(run_id, "m0", "blue", "stranger"))

    @rule(call=calls, allow=st.booleans(), edited=st.booleans(), here=st.booleans())
    def decide(self, call: tuple[str, str], allow: bool, edited: bool, here: bool) -> None:
        run_id, call_id = call
        waiting = self._do(self._look.approvals(run_id, pending=True))
        is_open = any(each.call_id == call_id for each in waiting)
        tasks = (self._process if here else self._other).tasks
        inputs: dict[str, dict[str, object]] = {call_id: {"command": "edited"}} if edited else {}
        approve, reject = ([call_id], []) if allow else ([], [call_id])
        try:
            (decided,) = self._do(
                tasks.book.decide(run_id, "main", approve=approve, reject=reject, inputs=inputs)
            )
        except RunRefused:
            assert not is_open
            return
        assert is_open
        assert decided.approved == allow
        assert decided.new_input == ({"command": "edited"} if allow and edited else None)
        self._decided[run_id, call_id] = decided
        self._until(lambda: (run_id, call_id, decided.decision) in self._obeyed)
        self._until(lambda: (self._record(run_id).status in WAITING) == self._waits(run_id))

    @rule(run_id=runs, here=st.booleans())
    def tell(self, run_id: str, here: bool) -> None:
        at_work = self._at_work(run_id)
        self._names += 1
        text = f"word {self._names}"
        told = self._do((self._process if here else self._other).tasks.tell(run_id, text, "main"))
        assert told == at_work
        if told:
            heard = self._process.service.heard[run_id].heard
            self._told.setdefault(run_id, []).append(text)
            self._until(lambda: text in heard)
            assert heard == self._told[run_id]

    @rule(target=runs, run_id=runs, here=st.booleans())
    def cancel(self, run_id: str, here: bool) -> str:
        before = self._record(run_id).status
        tasks = (self._process if here else self._other).tasks
        view = self._do(tasks.cancel(run_id, "main"))
        assert view.status == (before if before in FINAL else "cancelled")
        return self._start(hasty=False)

    # What happens to everybody

    @rule(target=runs, look_first=st.booleans())
    def crash(self, look_first: bool) -> str:
        return self._crash(look_first=look_first)

    @rule()
    def settle(self) -> None:
        assert self._do(settle_lost(self._eyes, self._living.__contains__)) == ()

    # What is always true

    @invariant()
    def the_store_never_contradicts_the_events(self) -> None:
        for record in self._do(self._eyes.find_runs(limit=1000, results=True)):
            events = self._do(self._eyes.events(record.run_id))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            ended = kinds(events, "ended")
            if record.status in FINAL:
                assert ended == [events[-1]]
                assert ended[0].data == {"status": record.status, "reason": record.reason}
                assert record.result is not None
                assert (record.result.status, record.result.reason) == (
                    *(record.status, record.reason),
                )
            else:
                assert ended == []
                assert (record.result, record.ended) == (None, None)
            asked = {event.data["message_id"] for event in kinds(events, "asked")}
            told = {e.data["message_id"]: e.text for e in kinds(events, "answered")}
            for question in self._do(self._look.questions(record.run_id)):
                if question.status == ACKNOWLEDGED:
                    assert question.message_id in asked
                    assert told[question.message_id] == question.answer

    @invariant()
    def a_run_that_ended_stays_as_it_is(self) -> None:
        for record in self._do(self._eyes.find_runs(limit=1000, results=True)):
            if record.status in FINAL:
                assert self._ends.setdefault(record.run_id, record) == record

    @invariant()
    def answers_are_what_was_given_and_come_once(self) -> None:
        questions = self._do(self._look.questions())
        for question in questions:
            if question.message_id in self._given:
                assert question.answer == self._given[question.message_id]
            else:
                assert question.answer is None
                assert question.status in ("pending_parent_reply", "unanswered")
        acknowledged = Counter((q.run_id, q.answer) for q in questions if q.status == ACKNOWLEDGED)
        delivered = Counter(each for each in self._delivered if each[1] != "grey")
        assert delivered <= acknowledged  # what was said as the process died may be heard by none
        assert {
            key: count for key, count in acknowledged.items() if key[0] not in self._crashed
        } == {key: count for key, count in delivered.items() if key[0] not in self._crashed}

    @invariant()
    def decisions_are_what_was_given_and_are_obeyed_once(self) -> None:
        for (run_id, call_id), decided in self._decided.items():
            assert self._do(self._look.approval(run_id, call_id)) == decided
            assert self._obeyed.count((run_id, call_id, decided.decision)) == 1
        calls = Counter((run_id, call_id) for run_id, call_id, _ in self._obeyed)
        assert all(count == 1 for count in calls.values())

    @invariant()
    def nobody_waits_for_a_word_in_a_run_that_has_ended(self) -> None:
        for question in self._do(self._look.questions(pending=True)):
            assert self._record(question.run_id).status == "waiting_parent_reply"
        for approval in self._do(self._look.approvals(pending=True)):
            status = self._record(approval.run_id).status
            assert status in ("paused", "waiting_parent_reply")

    # How it is done

    def _start(self, *, hasty: bool) -> str:
        self._names += 1
        prompt = f"task {self._names}"
        if hasty:
            self._process.service.answer_seconds[prompt] = HASTY
        run_id = self._do(self._process.tasks.start(Task(agent="worker", prompt=prompt)))
        if hasty:
            self._hasty.add(run_id)
        self._until(lambda: self._process.service.live.get(run_id) is not None)
        return run_id

    def _crash(self, *, look_first: bool) -> str:
        """Kill the process that runs the tasks, and have another in its place."""
        under_way = [record.run_id for record in self._do(self._eyes.unfinished())]
        self._crashed |= set(under_way)
        self._do(self._process.kill())
        waiting = self._do(self._look.waiting())
        lost = sorted(set(under_way) - waiting)
        if look_first:
            ended = self._do(settle_lost(self._eyes, self._living.__contains__))
            assert sorted(result.run_id for result in ended) == lost
        self._process = self._new_process()
        self._do(self._process.tasks.book.settle())
        for run_id in lost:
            record = self._record(run_id)
            assert (record.status, record.reason) == ("failed", "orchestrator_lost")
        for run_id in waiting:
            self._answer_and_cancel(run_id)
        return self._start(hasty=False)

    def _answer_and_cancel(self, run_id: str) -> None:
        """Of a run that no process has, each question is answered once, and it can be ended."""
        record, book = self._record(run_id), self._other.tasks.book
        assert record.suspended is not None
        assert record.status not in FINAL
        for question in self._do(self._look.questions(run_id, pending=True)):
            assert question.deadline == 0
            self._do(book.reply(run_id, question.message_id, "late", "main"))
            self._given[question.message_id] = "late"
            with pytest.raises(RunRefused, match="answered already"):
                self._do(book.reply(run_id, question.message_id, "later", "main"))
        assert self._do(settle_lost(self._eyes, self._living.__contains__)) == ()
        assert self._do(book.cancel(run_id, "main")).status == "cancelled"
        record = self._record(run_id)
        assert (record.suspended, record.reason) == (None, "cancelled")

    def _new_process(self) -> Process:
        self._owners += 1
        folder, owner = Path(self._folder.name), f"owner{self._owners}"

        async def start() -> Process:
            process = Process(folder, owner, self._living)
            await process.start()
            return process

        return self._do(start())

    def _one_at_work(self, run_id: str) -> str:
        """This run, or one that has not ended."""
        if self._at_work(run_id):
            return run_id
        others = [record.run_id for record in self._do(self._eyes.unfinished())]
        return others[-1] if others else self._start(hasty=False)

    def _at_work(self, run_id: str) -> bool:
        return self._record(run_id).status not in FINAL

    def _is_open(self, run_id: str, message_id: str) -> bool:
        waiting = self._do(self._look.questions(run_id, pending=True))
        return any(question.message_id == message_id for question in waiting)

    def _waits(self, run_id: str) -> bool:
        return bool(
            self._do(self._look.questions(run_id, pending=True))
            or self._do(self._look.approvals(run_id, pending=True))
        )

    def _record(self, run_id: str) -> RunRecord:
        record = self._do(self._eyes.run(run_id))
        assert record is not None
        return record

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            with anyio.fail_after(PATIENCE):
                return await work

        return self._portal.call(bounded)

    def _until(self, look: Callable[[], T]) -> T:
        end = time.monotonic() + PATIENCE
        while not (seen := look()):
            assert time.monotonic() < end, "it never came"
            self._do(anyio.sleep(PAUSE_SECONDS))
        return seen


def test_whatever_happens_the_store_stays_true_and_no_answer_is_lost_or_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make soak` has twenty times as many examples."""
    run_examples(monkeypatch, 8)


def run_examples(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in ("news", "tasks"):
        monkeypatch.setattr(f"orchestrator.engine.tasks.{module}.STORE_LOOK_SECONDS", PAUSE_SECONDS)
    run_state_machine_as_test(
        Questions,
        settings=settings(
            max_examples=count,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
