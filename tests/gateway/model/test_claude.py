"""The real claude CLI in a container, on the scripted model, through the wire."""

from __future__ import annotations

import json

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import HOME, MODEL_PORT, MODEL_URL, ContainerSpec, Launch
from orchestrator.domain.result import Usage
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.scripted import Script
from orchestrator.gateway.model.upstream import HttpUpstream
from tests.gateway.model.model_stage import CREDENTIAL, KEY, bound_access
from tests.gateway.model.scripted_server import scripted_server

pytestmark = pytest.mark.anyio

RUN_SECONDS = 240
"""One start of the CLI and a few turns, on a machine that is busy with other things."""


def claude(access: ModelAccess, prompt: str) -> Launch:
    argv = ["claude", "-p", prompt, "--model", "claude-sonnet-4-5"]
    argv += ["--output-format", "stream-json", "--verbose", "--setting-sources", ""]
    argv += ["--strict-mcp-config", "--mcp-config", '{"mcpServers":{}}']
    argv += ["--permission-mode", "dontAsk", "--tools", "Bash", "--allowedTools", "Bash"]
    env = {
        "ANTHROPIC_BASE_URL": MODEL_URL,
        "ANTHROPIC_API_KEY": access.token,
        "HOME": HOME,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }
    return Launch(argv=tuple(argv), env=env, cwd=HOME)


async def result_of(
    runtime: DockerRuntime, spec: ContainerSpec, access: ModelAccess, prompt: str
) -> dict[str, object]:
    with anyio.fail_after(RUN_SECONDS):
        async with runtime.open(spec) as container:
            await container.wire.listen(MODEL_PORT, "model", access.service)
            done = await container.wire.run(claude(access, prompt))
    assert KEY.encode() not in done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    results = [event for event in events if event["type"] == "result"]
    assert len(results) == 1, done
    return dict(results[0])


async def test_claude_uses_a_tool_and_repeats_what_it_said(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    script = Script.model_validate(
        {
            "steps": [
                {"error": 529, "message": "busy", "retry_after": 0},
                {"tool": "Bash", "input": {"command": "echo sum $((20 + 22))"}},
                {"text": "it said: {last_tool_result}", "usage": {"output_tokens": 30}},
            ]
        }
    )
    seen: list[ModelRequestSeen] = []
    async with scripted_server(script) as server:
        upstream = HttpUpstream(server.url)
        access = bound_access(upstream, CREDENTIAL, on_request=seen.append)
        result = await result_of(runtime, spec, access, "add 20 and 22")
        await upstream.aclose()

    assert (result["subtype"], result["is_error"]) == ("success", False)
    assert result["result"] == "it said: sum 42"
    assert [(s.status, s.error_type) for s in seen] == [
        (529, "overloaded_error"),
        (200, ""),
        (200, ""),
    ]
    cost = 200 * 3e-6 + 50 * 15e-6
    counted = Usage(requests=3, input_tokens=200, output_tokens=50, cost_usd=cost)
    assert access.bill.usage.model_dump() == pytest.approx(counted.model_dump())
    assert result["total_cost_usd"] == pytest.approx(cost)
    asked = [r for r in server.requests if r.path == "/v1/messages"]
    assert {r.header("x-api-key") for r in asked} == {KEY}


async def test_claude_stops_at_once_when_the_budget_is_spent(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    script = Script.model_validate({"steps": [{"tool": "Bash", "input": {"command": "echo hi"}}]})
    async with scripted_server(script) as server:
        upstream = HttpUpstream(server.url)
        access = bound_access(upstream, budget_usd=0.0001)
        result = await result_of(runtime, spec, access, "go on for ever")
        await upstream.aclose()

    assert (result["is_error"], result["api_error_status"]) == (True, 400)
    assert "budget of $0.0001 is spent" in str(result["result"])
    assert access.bill.exhausted
    assert access.bill.usage.requests == 1
