"""What a server logs, as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.domain.window import at_work_for, called_within
from orchestrator.errors import EngineUnreachable
from orchestrator.settings import read_settings
from orchestrator.telemetry.log_lines import JsonLogLines
from orchestrator.telemetry.run_log import RUNS_LOGGER, RunLog

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TASK = Task(agent="worker", prompt="the prompt", traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01")
TOKEN = "sixteen-letters-and-more"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def kept() -> Iterator[Kept]:
    env = {
        "HOME": "/nowhere",
        "ANTHROPIC_API_KEY": "sk-ant-a-key-of-mine",
        "ORCHESTRATOR_HTTP_TOKENS": f"main={TOKEN}",
    }
    handler = Kept()
    handler.setFormatter(JsonLogLines(str, read_settings(env, Path("/")).secret_values))
    log = logging.getLogger(RUNS_LOGGER)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


def test_a_line_is_about_the_run_that_is_at_work(kept: Kept) -> None:
    log = logging.getLogger(RUNS_LOGGER)
    with at_work_for("r1", TRACE_ID):
        log.warning("it is %s", "late\nvery")
    log.warning("no run")
    first, second = kept.lines
    assert first.pop("time") <= second.pop("time")
    about = {"level": "warning", "logger": RUNS_LOGGER}
    assert first == {**about, "message": "it is late\nvery", "run_id": "r1", "trace_id": TRACE_ID}
    assert second == {**about, "message": "no run"}


def test_secrets_of_the_settings_are_in_no_line(kept: Kept) -> None:
    log = logging.getLogger(RUNS_LOGGER)
    log.warning("said: sk-ant-a-key-of-mine and %s", TOKEN)
    log.error("no run", exc_info=EngineUnreachable(f"no engine; {TOKEN}"))
    said, failed = (line["message"] for line in kept.lines)
    assert "sk-ant" not in said
    assert TOKEN not in said
    assert failed.startswith("no run: no engine; ")
    assert TOKEN not in failed


def test_what_becomes_of_a_run_is_told_without_what_was_said(kept: Kept) -> None:
    run = RunLog().begun(TASK)
    run.ended(
        RunResult(
            run_id=TASK.run_id,
            agent="worker",
            caller="main",
            status="failed",
            reason="deadline",
            message="the message",
            partial_text="the text",
            duration_ms=5,
        )
    )
    run.refused("caller_refused")
    ended, refused = kept.lines
    assert {key: ended[key] for key in ended if key not in ("time", "logger", "level")} == {
        "message": "worker: ended",
        "event": "ended",
        "run_id": TASK.run_id,
        "trace_id": TRACE_ID,
        "agent": "worker",
        "caller": "main",
        "status": "failed",
        "reason": "deadline",
        "duration_ms": 5,
        "requests": 0,
        "cost_usd": 0.0,
    }
    assert (refused["event"], refused["code"]) == ("refused", "caller_refused")
    assert "the " not in json.dumps(kept.lines)


def test_a_run_is_found_by_the_request_that_began_it(kept: Kept) -> None:
    with called_within(None, "req-1"):
        run = RunLog().begun(TASK)
    run.refused("caller_refused")
    RunLog().begun(TASK).refused("caller_refused")
    assert [line.get("request_id") for line in kept.lines] == ["req-1", None]
