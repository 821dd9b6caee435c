"""What a server logs, for programs that collect logs: a JSON object in each line."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from orchestrator.domain.window import AT_WORK
from orchestrator.redaction import Redactor
from orchestrator.settings import Settings
from orchestrator.telemetry.run_log import RUNS_LOGGER

Explain = Callable[[BaseException], str]
"""What an exception means, in a sentence."""


class JsonLogLines(logging.Formatter):
    """Each line with its time, its level, and the run and trace that it is about, if it is about
    one; without what is secret in the settings.
    """

    def __init__(self, explain: Explain, secrets: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._explain = explain
        self._redactor = Redactor(secrets)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        message = record.getMessage()
        exc = record.exc_info[1] if record.exc_info else None
        if exc is not None:
            message += f": {self._explain(exc)}"
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redactor.text(message),
        }
        run = AT_WORK.get()
        if run is not None:
            line |= {"run_id": run.run_id, "trace_id": run.trace_id}
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):  # of a run, by the run's own record
            line |= fields
        return json.dumps({key: value for key, value in line.items() if value != ""})


def log_as_json(settings: Settings, explain: Explain) -> None:
    """From now on, and for runs that go well too."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLogLines(explain, settings.secret_values))
    logging.getLogger(RUNS_LOGGER).setLevel(logging.INFO)
