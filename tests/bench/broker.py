"""Tools of a server in a container of its own, against the same server in the agent's container."""

from __future__ import annotations

import base64
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from orchestrator import plan
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from tests.bench.row import Row, Target
from tests.bench.stage import COMMAND_SECONDS, Stage, median_ms
from tests.engine.harness import Harness, bash
from tests.engine.servers.stage import LAST, MISCHIEF, known_server, mcp, pin, use, write_server

CLIENT = r"""
import http.client, json, subprocess, sys, time

count = int(sys.argv[1])

def call(number):
    params = {"name": "echo", "arguments": {"text": "hi"}}
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    return json.dumps(message).encode()

connection = http.client.HTTPConnection("127.0.0.1", 8084)
def brokered(number):
    began = time.perf_counter()
    connection.request("POST", "/it", call(number), {"content-type": "application/json"})
    answer = connection.getresponse().read()
    assert b'"hi' in answer or b'hi\\"' in answer, answer
    return round(time.perf_counter() - began, 6)

with open("/tmp/server.py", "w") as file:
    file.write(open("/tmp/it.py").read())
pipe = subprocess.PIPE
server = subprocess.Popen(["python3", "-I", "/tmp/server.py"], stdin=pipe, stdout=pipe)
def inside(number):
    began = time.perf_counter()
    server.stdin.write(call(number) + b"\n")
    server.stdin.flush()
    assert b"hi" in server.stdout.readline()
    return round(time.perf_counter() - began, 6)

times = {"first": [brokered(0)], "ours": [], "theirs": []}
for number in range(1, 21):
    brokered(number), inside(number)
for number in range(21, 21 + count):
    times["ours"].append(brokered(number))
    times["theirs"].append(inside(number))
server.kill()
print(json.dumps(times))
"""

FILES = {"it.py": MISCHIEF, "client.py": CLIENT}

HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}}
HELLO |= {"clientInfo": {"name": "bench", "version": "1"}}


async def broker(stage: Stage) -> tuple[Row, ...]:
    """Calls one after the other from the agent's container, by HTTP; and inside, by a pipe."""
    rounds = stage.times(8, 3)
    ours: list[float] = []
    theirs: list[float] = []
    first: list[float] = []
    plain: list[float] = []
    with _harness(stage) as harness:
        write_server(harness)
        await pin(harness)
        for round_number in range(1 + rounds):
            times = await _measured(harness, stage.times(200, 50))
            alone = await _docker_run(stage)
            if round_number:  # the first one has the SDK imported
                ours += times["ours"]
                theirs += times["theirs"]
                first += times["first"]
                plain.append(alone)
        memory = await _idle_memory(stage, harness)
        deferred, whole = await _request_bytes(harness)
    added = median_ms(ours) - median_ms(theirs)
    return (
        Row(
            name="a brokered tool call",
            against="the server in the agent's container, by a pipe",
            unit="ms",
            ours=median_ms(ours),
            theirs=median_ms(theirs),
        ),
        Row(
            name="what the broker adds to a call",
            unit="ms",
            ours=added,
            target=Target(of="ours", how="<=", value=3),
        ),
        Row(
            name="first brokered call: container, server, answer",
            against="docker run -i --rm of the server",
            unit="ms",
            ours=median_ms(first),
            theirs=median_ms(plain),
        ),
        Row(name="memory of an idle server's container", unit="MB", ours=memory),
        Row(
            name="each model request, with 100 tools of a server",
            against="without deferral",
            unit="kB",
            ours=deferred,
            theirs=whole,
        ),
    )


async def _measured(harness: Harness, count: int) -> dict[str, list[float]]:
    """A run whose agent measures: the broker and its record are as in earnest."""
    put = [
        f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > /tmp/{name}"
        for name, text in FILES.items()
    ]
    command = "; ".join([*put, f"python3 -I /tmp/client.py {count}"])
    result = await harness.run([bash(command), LAST], mcp_servers=[use("echo", max_calls=10_000)])
    times: dict[str, list[float]] = json.loads(str(_completed(result)))
    return times


def _completed(result: RunResult) -> object:
    assert result.status == "completed", result
    return result.result


async def _docker_run(stage: Stage) -> float:
    """Seconds from the command to the answer of a first call."""
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    call = {"name": "echo", "arguments": {"text": "hi"}}
    asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as name:
        (Path(name) / "server.py").write_text(MISCHIEF)
        argv = (stage.docker, "run", "--rm", "-i", "-v", f"{name}:/it:ro", stage.image)

        def run() -> float:
            Path(name).chmod(0o755)
            began = time.perf_counter()
            with subprocess.Popen(
                (*argv, "python3", "-I", "/it/server.py"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                for messages in ((hello,), (ready, asked)):
                    for message in messages:
                        process.stdin.write(json.dumps(message).encode() + b"\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                seconds = time.perf_counter() - began
                assert b"hi" in answer, answer
                process.stdin.close()
                process.wait(COMMAND_SECONDS)
            return seconds

        return await anyio.to_thread.run_sync(run)


async def _idle_memory(stage: Stage, harness: Harness) -> float:
    """What a server's container takes that was called and now waits."""
    write_server(harness, share="project", idle_seconds=600)
    await pin(harness)
    _completed(await harness.run([mcp("echo", text="hi"), LAST], mcp_servers=[use("echo")]))
    engine = stage.runtime.engine
    (server,) = await stage.runtime.list()
    stats = await engine.call(engine.api.stats, server.id, stream=False)
    await harness.servers.pool.aclose()
    return float(stats["memory_stats"]["usage"]) / 1e6


async def _request_bytes(harness: Harness) -> tuple[float, float]:
    """kB in the requests of a run that calls one of a hundred tools, with and without deferral."""
    write_server(harness, env={"MODE": "many"})
    await pin(harness)
    look: dict[str, object] = {
        "tool": "ToolSearch",
        "input": {"query": "select:mcp__it__stock_042"},
    }
    call = mcp("stock_042", item="lamp")
    sizes = []
    with pytest.MonkeyPatch.context() as patch:
        for steps in ([look, call, LAST], [call, LAST]):
            harness.requests.clear()
            task = Task(agent="worker", prompt="Do it.")
            _completed(await harness.run(steps, task, mcp_servers=[use("*")]))
            sizes.append(statistics.median(map(len, harness.requests)) / 1000)
            patch.setattr(plan, "DEFERRED_TOOLS", 1000)
            patch.setattr(plan, "DEFERRED_TOKENS", 1_000_000)
    assert known_server(harness).lock is not None
    return sizes[0], sizes[1]


@contextmanager
def _harness(stage: Stage) -> Iterator[Harness]:
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as name:
        harness = Harness(stage.runtime, stage.image, Path(name))
        yield harness
        harness.store.close()
