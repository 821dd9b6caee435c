"""`python -m tests.bench`: this project against the plain tools that one would use instead.

Ours and theirs take turns in one run, so that ratios hold on a busy machine where milliseconds
do not. Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from orchestrator.containers.docker.engine import Engine
from tests.bench.api import api
from tests.bench.broker import broker
from tests.bench.connect import connect
from tests.bench.crowd import crowd, memory
from tests.bench.egress import egress
from tests.bench.latency import latency, rate
from tests.bench.page import page
from tests.bench.queued import queued
from tests.bench.report import (
    ALL,
    as_json,
    four_numbers,
    markdown,
    print_table,
    tables,
    write_page,
)
from tests.bench.row import Row
from tests.bench.runners import runners
from tests.bench.runs import runs, server_start
from tests.bench.sessions import sessions
from tests.bench.spares import idle_spare, spare_crowd, spares
from tests.bench.stage import Stage, open_stage
from tests.bench.tasks import tasks
from tests.bench.throughput import throughput
from tests.bench.workspace import workspace

Case = Callable[[Stage], Awaitable[tuple[Row, ...]]]

CASES: dict[str, Case] = {
    "latency": latency,
    "rate": rate,
    "throughput": throughput,
    "crowd": crowd,
    "memory": memory,
    "runs": runs,
    "start": server_start,
    "spares": spares,
    "sessions": sessions,
    "idle": idle_spare,
    "spare-crowd": spare_crowd,
    "workspace": workspace,
    "egress": egress,
    "broker": broker,
    "tasks": tasks,
    "queued": queued,
    "runners": runners,
    "api": api,
    "page": page,
    "connect": connect,
}

PAGE = Path(__file__).parent / "README.md"
README = Path(__file__).parents[2] / "README.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--write", action="store_true", help="put whole tables into README.md here")
    options = parser.parse_args()
    unknown = sorted(set(options.cases) - set(CASES))
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; known: {', '.join(CASES)}")
    measured, caption = anyio.run(_measure, options.cases or list(CASES), options.quick)
    rows = [row for some in measured.values() for row in some]
    if options.json:
        print(as_json(rows, caption))
    else:
        print_table(rows, caption)
    if options.write:
        written = {
            mark: markdown(some, caption) for mark, some in tables(measured, list(CASES)).items()
        }
        for mark, table in written.items():
            write_page(PAGE, table, mark)
        if ALL in written:
            write_page(README, four_numbers(written[ALL]))
    return 1 if any(row.met is False for row in rows) else 0


async def _measure(names: list[str], quick: bool) -> tuple[dict[str, tuple[Row, ...]], str]:
    measured: dict[str, tuple[Row, ...]] = {}
    async with open_stage(quick=quick) as stage:
        for name in names:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            measured[name] = await CASES[name](stage)
        return measured, _caption(stage.runtime.engine)


def _caption(engine: Engine) -> str:
    version = engine.api.version()["Version"]
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"Medians of one run, {today}: Docker {version}, {os.cpu_count()} cores, "
        f"Linux {platform.release()}, Python {platform.python_version()}."
    )


if __name__ == "__main__":
    sys.exit(main())
