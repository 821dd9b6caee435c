"""An orchestrator process with sessions, there to be killed: one JSON line in, one out, per call.

`{"prompt": ..., "session": ...}` is answered with the result; before that come the kinds of the
run's events, one line each. It ends when its stdin does.
"""

from __future__ import annotations

import json
import sys

import anyio
import anyio.to_thread

from orchestrator.app import open_orchestrator
from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.errors import OrchestratorError
from orchestrator.settings import read_settings


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def tell(event: Event) -> None:
    say(event=event.kind)


async def main() -> None:
    async with open_orchestrator(read_settings()) as service:
        say(event="open")
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            try:
                result = await service.run(Task(agent="worker", **json.loads(line)), tell)
            except OrchestratorError as exc:
                say(error=str(exc))
            else:
                say(result=result.model_dump(mode="json"))


if __name__ == "__main__":
    anyio.run(main)
