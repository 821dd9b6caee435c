"""100 runs side by side, each calling servers that others wrote. SOAK_RUNS, SOAK_AT_ONCE."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.gateway.model.upstream import Upstream, UpstreamRequest, UpstreamResponse
from orchestrator.store.audit import AuditQuery
from tests.engine.crowd import resident_bytes
from tests.engine.harness import Harness, Steps
from tests.engine.servers.real_servers import servers_image, write_real_server
from tests.engine.servers.stage import LAST, mcp, pin, use

RUNS = int(os.environ.get("SOAK_RUNS", "100"))
AT_ONCE = min(RUNS, int(os.environ.get("SOAK_AT_ONCE", "100")))
SOAK_SECONDS = 3600

RESERVE_BYTES = 3 * 1024**3
"""With less memory than this left, the trial is over: the machine has other work to do."""

pytestmark = pytest.mark.timeout(0)

ADA = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}

SHARES = {"everything": "run", "memory": "run", "sqlite": "project"}
"""Most have an instance for each run; one is shared by all."""

STEPS: Steps = [
    mcp("get-sum", "everything", a=2, b=40),
    mcp("create_entities", "memory", entities=[ADA]),
    mcp("write_query", "sqlite", query="INSERT INTO t VALUES (1)"),
    mcp("read_graph", "memory"),
    mcp("drop_table", "sqlite", query="DROP TABLE t"),
    LAST,
]

PATIENT = {"start_seconds": 600, "call_seconds": 600, "idle_seconds": SOAK_SECONDS}

MEETING = 4
"""The request to its model with which each run has all its servers, and waits for the others."""

USES = [
    use("get-sum", name="everything"),
    use("create_entities", "read_graph", name="memory"),
    use("write_query", "create_table", "read_query", name="sqlite"),
]


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path, max_runs=AT_ONCE)
    yield made
    made.store.close()


async def test_100_runs_are_alive_at_once_with_servers_of_their_own_and_one_that_they_share(
    harness: Harness, image: str, runtime: DockerRuntime
) -> None:
    servers = servers_image(image)
    for name, share in SHARES.items():
        write_real_server(harness, name, servers, share=share, **PATIENT)
        await pin(harness, name)
    make: Steps = [mcp("create_table", "sqlite", query="CREATE TABLE t (n INTEGER)"), LAST]
    count: Steps = [mcp("read_query", "sqlite", query="SELECT COUNT(*) AS c FROM t"), LAST]
    ends: list[RunResult] = []
    with anyio.fail_after(SOAK_SECONDS):
        assert "created" in str((await harness.run(make, mcp_servers=USES)).result)
        service = harness.service(STEPS, mcp_servers=USES, timeout_ms=SOAK_SECONDS * 1000)
        meeting = Meeting(service, AT_ONCE)
        resident, before, began = resident_bytes(), available_bytes(), anyio.current_time()
        least, most = before, 0

        async def one() -> None:
            ends.append(
                await service.run(Task(agent="worker", prompt="Go."), harness.events.append)
            )

        async def watch() -> None:
            nonlocal least
            while True:
                least = min(least, available_bytes())
                assert least > RESERVE_BYTES, (
                    f"{meeting.come} of {AT_ONCE} runs are alive, and there is no memory for more"
                )
                await anyio.sleep(0.5)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            async with anyio.create_task_group() as runs:
                for _ in range(RUNS):
                    runs.start_soon(one)
                await meeting.all_there.wait()
                most = len([each for each in await runtime.list() if each.status == "running"])
                met, memory = anyio.current_time() - began, before - available_bytes()
                load = os.getloadavg()[0]
                meeting.over.set()
            tasks.cancel_scope.cancel()
        seconds, after = anyio.current_time() - began, resident_bytes()
        total = await harness.run(count, mcp_servers=USES)
        await harness.servers.pool.aclose()
    print(
        f"\n{RUNS} runs, {AT_ONCE} of them alive at once after {met:.0f} s, all over after "
        f"{seconds:.0f} s; {most} containers then, with {memory / 1e9:.1f} GB of memory, "
        f"{memory / 1e6 / AT_ONCE:.0f} MB for each run; {least / 1e9:.1f} GB were left at the "
        f"least; {(after - resident) / 1e6:.1f} MB more in this process; load {load:.0f}"
    )
    assert Counter(end.status for end in ends) == {"completed": RUNS}, [
        end.message for end in ends if end.status != "completed"
    ]
    assert most == 3 * AT_ONCE + 1  # an agent and two servers each, and the one that they share
    told = [event.text for event in harness.events if event.kind == "tool_result"]
    graphs = [text for text in told if '"relations"' in text]
    assert len(graphs) == RUNS
    assert {len(re.findall("Ada", text)) for text in graphs} == {1}  # nobody sees another's
    assert sum("sum of 2 and 40 is 42" in text for text in told) == RUNS
    assert sum("No such tool available: mcp__sqlite__drop_table" in text for text in told) == RUNS
    assert f"'c': {RUNS}" in str(total.result)  # one instance has heard them all
    rows = await harness.store.audit.find(AuditQuery(act="tool"), limit=10 * RUNS)
    assert len([row for row in rows if row.allowed]) == 4 * RUNS + 2
    called = [event.data for event in harness.events if event.kind == "server_call"]
    failed = [data for data in called if data["is_error"]]
    print(f"{len(called)} calls of {len(SHARES)} servers, {len(failed)} failed")
    assert failed == []
    assert await runtime.list() == ()


class Meeting:
    """Holds each run at one request to its model, until so many of them are there."""

    def __init__(self, service: Service, size: int) -> None:
        self._size = size
        self.come = 0
        self.all_there, self.over = anyio.Event(), anyio.Event()
        gateway = service._staging._gateway
        self._script_of = gateway.script_of
        service._staging._gateway = replace(gateway, script_of=self._attended)

    async def attend(self) -> None:
        self.come += 1
        if self.come == self._size:
            self.all_there.set()
        await self.over.wait()

    def _attended(self, agent: AgentSpec, runner: str) -> Upstream:
        script = self._script_of(agent, runner)
        assert script is not None
        return _Attended(script, self)


class _Attended:
    def __init__(self, script: Upstream, meeting: Meeting) -> None:
        self._script, self._meeting = script, meeting
        self._requests = 0

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self._requests += 1
        if self._requests == MEETING:
            await self._meeting.attend()
        async with self._script.send(request) as response:
            yield response


def available_bytes() -> int:
    """What programs can still have of this machine's memory."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    return int(found[1]) * 1024
