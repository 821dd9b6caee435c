"""Those who watch runs from outside of them: told when one begins, what happens in it, how it ends.

Traces, metrics and the log are made of this. The engine tells what it knows anyway, and knows none
of them; what a watcher raises harms no run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task

log = logging.getLogger(__name__)


class RunWatch(Protocol):
    """One run, as one watcher follows it. It does not block, and keeps what it holds in bounds:
    an agent makes as many events as it likes.
    """

    @property
    def traceparent(self) -> str:
        """The run's own place in a trace, if the watcher gives it one."""
        ...

    def planned(
        self, agent: AgentSpec, runner: str, provider: str, clean: Callable[[str], str]
    ) -> None:
        """It may run, as this agent, on this CLI, with a model of that provider's. `clean` takes
        out of a text what is secret.
        """
        ...

    def saw(self, event: Event) -> None:
        """Something of its record, which is kept; before it ends."""
        ...

    def ended(self, result: RunResult) -> None:
        """It has ended, and nothing more comes."""
        ...

    def refused(self, code: str) -> None:
        """It was never a run: its caller may not, or what it needs is not there."""
        ...


class Watcher(Protocol):
    """Follows all runs of a process."""

    def begun(self, task: Task) -> RunWatch:
        """Somebody wants a task to be run."""
        ...


class Watched:
    """One run, for all that watch it."""

    def __init__(self, watchers: Sequence[Watcher], task: Task) -> None:
        self._watches: list[RunWatch] = []
        self.task = task
        """With its own place in a trace, if it has one."""
        for watcher in watchers:
            try:
                watch = watcher.begun(self.task)
                self._watches.append(watch)
                if watch.traceparent:
                    update = {"traceparent": watch.traceparent}
                    self.task = self.task.model_copy(update=update)
            except Exception:
                log.exception("run %s is not watched as it should be", task.run_id)

    def planned(
        self, agent: AgentSpec, runner: str, provider: str, clean: Callable[[str], str]
    ) -> None:
        self._tell(lambda watch: watch.planned(agent, runner, provider, clean))

    def saw(self, event: Event) -> None:
        """A listener of the run's record."""
        self._tell(lambda watch: watch.saw(event))

    def ended(self, result: RunResult) -> None:
        self._tell(lambda watch: watch.ended(result))

    def refused(self, code: str) -> None:
        self._tell(lambda watch: watch.refused(code))

    def _tell(self, tell: Callable[[RunWatch], None]) -> None:
        for watch in tuple(self._watches):
            try:
                tell(watch)
            except Exception:
                self._watches.remove(watch)
                log.exception("run %s is not watched any more", self.task.run_id)

    @property
    def is_watched(self) -> bool:
        return bool(self._watches)
