"""`orchestrator audit`: every decision is there, whoever made it, and before it was acted on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client

from tests.surfaces.mcp.mcp_stage import COMMAND, Stage, call, http_server, on_stage


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


async def told(stage: Stage, *args: str) -> list[dict[str, Any]]:
    argv = [COMMAND, "audit", "--jsonl", *args]
    done = await anyio.run_process(argv, env=stage.env)
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_decisions_of_callers_agents_and_operators_are_told(stage: Stage) -> None:
    curl = "curl -s http://refused.example/; curl -s http://127.0.0.1:1/; true"
    stage.add_agent(
        "worker",
        {"tool": "Bash", "input": {"command": curl}},
        {"text": "done"},
        permissions={"allow": ["Bash"]},
        network={"allow": ["allowed.example"]},
    )
    stage.add_agent("closed", {"text": "never"}, allowed_callers=["planner"])
    async with Client(stage.server()) as client:
        done = await call(client, "run_subagent", agent_name="worker", prompt="go")
        refused = await call(client, "run_subagent", agent_name="closed", prompt="go")
        missing = await call(client, "get_task_details", task_id="r0000000000")
    assert refused.is_error
    assert missing.is_error
    assert done.structured_content is not None
    run_id = done.structured_content["run_id"]
    rows = await told(stage)
    said = [(row["who"], row["act"], row["subject"], row["allowed"]) for row in rows]
    assert said == [
        ("main", "run", "worker", True),
        ("agent worker", "host", "refused.example:80", False),
        ("main", "run", "closed", False),
    ]
    assert rows[0]["window"].startswith("mcp")
    assert [row["run_id"] for row in rows[:2]] == [run_id, run_id]
    assert rows[2]["why"].startswith("caller_refused: ")
    only = await told(stage, "--refused", "--who", "main")
    assert [row["subject"] for row in only] == ["closed"]


async def test_a_stranger_over_http_is_told(stage: Stage) -> None:
    tokens = {"ORCHESTRATOR_HTTP_TOKENS": "main=0123456789abcdef"}
    async with http_server(stage, **tokens) as (_, url), httpx.AsyncClient() as web:
        for headers in ({}, {"authorization": "Bearer 0123456789abcdeX"}):
            answer = await web.post(url, json={}, headers=headers)
            assert answer.status_code == 401
    rows = await told(stage, "--act", "token")
    assert [(row["who"], row["subject"], row["allowed"]) for row in rows] == [
        ("unknown", "127.0.0.1", False)
    ]
    assert rows[0]["why"].endswith(" (at least 2 times)")


async def test_calls_for_what_is_not_there_or_by_nobody_or_as_another_are_told(
    stage: Stage,
) -> None:
    stage.add_agent("worker", {"text": "done"})
    argv = [COMMAND, "run", "worker", "go"]
    nameless = {"ORCHESTRATOR_DENY_ON_MISSING_CALLER": "1"}
    typed = await anyio.run_process(argv, env=stage.env | nameless, check=False)
    assert b"names no caller" in typed.stderr
    task = {"agent_name": "worker", "prompt": "go"}
    async with Client(stage.server()) as client:
        refused = [
            await call(client, "run_subagent", **task, agent_id="planner"),
            await call(client, "run_subagent", agent_name="walker", prompt="go"),
            await call(client, "run_subagents", tasks=[task, {**task, "agent_name": "walker"}]),
        ]
    async with Client(stage.server(**nameless)) as client:
        refused.append(await call(client, "run_subagent", **task))
        refused.append(await call(client, "list_agents"))
    assert all(answer.is_error for answer in refused)
    assert stage.runs() == []
    rows = await told(stage)
    said = [(row["who"], row["act"], row["subject"], row["why"].split(":")[0]) for row in rows]
    assert said == [
        ("operator", "call", "run worker", "caller_missing"),
        ("main", "call", "run_subagent", "caller_refused"),
        ("main", "run", "walker", "agent_not_found"),
        ("main", "run", "walker", "agent_not_found"),
        ("unknown", "call", "run_subagent", "caller_missing"),
        ("unknown", "call", "list_agents", "caller_missing"),
    ]
    assert not any(row["allowed"] for row in rows)
