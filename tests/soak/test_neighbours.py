"""A run beside an agent that floods us takes no longer than twice of what it takes beside one that
only spins, and this process does not grow: figures for each flood. SOAK_NEIGHBOURS is how many
neighbours run, one after the other, under each.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import MIB, MODEL_PORT, PARENT_PORT
from orchestrator.domain.task import Task
from tests.attacks.test_floods import ASK, FORGE
from tests.attacks.test_processes import CLI
from tests.engine.crowd import resident_bytes
from tests.engine.harness import Harness, bash

NEIGHBOURS = int(os.environ.get("SOAK_NEIGHBOURS", "5"))
FLOOD_SECONDS = 300
"""For a flood that nobody ends; each is ended when its neighbours are done."""

MOST_TIMES = 2.0
MOST_GROWTH_BYTES = 100 * MIB

pytestmark = pytest.mark.timeout(0)

SPIN = "while True: pass"

CONNECT = f"""
import json, os, socket, threading
TOKEN = os.environ.get("ANTHROPIC_API_KEY") or os.environ.get("ANTHROPIC_AUTH_TOKEN", "")
def post(port, path, body, *headers):
    s = socket.create_connection(("127.0.0.1", port))
    head = ["POST %s HTTP/1.1" % path, "host: x", "x-api-key: " + TOKEN, *headers]
    head += ["content-length: %d" % len(body), "", ""]
    s.sendall("\\r\\n".join(head).encode() + body)
    while s.recv(65536):
        break
    s.close()
def many(what):
    def forever():
        while True:
            try: what()
            except OSError: pass
    for _ in range(100): threading.Thread(target=forever).start()
MODEL, PARENT = {MODEL_PORT}, {PARENT_PORT}
"""

FLOODS = {
    "heads": CONNECT
    + 'many(lambda: post(MODEL, "/v1/messages", b"", *["x%d: y" % n for n in range(95)]))',
    "bodies": CONNECT
    + 'body = b\'{"messages":[\' + b"[]," * 95000 + b"[]]}"\n'
    + 'many(lambda: post(MODEL, "/v1/messages", body))',
    "messages": CONNECT
    + 'body = b\'{"jsonrpc":"2.0","id":1,"method":"ping","x":[\' + b"1," * 9000 + b"1]}"\n'
    + 'many(lambda: post(PARENT, "/mcp", body))',
    "questions": ASK + 'while True:\n s = ask("x" * 15000, "y" * 15000); s.recv(1000); s.close()',
    "relays": CONNECT + 'many(lambda: socket.create_connection(("127.0.0.1", MODEL)).close())',
    "events": FORGE + 'while True: forge(["%41" * 1000] * 4)',
    "short lines": FORGE + 'while True: out.write("{}\\n" * 10000)',
    "long lines": FORGE + 'while True: forge(["%41" * 250] * 9000)',
}


def step(code: str) -> dict[str, object]:
    """The model has the flood run, twice, with the CLI's /proc directory as its argument."""
    program = f"cat > /tmp/flood.py <<'END'\n{code}\nEND\n"
    start = f"timeout {FLOOD_SECONDS} python3 /tmp/flood.py $p &"
    return bash(f"{program}{CLI} {{ {start} {start} }}; done; wait")


@asynccontextmanager
async def flooding(harness: Harness, code: str) -> AsyncIterator[None]:
    """An agent does this while the block lasts."""
    service = harness.service(
        [step(code), {"text": "."}], ask="parent", resources={"output_mb": 4096}
    )
    began = anyio.Event()

    async def run() -> None:
        task = Task(agent="worker", prompt="x", timeout_seconds=FLOOD_SECONDS)
        await service.run(task, lambda event: began.set() if event.kind == "tool_call" else None)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(120):
            await began.wait()
        await anyio.sleep(1)
        yield
        tasks.cancel_scope.cancel()


async def neighbours(harness: Harness) -> float:
    """Seconds that a run takes, as a rule."""
    taken = []
    for _ in range(NEIGHBOURS):
        began = anyio.current_time()
        with anyio.fail_after(120):
            result = await harness.run([bash("echo fine"), {"text": "{last_tool_result}"}])
        assert (result.status, result.result) == ("completed", "fine"), result
        taken.append(anyio.current_time() - began)
    return statistics.median(taken)


async def most_resident(most: list[int]) -> None:
    while True:
        most.append(resident_bytes())
        await anyio.sleep(0.1)


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_neighbour_hardly_notices(
    runtime: DockerRuntime, image: str, tmp_path: Path, flood: str
) -> None:
    harness, other = (Harness(runtime, image, tmp_path / name) for name in ("work", "other"))
    try:
        await neighbours(other)  # what is imported and made once
        async with flooding(harness, SPIN):
            beside_spinning = await neighbours(other)
        before, resident = resident_bytes(), list[int]()
        async with flooding(harness, FLOODS[flood]), anyio.create_task_group() as watching:
            watching.start_soon(most_resident, resident)
            beside_flood = await neighbours(other)
            watching.cancel_scope.cancel()
    finally:
        harness.store.close()
        other.store.close()
    times, grown = beside_flood / beside_spinning, max(resident) - before
    print(
        f"{flood}: {beside_spinning:.2f} s beside a spinning agent, {beside_flood:.2f} s beside "
        f"the flood ({times:.1f} times); grown by {grown / MIB:.0f} MiB"
    )
    assert times <= MOST_TIMES
    assert grown < MOST_GROWTH_BYTES
