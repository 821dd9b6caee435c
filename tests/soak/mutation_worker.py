"""Runs pytest again and again, each time in a fork: what has been imported is not imported again.

It is PID 1 of a process namespace and kills everything else in it after each run. A line of JSON
comes in for each run (its arguments, environment, output file and seconds), and its exit code goes
out, or -1 if it took too long. Nothing of the tree is imported here: the fork shall see the mutant.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

import pytest

HEAVY = (
    *("anyio", "anyio._backends._asyncio", "anyio.pytest_plugin", "hypothesis.stateful"),
    *("docker", "h11", "httpx", "jsonschema", "mcp", "mcp.server", "mcp.client", "pydantic"),
    *("_hypothesis_pytestplugin", "pytest_timeout", "referencing", "requests", "rich.console"),
    *("starlette.applications", "typer", "typer.testing", "uvicorn", "yaml"),
)
"""What takes long to import, if it is there."""

LOOK_SECONDS = 0.02


def main() -> None:
    assert os.getpid() == 1  # else the rest of the machine would be killed below
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(_run(json.loads(line)), flush=True)


def _run(asked: dict[str, Any]) -> int:
    child = os.fork()
    if not child:
        _be_pytest(asked)
    until = time.monotonic() + asked["seconds"]
    code = None
    while code is None and time.monotonic() < until:
        pid, status = os.waitpid(-1, os.WNOHANG)  # orphans come here as well
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
        elif not pid:
            time.sleep(LOOK_SECONDS)
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return -1 if code is None else abs(code)


def _be_pytest(asked: dict[str, Any]) -> None:
    os.setsid()  # a mutant may kill its process group, to which whoever started us would belong
    output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    os.environ.update(asked["env"])
    sys.dont_write_bytecode = asked["mutant"]
    code = 3
    try:
        code = int(pytest.main(asked["argv"]))
    except BaseException:  # noqa: BLE001 to be told, then to end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
