"""Those who watch runs: what they are told, and that they harm none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.domain.window import (
    TRACEPARENT,
    called_within,
    trace_id_of,
    valid_traceparent,
)
from orchestrator.engine.tasks.watch import Watched

OWN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TASK = Task(agent="a", prompt="x")
EVENT = Event(run_id="r1", seq=1, at=0.0, kind="text")
RESULT = RunResult(run_id="r1", agent="a", caller="main", status="completed", reason="ok")


class Notes:
    """A watcher, and its watch of a run, that raises where it is told to."""

    def __init__(self, fails_at: str = "", traceparent: str = "") -> None:
        self.heard: list[str] = []
        self.task = TASK
        self.traceparent = traceparent
        self._fails_at = fails_at

    def begun(self, task: Task) -> Notes:
        self.task = task
        self._hear("begun")
        return self

    def planned(
        self, agent: AgentSpec, runner: str, provider: str, clean: Callable[[str], str]
    ) -> None:
        self._hear("planned")

    def saw(self, event: Event) -> None:
        self._hear("saw")

    def ended(self, result: RunResult) -> None:
        self._hear("ended")

    def refused(self, code: str) -> None:
        self._hear(f"refused {code}")

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if what == self._fails_at:
            raise RuntimeError(what)


@pytest.mark.parametrize("moment", ["begun", "planned", "saw", "ended"])
def test_a_watcher_that_fails_is_heard_no_more_and_harms_nobody(moment: str) -> None:
    bad, good = Notes(fails_at=moment), Notes()
    watched = Watched((bad, good), TASK)
    watched.planned(AgentSpec(name="a", description="A."), "claude", "anthropic", str)
    watched.saw(EVENT)
    watched.ended(RESULT)
    assert good.heard == ["begun", "planned", "saw", "ended"]
    assert bad.heard == good.heard[: good.heard.index(moment) + 1]


def test_the_place_in_a_trace_that_one_gives_a_run_is_told_to_the_others() -> None:
    first, second = Notes(traceparent=OWN), Notes()
    watched = Watched((first, second), TASK)
    assert watched.task.traceparent == second.task.traceparent == OWN
    assert watched.task.trace_id == trace_id_of(OWN) == OWN[3:35]
    assert Watched((), TASK).task is TASK


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", OWN.upper(), OWN + "-x", OWN + "\n", OWN.replace("00-", "ff-", 1)),
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        None,
        7,
        ["00"],
    ],
)
def test_what_is_no_traceparent_counts_as_none(text: object) -> None:
    assert valid_traceparent(text) == ""
    with called_within(OWN), called_within(text):
        assert TRACEPARENT.get() == ""
    assert Task(agent="a", prompt="x", traceparent=str(text)).trace_id == ""


def test_runs_are_begun_for_whoever_calls() -> None:
    with called_within(OWN):
        assert TRACEPARENT.get() == OWN
    assert TRACEPARENT.get() == ""
