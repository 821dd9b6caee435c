"""An agent with a hundred tools: the model is told their names, finds one, and calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator import plan
from orchestrator.containers.docker.runtime import DockerRuntime
from tests.engine.harness import Harness, Steps
from tests.engine.servers.stage import LAST, mcp, pin, use, write_server

RUN_SECONDS = 120


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


async def test_claude_finds_one_tool_of_a_hundred_and_its_requests_are_small(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_server(harness, env={"MODE": "many"})
    uses = [use("stock_*")]
    look: dict[str, object] = {
        "tool": "ToolSearch",
        "input": {"query": "item 42", "max_results": 3},
    }
    call = mcp("stock_042", item="lamp")
    steps: Steps = [look, call, LAST]
    with anyio.fail_after(RUN_SECONDS):
        await pin(harness)
        found = await harness.run(steps, mcp_servers=uses)
        deferred, harness.requests[:] = [*harness.requests], []
        monkeypatch.setattr(plan, "DEFERRED_TOOLS", 1000)
        monkeypatch.setattr(plan, "DEFERRED_TOKENS", 1_000_000)
        whole = await harness.run([call, LAST], mcp_servers=uses)
    for result in (found, whole):
        assert "stock_042: lamp is there" in str(result.result), result
    first, *later = [tools_in(request) for request in deferred]
    assert not [name for name in first if name.startswith("mcp__")]
    assert b"mcp__it__stock_042" in deferred[0]  # by its name alone
    for tools in later:
        loaded = [name for name in tools if name.startswith("mcp__")]
        assert "mcp__it__stock_042" in loaded
        assert len(loaded) <= 3
    assert [len(tools_in(request)) > 100 for request in harness.requests] == [True, True]
    assert max(map(len, deferred)) < 0.25 * min(map(len, harness.requests))


def tools_in(request: bytes) -> list[str]:
    """What the model is given the definitions of."""
    return [tool["name"] for tool in json.loads(request)["tools"]]
