"""What becomes of runs -> lines of the log, for programs that collect logs. No line holds what an
agent or a caller said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.domain.window import REQUEST_ID

RUNS_LOGGER = "orchestrator.runs"
"""Whose lines are told though they warn of nothing."""

log = logging.getLogger(RUNS_LOGGER)

LOGGED = ("queued", "started", "asked", "approval_asked", "fallback", "nudged")


class RunLog:
    """Logs all runs. A Watcher, as engine/tasks/watch.py has it."""

    def begun(self, task: Task) -> LoggedRun:
        return LoggedRun(task)


class LoggedRun:
    """One run, as a RunWatch has it."""

    traceparent = ""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._request_id = REQUEST_ID.get()

    def planned(
        self, agent: AgentSpec, runner: str, provider: str, clean: Callable[[str], str]
    ) -> None:
        pass

    def saw(self, event: Event) -> None:
        if event.kind in LOGGED:
            self._say(event.kind)

    def ended(self, result: RunResult) -> None:
        self._say(
            "ended",
            status=result.status,
            reason=result.reason,
            duration_ms=result.duration_ms,
            requests=result.usage.requests,
            cost_usd=result.cost_usd,
        )

    def refused(self, code: str) -> None:
        self._say("refused", code=code)

    def _say(self, kind: str, **fields: object) -> None:
        task = self._task
        about = {
            "event": kind,
            "run_id": task.run_id,
            "trace_id": task.trace_id,
            "agent": task.agent,
            "caller": task.caller,
            **({"request_id": self._request_id} if self._request_id else {}),
            **fields,
        }
        log.info("%s: %s", task.agent, kind, extra={"fields": about})
