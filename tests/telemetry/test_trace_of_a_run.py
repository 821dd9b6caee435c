"""A trace of one run, from its caller's request to what the model and the tools were asked: a real
server, container and CLI, a scripted model, a real OTLP receiver. What each attribute is called is
taken from the conventions' own constants.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import mcp.types as t
import pytest
from mcp import Client
from mcp.client.stdio import stdio_client
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    mcp_attributes,
    network_attributes,
    server_attributes,
    service_attributes,
)

from orchestrator.app import look_at_server
from orchestrator.catalog import load_catalog, write_lock
from orchestrator.errors import CallerRefused
from orchestrator.state import open_store
from orchestrator.surfaces.cli.changes import record_lines
from tests.engine.servers.stage import MISCHIEF, SERVER
from tests.surfaces.mcp.mcp_stage import PATIENCE, Stage, call, on_stage
from tests.telemetry.collector import Collector, SpanSeen, collecting

pytestmark = pytest.mark.anyio

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLER_SPAN = "b7ad6b7169203331"

SECRET_QUESTION = "Which colour has the secret door?"

STEPS = (
    {"tool": "Bash", "input": {"command": "curl -sS https://example.com"}},
    {"tool": "mcp__it__echo", "input": {"text": "hello"}},
    {"tool": "mcp__parent__run_subagent", "input": {"agent_name": "helper", "prompt": "help"}},
    {"tool": "mcp__parent__ask_parent", "input": {"question": SECRET_QUESTION}},
    {"text": "it is {last_tool_result}"},
)

g: Any = gen_ai_attributes
Operation = gen_ai_attributes.GenAiOperationNameValues


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


async def add_server(stage: Stage) -> None:
    """A server of tools, pinned."""
    folder = stage.agents / "servers" / "it"
    folder.mkdir(parents=True)
    (folder / "server.py").write_text(MISCHIEF)
    (folder / "server.yaml").write_text(json.dumps({**SERVER, "secrets": []}))
    known = load_catalog(stage.agents).server("it")
    write_lock(known, await look_at_server(stage.settings, known.server))


async def test_one_trace_leads_from_the_callers_request_to_each_model_request_and_tool_call(
    stage: Stage,
) -> None:
    await add_server(stage)
    stage.add_agent(
        "worker",
        *STEPS,
        permissions={"allow": ["Bash"]},
        network={"allow": ["docs.python.org"]},
        mcp_servers=[{"use": "it", "allow": ["echo"]}],
        ask="parent",
        subagents=["helper"],
    )
    stage.add_agent("helper", {"text": "helped"}, allowed_callers=["worker"])
    stage.add_agent("helper-of-others", {"text": "hi"}, allowed_callers=["others"])
    with collecting() as collector:
        server = stage.server(
            *("--log-json", "--metrics", "127.0.0.1:0"),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_HEADERS="x-key=a-key-of-the-operators",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        )
        with stage.stderr.open("w") as stderr:
            async with Client(stdio_client(server, stderr)) as client:
                result = await asked_and_answered(client)
                await call(client, "run_subagent", agent_name="helper-of-others", prompt="x")
                url = stage.stderr.read_text().splitlines()[0].removeprefix("metrics at ")
                async with httpx.AsyncClient() as web:
                    told = await web.get(url)
    run_id = result["run_id"]
    assert (result["status"], result["trace_id"]) == ("completed", TRACE_ID)
    assert {headers["x-key"] for headers in collector.headers} == {"a-key-of-the-operators"}

    # Spans, attribute by attribute
    (call_span,) = [span for span in collector.spans if span.parent_id == CALLER_SPAN]
    assert (call_span.name, call_span.kind) == ("tools/call run_subagent", "SERVER")
    run = collector.named("invoke_agent worker")
    assert (run.parent_id, run.kind, run.failed) == (call_span.span_id, "INTERNAL", False)
    of_run = [span for span in collector.spans if span.parent_id == run.span_id]
    assert {span.trace_id for span in (call_span, run, *of_run)} == {TRACE_ID}
    assert all(run.start <= span.start <= span.end <= run.end for span in of_run)
    assert sorted(span.name for span in of_run) == [
        *["chat claude-sonnet-5-5"] * 5,
        *("execute_tool Bash", "execute_tool mcp__it__echo"),
        *("execute_tool mcp__parent__ask_parent", "execute_tool mcp__parent__run_subagent"),
        *("invoke_agent helper", "tools/call echo", "wait question"),
    ]
    check_run(run, result)
    for chat, stop in zip(_chats(of_run), ("tool_use",) * 4 + ("end_turn",), strict=True):
        check_chat(chat, result, stop)
    check_tools(collector)

    # What it handed to another agent, and what its caller was refused
    helper = collector.named("invoke_agent helper")
    assert helper.attributes["orchestrator.parent_run_id"] == run_id
    (chat,) = [span for span in collector.spans if span.parent_id == helper.span_id]
    assert (chat.name, chat.trace_id) == ("chat claude-sonnet-5-5", TRACE_ID)
    refused = collector.named("invoke_agent helper-of-others")
    assert (refused.failed, refused.attributes[error_attributes.ERROR_TYPE]) == (
        True,
        CallerRefused.code,
    )

    # And no word of what was said
    assert "secret door" not in repr(collector.spans)
    assert "green" not in repr(collector.spans)
    assert "a-key-of-the-operators" not in repr(collector.spans)

    # The same run, in numbers and in the log
    assert 'orchestrator_runs_total{agent="worker",reason="ok",status="completed"} 1.0' in told.text
    assert 'orchestrator_start_seconds_count{path="cold"} 2.0' in told.text, "and its helper"
    assert 'orchestrator_tool_calls_total{decision="allowed",server="it",tool="echo"} 1.0' in (
        told.text
    )
    lines = [json.loads(line) for line in stage.stderr.read_text().splitlines() if line[0] == "{"]
    about = [line for line in lines if line.get("run_id") == run_id]
    assert [line["event"] for line in about] == ["queued", "started", "asked", "ended"]
    assert {line["trace_id"] for line in about} == {TRACE_ID}
    with open_store(stage.settings) as store:
        record = await store.run(run_id)
    assert record is not None
    assert f"trace     {TRACE_ID}" in record_lines(record)


async def asked_and_answered(client: Client) -> dict[str, Any]:
    """Have the worker work; how that ended."""
    meta: Any = {"traceparent": f"00-{TRACE_ID}-{CALLER_SPAN}-01"}
    arguments = {"agent_name": "worker", "prompt": "go"}
    with anyio.fail_after(PATIENCE):
        asked = await client.call_tool("run_subagent", arguments, meta=meta)
    assert isinstance(asked, t.CallToolResult)
    assert asked.structured_content is not None
    (question,) = asked.structured_content["questions"]
    names = {"run_id": question["run_id"], "message_id": question["message_id"]}
    done = await call(client, "reply_subagent", **names, answer="green", wait=True)
    assert done.structured_content is not None
    assert done.structured_content["result"] == "it is green"
    return dict(done.structured_content)


def check_run(run: SpanSeen, result: dict[str, Any]) -> None:
    assert run.scope == "subagent-orchestrator"
    assert run.resource[service_attributes.SERVICE_NAME] == "subagent-orchestrator"
    assert run.resource["deployment.environment.name"] == "test"
    found = dict(run.attributes)
    assert 0 <= found.pop("orchestrator.queue_seconds") < PATIENCE  # type: ignore[operator]
    assert 0 < found.pop("orchestrator.start_seconds") < PATIENCE  # type: ignore[operator]
    assert found.pop(g.GEN_AI_AGENT_VERSION)
    assert found == {
        g.GEN_AI_OPERATION_NAME: Operation.INVOKE_AGENT.value,
        g.GEN_AI_PROVIDER_NAME: g.GenAiProviderNameValues.ANTHROPIC.value,
        g.GEN_AI_AGENT_NAME: "worker",
        g.GEN_AI_AGENT_DESCRIPTION: "What worker does",
        g.GEN_AI_CONVERSATION_ID: result["session_id"],
        g.GEN_AI_OUTPUT_TYPE: g.GenAiOutputTypeValues.TEXT.value,
        g.GEN_AI_REQUEST_MODEL: "sonnet",
        g.GEN_AI_RESPONSE_MODEL: "claude-sonnet-5-5",
        g.GEN_AI_USAGE_INPUT_TOKENS: 500,
        g.GEN_AI_USAGE_OUTPUT_TOKENS: 100,
        g.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: 0,
        g.GEN_AI_USAGE_CACHE_CREATION_INPUT_TOKENS: 0,
        "orchestrator.run_id": result["run_id"],
        "orchestrator.caller": "main",
        "orchestrator.status": "completed",
        "orchestrator.reason": "ok",
        "orchestrator.runner": "claude",
        "orchestrator.attempts": 1,
        "orchestrator.model_requests": 5,
        "orchestrator.cost_usd": 0.0,
        "orchestrator.estimated_usd": 0.0,
        "orchestrator.scripted": True,
        "orchestrator.start_path": "cold",
    }
    assert run.events == [
        (
            "orchestrator.egress_denied",
            {
                server_attributes.SERVER_ADDRESS: "example.com",
                server_attributes.SERVER_PORT: 443,
                http_attributes.HTTP_REQUEST_METHOD: "CONNECT",
                http_attributes.HTTP_RESPONSE_STATUS_CODE: 403,
                "orchestrator.decision": "denied",
            },
        )
    ]


def check_chat(chat: SpanSeen, result: dict[str, Any], stop: str) -> None:
    assert (chat.kind, chat.failed) == ("CLIENT", False)
    found = dict(chat.attributes)
    assert str(found.pop(g.GEN_AI_RESPONSE_ID)).startswith("msg_")
    assert 0 < found.pop(g.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK) < PATIENCE  # type: ignore[operator]
    assert found == {
        g.GEN_AI_OPERATION_NAME: Operation.CHAT.value,
        g.GEN_AI_PROVIDER_NAME: g.GenAiProviderNameValues.ANTHROPIC.value,
        g.GEN_AI_CONVERSATION_ID: result["session_id"],
        g.GEN_AI_REQUEST_MODEL: "claude-sonnet-5-5",
        g.GEN_AI_RESPONSE_MODEL: "claude-sonnet-5-5",
        g.GEN_AI_RESPONSE_FINISH_REASONS: [stop],
        g.GEN_AI_USAGE_INPUT_TOKENS: 100,
        g.GEN_AI_USAGE_OUTPUT_TOKENS: 20,
        g.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: 0,
        g.GEN_AI_USAGE_CACHE_CREATION_INPUT_TOKENS: 0,
        http_attributes.HTTP_RESPONSE_STATUS_CODE: 200,
        "orchestrator.cost_usd": 0.0004,
        "orchestrator.estimated_usd": 0.0,
    }


def check_tools(collector: Collector) -> None:
    bash = collector.named("execute_tool Bash")
    assert (bash.kind, bash.failed) == ("INTERNAL", True), "example.com is not allowed"
    found = dict(bash.attributes)
    assert str(found.pop(g.GEN_AI_TOOL_CALL_ID)).startswith("toolu_")
    assert found == {
        g.GEN_AI_OPERATION_NAME: Operation.EXECUTE_TOOL.value,
        g.GEN_AI_TOOL_NAME: "Bash",
        g.GEN_AI_TOOL_TYPE: "function",
        error_attributes.ERROR_TYPE: "tool_error",
    }
    assert collector.named("execute_tool mcp__it__echo").attributes[g.GEN_AI_TOOL_TYPE] == (
        "extension"
    )
    brokered = collector.named("tools/call echo")
    assert (brokered.kind, brokered.failed) == ("CLIENT", False)
    assert brokered.attributes == {
        mcp_attributes.MCP_METHOD_NAME: mcp_attributes.McpMethodNameValues.TOOLS_CALL.value,
        mcp_attributes.MCP_PROTOCOL_VERSION: "2025-11-25",
        network_attributes.NETWORK_TRANSPORT: network_attributes.NetworkTransportValues.PIPE.value,
        g.GEN_AI_OPERATION_NAME: Operation.EXECUTE_TOOL.value,
        g.GEN_AI_TOOL_NAME: "echo",
        "orchestrator.server": "it",
        "orchestrator.direct": False,
        "orchestrator.decision": "allowed",
        "orchestrator.rule": "allow: echo",
    }
    wait = collector.named("wait question")
    assert wait.attributes.pop("orchestrator.wait_id")
    assert wait.attributes == {"orchestrator.answered_by": "caller"}
    asks = collector.named("execute_tool mcp__parent__ask_parent")
    assert asks.start <= wait.start <= wait.end <= asks.end


def _chats(spans: list[SpanSeen]) -> list[SpanSeen]:
    return sorted((s for s in spans if s.name.startswith("chat ")), key=lambda s: s.start)
