"""100 runs at once, each calling servers that others wrote, 8 at a time. SOAK_RUNS."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.store.audit import AuditQuery
from tests.engine.crowd import resident_bytes
from tests.engine.harness import Harness, Steps
from tests.engine.servers.real_servers import servers_image, write_real_server
from tests.engine.servers.stage import LAST, mcp, pin, use

RUNS = int(os.environ.get("SOAK_RUNS", "100"))
SOAK_SECONDS = 3600

pytestmark = pytest.mark.timeout(0)

ADA = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}

SHARES = {"everything": "run", "memory": "run", "sqlite": "project"}
"""Most have an instance for each run; one is shared by all."""


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


async def test_100_runs_at_once_have_servers_of_their_own_and_one_that_they_share(
    harness: Harness, image: str, runtime: DockerRuntime
) -> None:
    servers = servers_image(image)
    for name, share in SHARES.items():
        write_real_server(harness, name, servers, share=share, start_seconds=300, call_seconds=300)
        await pin(harness, name)
    steps: Steps = [
        mcp("get-sum", "everything", a=2, b=40),
        mcp("create_entities", "memory", entities=[ADA]),
        mcp("read_graph", "memory"),
        mcp("write_query", "sqlite", query="INSERT INTO t VALUES (1)"),
        mcp("drop_table", "sqlite", query="DROP TABLE t"),
        LAST,
    ]
    uses = [
        use("get-sum", name="everything"),
        use("create_entities", "read_graph", name="memory"),
        use("write_query", "create_table", "read_query", name="sqlite"),
    ]
    make: Steps = [mcp("create_table", "sqlite", query="CREATE TABLE t (n INTEGER)"), LAST]
    count: Steps = [mcp("read_query", "sqlite", query="SELECT COUNT(*) AS c FROM t"), LAST]
    ends: list[RunResult] = []
    most = 0
    with anyio.fail_after(SOAK_SECONDS):
        assert "created" in str((await harness.run(make, mcp_servers=uses)).result)
        service = harness.service(steps, mcp_servers=uses)
        before, began = resident_bytes(), anyio.current_time()

        async def one() -> None:
            ends.append(
                await service.run(Task(agent="worker", prompt="Go."), harness.events.append)
            )

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(await runtime.list()))
                await anyio.sleep(1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            async with anyio.create_task_group() as runs:
                for _ in range(RUNS):
                    runs.start_soon(one)
            tasks.cancel_scope.cancel()
        seconds, after = anyio.current_time() - began, resident_bytes()
        total = await harness.run(count, mcp_servers=uses)
        await harness.servers.pool.aclose()
    assert Counter(end.status for end in ends) == {"completed": RUNS}, [
        end.message for end in ends if end.status != "completed"
    ]
    told = [event.text for event in harness.events if event.kind == "tool_result"]
    graphs = [text for text in told if '"relations"' in text]
    assert len(graphs) == RUNS
    assert {len(re.findall("Ada", text)) for text in graphs} == {1}  # nobody sees another's
    assert sum("sum of 2 and 40 is 42" in text for text in told) == RUNS
    assert sum("No such tool available: mcp__sqlite__drop_table" in text for text in told) == RUNS
    assert f"'c': {RUNS}" in str(total.result)  # one instance has heard them all
    rows = await harness.store.audit.find(AuditQuery(act="tool"), limit=10 * RUNS)
    assert len([row for row in rows if row.allowed]) == 4 * RUNS + 2
    assert await runtime.list() == ()
    print(
        f"\n{RUNS} runs, {4 * RUNS} calls of 3 servers in {seconds:.0f} s, {most} containers at "
        f"most, {(after - before) / 1e6:.1f} MB more memory here"
    )
