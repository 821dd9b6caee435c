"""A pytest plugin for runs on mutants: which tests there are without an engine, and what they call.

Loaded with `-p` in a copy of the tree. With MUTATION_RECORD, all tests that need no engine are run,
and each that passes is written to that file with its seconds and the functions it has called. With
MUTATION_SELECT, the tests that are named in that file are run, in its order.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

ENGINE_FIXTURES = frozenset({"image", "runtime"})
"""Whatever needs an engine has one of these, or fails in the first run."""

ROOT = f"{Path.cwd()}/"

called: set[CodeType] = set()
passed: dict[str, dict[str, object]] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "MUTATION_SELECT" in os.environ:
        wanted = json.loads(Path(os.environ["MUTATION_SELECT"]).read_text())
        place = {name: number for number, name in enumerate(wanted)}
        left = [item for item in items if item.nodeid in place]
        left.sort(key=lambda item: place[item.nodeid])
    else:
        left = [item for item in items if ENGINE_FIXTURES.isdisjoint(_fixtures(item))]
    items[:] = left


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    if "MUTATION_RECORD" not in os.environ:
        return (yield)
    called.clear()
    threading.settrace(_tracer)
    sys.settrace(_tracer)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        if item.nodeid in passed:
            passed[item.nodeid]["called"] = [
                (code.co_filename.removeprefix(ROOT), code.co_firstlineno)
                for code in called.copy()  # a thread may still add to it
                if code.co_filename.startswith(f"{ROOT}orchestrator/")
            ]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.outcome == "passed":
        passed[report.nodeid] = {"seconds": report.duration, "called": []}
    elif report.outcome == "failed":
        passed.pop(report.nodeid, None)


def pytest_sessionfinish() -> None:
    if "MUTATION_RECORD" in os.environ:
        Path(os.environ["MUTATION_RECORD"]).write_text(json.dumps(passed))


def _tracer(frame: FrameType, _event: str, _arg: object) -> None:
    called.add(frame.f_code)


def _fixtures(item: pytest.Item) -> list[str]:
    names: list[str] = getattr(item, "fixturenames", [])
    return names
