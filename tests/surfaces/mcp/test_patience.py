"""A long task, and clients of four kinds: no call outlasts a client's patience, whichever it is."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import mcp.types as t
import pytest

from orchestrator.surfaces.mcp.client_window import window_seconds
from tests.surfaces.mcp.mcp_stage import ERAS, PATIENCE
from tests.surfaces.task_stage import Document, Serve, Server, bash

pytestmark = pytest.mark.anyio

PATIENCES = {"claude-code": 120, "claude-ai": 60, "codex-mcp-client": 60, "somebody": 30}
"""Seconds after which a client gives up, or at least stops to show what happens."""

TIMES_FASTER = 12
"""Ten minutes in less than one."""

MINUTE = 60 / TIMES_FASTER

Call = Callable[..., Awaitable[Document]]


@pytest.fixture
def _faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def window(name: str, override: float | None, version: str) -> float:
        return window_seconds(name, override, version) / TIMES_FASTER

    monkeypatch.setattr("orchestrator.surfaces.mcp.waiting.window_seconds", window)


@pytest.mark.usefixtures("_faster")
@pytest.mark.waits
async def test_a_task_of_ten_minutes_never_exceeds_the_patience_of_its_client(
    serve: Serve,
) -> None:
    """Whichever tool waits: for the first word, after an answer, after a decision, for several."""
    steps = (
        {"tool": "mcp__parent__ask_parent", "input": {"question": "?"}, "delay_seconds": MINUTE},
        bash("echo one") | {"delay_seconds": 3 * MINUTE},
        {"text": "{last_tool_result} at last", "delay_seconds": 6 * MINUTE},
    )
    fields = {"ask": "parent", "approval": {"Bash": "ask"}, "permissions": {"allow": ["Bash"]}}
    answers: dict[str, str] = {}
    calls: dict[str, int] = {}

    async def delegate(era: str, name: str) -> None:
        who = t.Implementation(name=name, version="0")
        async with serve(era, client_info=who) as server:
            agent = server.agent(f"long-{name}", *steps, **fields)
            call, made = _impatient(server, PATIENCES[name] / TIMES_FASTER)
            now = await call("run_subagent", agent_name=agent, prompt="x")
            run_id = now["run_id"]
            now = await _until_settled(call, now)
            question = now["questions"][0]["message_id"]
            reply = {"run_id": run_id, "message_id": question, "answer": "yes", "wait": True}
            now = await _until_settled(call, await call("reply_subagent", **reply))
            assert [each["tool"] for each in now["pending_tool_calls"]] == ["Bash"]
            decide = {"task_id": run_id, "approve_all": True, "wait": True}
            now = await _until_settled(call, await call("resume_subagent_task", **decide))
            answers[name], calls[name] = now["result"], len(made)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for number, name in enumerate(PATIENCES):
                group.start_soon(delegate, ERAS[number % 2], name)
    assert answers == dict.fromkeys(PATIENCES, "one at last")
    # Nobody waited in one call for what takes longer than its window, and nobody called in a loop.
    for name, count in calls.items():
        windows = 600 / window_seconds(name)
        assert math.floor(windows) <= count <= 2 * windows + 6, (name, count)


def _impatient(server: Server, patience: float) -> tuple[Call, list[str]]:
    """A client that gives up on a call like the one it stands for; and the calls it made."""
    made: list[str] = []

    async def call(tool: str, **arguments: object) -> Document:
        made.append(tool)
        asked = partial(server.client.call_tool, read_timeout_seconds=patience)
        result = await asked(tool, arguments)
        assert isinstance(result, t.CallToolResult)
        assert not result.is_error, result
        document: Document | None = result.structured_content
        assert document is not None
        return document

    return call, made


async def _until_settled(call: Call, now: Document) -> Document:
    """Do what `next` says for as long as that is to wait, and longer than the client can."""
    while now["status"] in ("pending", "running", "parent_replied"):
        assert now["next"].startswith("call wait_for_tasks"), now
        found = await call("wait_for_tasks", task_ids=[now["run_id"]], timeout=3600)
        (now,) = found["tasks"]
    return now
