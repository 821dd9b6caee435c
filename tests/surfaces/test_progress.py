"""Steps of a long piece of work, told to a log."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest

from orchestrator.surfaces import progress


class Log(io.StringIO):
    """A stderr that is no terminal; says when so many lines are there."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self._wanted = wanted
        self.full = threading.Event()

    @property
    def lines(self) -> list[str]:
        return [line[10:] for line in self.getvalue().splitlines()]

    def flush(self) -> None:
        if len(self.lines) >= self._wanted:
            self.full.set()


def test_a_step_that_takes_long_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(wanted=3)
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "STILL_SECONDS", 0.01)
    with progress.shown_progress() as show:
        show("fetching")
        assert log.full.wait(30)
    told, *again = log.lines
    assert told == "fetching"
    assert all(re.fullmatch(r"fetching \(\d s\)", line) for line in again)
