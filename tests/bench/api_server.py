"""`python -m tests.bench.api_server FOLDER`: the API in a process of its own, to be measured."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.domain.events import Event
from tests.bench.api import EVENTS_PER_SECOND
from tests.surfaces.http.api_stage import ApiStage, on_api_stage


async def main(folder: Path) -> None:
    async with on_api_stage(folder) as stage:
        run_id = ""
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            asked = json.loads(line)
            said: dict[str, object] = {"url": stage.url}
            if asked["do"] == "begin":
                async with stage.client() as client:
                    run_id = await stage.begin(client)
            elif asked["do"] == "memory":
                said = {"kB": _memory()}
            else:
                said = {"sent": await _write(stage, run_id, asked["count"])}
            print(json.dumps(said), flush=True)


async def _write(stage: ApiStage, run_id: str, count: int) -> int:
    """So many events, as many a second as are wanted, each kept by itself."""
    began = time.monotonic()
    for number in range(count):
        await anyio.sleep(max(0.0, began + number / EVENTS_PER_SECOND - time.monotonic()))
        text = f"{number} " + "x" * 100
        event = Event(run_id=run_id, seq=1000 + number, at=time.time(), kind="text", text=text)
        await stage.store.add_events([event])
    return count


def _memory() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
