"""A process that holds containers in the middle of runs, and is there to be killed.

It prints "ready" when a run is under way in each of them. A line on its stdin makes it close all
its wires, and nothing else: it removes no container, whatever happens.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.app import open_runtime
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.errors import WireLost
from orchestrator.settings import read_settings
from tests.soak.mischief import KINDS, Mischief, mischief_spec


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.holder")
    parser.add_argument("--image", required=True)
    parser.add_argument("--label", required=True, help="KEY=VALUE, on every container")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--lease", type=float, default=60.0)
    parser.add_argument("--state-dir", type=Path, required=True)
    anyio.run(_hold_all, parser.parse_args())


async def _hold_all(options: argparse.Namespace) -> None:
    settings = read_settings().model_copy(update={"state_dir": options.state_dir})
    held: list[Container] = []
    async with open_runtime(settings, reap=False) as runtime, anyio.create_task_group() as tasks:
        for number in range(options.count):
            tasks.start_soon(_hold, runtime, options, KINDS[number % len(KINDS)], held)
        while len(held) < options.count:
            await anyio.sleep(0.01)
        print("ready", flush=True)
        if not await anyio.to_thread.run_sync(sys.stdin.readline):
            os._exit(1)  # whoever started us is gone
        async with anyio.create_task_group() as closing:
            for container in held:
                closing.start_soon(container.wire.close)
        print("closed", flush=True)
        await anyio.sleep_forever()


async def _hold(
    runtime: DockerRuntime, options: argparse.Namespace, kind: Mischief, held: list[Container]
) -> None:
    key, _, value = options.label.partition("=")
    spec = mischief_spec(options.image, options.lease)
    async with runtime.open(spec, labels={key: value, "soak.kind": kind.name}) as container:
        try:
            async with container.spawn(kind.launch) as process:
                held.append(container)
                while kind.read:
                    await process.stdout.read()
                await anyio.sleep_forever()
        except WireLost:
            await anyio.sleep_forever()


if __name__ == "__main__":
    main()
