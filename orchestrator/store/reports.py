"""What lists and reports show of runs besides their rows: names, steps, what was spent."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.domain import Frozen
from orchestrator.domain.result import Spent
from orchestrator.store.database import Database

STEP_KINDS = (
    *("queued", "starting", "started", "ready", "text", "tool_call", "tool_result", "api_retry"),
    *("schema_failed", "fallback", "nudged", "workspace", "asked", "answered", "approval_asked"),
    *("approval_decided", "delegated", "status", "steered"),
)
"""Kinds of events that tell what a run is at; model requests and the like come in between."""

SUMS = (*(name for name in Spent.model_fields), "requests")
"""What is added up of a run's requests."""


class RunStep(Frozen):
    """What a run was last seen doing."""

    kind: str
    text: str
    at: float


class Spending(Spent):
    """What one run spent on one model."""

    run_id: str
    agent: str
    project: str
    created: float
    model: str = ""
    requests: int = 0
    scripted: bool = False
    """A script played the model: nothing was paid."""


class Reports:
    """Reads what several runs have come to."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_ids(self, beginning: str, limit: int = 10) -> tuple[str, ...]:
        """The runs whose ids begin so, the newest first."""
        rows = await self._database.select(
            "SELECT run_id FROM runs WHERE run_id >= ? AND run_id < ? "
            "ORDER BY created DESC LIMIT ?",
            beginning,
            beginning + chr(0x10FFFF),
            limit,
        )
        return tuple(row["run_id"] for row in rows)

    async def steps(self, run_ids: Iterable[str]) -> dict[str, RunStep]:
        """What each of these runs is at, if anything is known of it."""
        kinds = json.dumps(STEP_KINDS)
        rows = await self._database.select(_LAST_STEPS, json.dumps(list(run_ids)), kinds)
        return {
            row["run_id"]: RunStep(kind=row["kind"], text=row["text"], at=row["at"]) for row in rows
        }

    async def spending(
        self,
        *,
        run_ids: Sequence[str] | None = None,
        projects: Sequence[str] | None = None,
        since: float = 0.0,
    ) -> tuple[Spending, ...]:
        """What runs have spent, each on each model: these, or those of some projects or of all that
        were begun since then. What a run had others do is theirs, so that nothing counts twice.
        """
        chosen = {
            "some": None if run_ids is None else json.dumps(list(run_ids)),
            "projects": None if projects is None else json.dumps(list(projects)),
            "since": since,
        }
        seen: dict[str, dict[str, sqlite3.Row]] = defaultdict(dict)
        for row in await self._database.select(_BY_MODEL, chosen):
            seen[row["run_id"]][row["model"]] = row
        rows = await self._database.select(_RUNS_CHOSEN, chosen)
        return tuple(each for row in rows for each in _shares(row, seen[row["run_id"]]))


def _shares(run: sqlite3.Row, seen: dict[str, sqlite3.Row]) -> Iterator[Spending]:
    """A run's sums, shared among the models that it used.

    Of a run that has ended, its result has the sums, and its events who has which part of them: of
    very many requests only some are events. Of one under way there are the events alone.
    """
    parts = {model: {name: row[name] for name in SUMS} for model, row in seen.items()}
    used = json.loads(run["used"]) if run["used"] else {}
    last = parts.setdefault(run["model"], dict.fromkeys(SUMS, 0))
    for name in SUMS:
        last[name] += max(0, used.get(name, 0) - sum(part[name] for part in parts.values()))
    scripted = bool(run["scripted"])
    free = {"cost_usd": 0.0, "estimated_usd": 0.0} if scripted else {}
    about = {name: run[name] for name in ("run_id", "agent", "project", "created")}
    for model, part in parts.items():
        if any(part.values()) or len(parts) == 1:
            yield Spending.model_validate(
                {**about, **part, **free, "model": model, "scripted": scripted}
            )


_LAST_STEPS = """
SELECT run_id, kind, text, at FROM events JOIN (
    SELECT run_id, max(seq) AS seq FROM events
    WHERE run_id IN (SELECT value FROM json_each(?)) AND kind IN (SELECT value FROM json_each(?))
    GROUP BY run_id) USING (run_id, seq)
"""
_OF_THESE_RUNS = """
(:some IS NULL OR runs.run_id IN (SELECT value FROM json_each(:some)))
AND (:projects IS NULL OR project IN (SELECT value FROM json_each(:projects)))
AND created >= :since
"""
_RUNS_CHOSEN = f"""
SELECT run_id, agent, project, created, json_extract(result, '$.usage') AS used,
    coalesce(json_extract(result, '$.model'), '') AS model,
    coalesce(json_extract(result, '$.scripted'), (
        SELECT max(json_extract(data, '$.scripted')) FROM events
        WHERE events.run_id = runs.run_id AND kind = 'queued'), 0) AS scripted
FROM runs WHERE {_OF_THESE_RUNS} ORDER BY created
"""  # noqa: S608 our own text
_SUMS_SEEN = ", ".join(
    f"coalesce(sum(json_extract(data, '$.{name}')), 0) AS {name}" for name in Spent.model_fields
)
_BY_MODEL = f"""
SELECT events.run_id AS run_id, coalesce(json_extract(data, '$.model'), '') AS model,
    count(*) AS requests, {_SUMS_SEEN}
FROM events JOIN runs ON events.run_id = runs.run_id
WHERE kind = 'model_request' AND {_OF_THESE_RUNS} GROUP BY 1, 2
"""  # noqa: S608 the same
