"""The four tools for agents outside, as a client sees them, in both eras of the protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp.types as t
import pytest
from mcp import Client

from orchestrator.domain.tool_lock import JsonMap
from orchestrator.engine.outside.outside_service import OutsideService
from orchestrator.errors import ServerUnavailable, ToolTimeout
from orchestrator.store.audit import AuditQuery
from orchestrator.store.runs import Store
from orchestrator.surfaces.mcp.gateway.server import build_gateway
from tests.outside.outside_stage import (
    DATABASE_TOOLS,
    LENIENT,
    SEED_RULES,
    Answers,
    OutsideStage,
    outside_service,
    tool,
)
from tests.surfaces.mcp.mcp_stage import ERAS, PATIENCE


@pytest.fixture
def stage(tmp_path: Path) -> OutsideStage:
    stage = OutsideStage(tmp_path)
    stage.add_seed_servers()
    stage.write_rules(SEED_RULES)
    return stage


@asynccontextmanager
async def gateway(
    stage: OutsideStage,
    answers: Answers | None = None,
    *,
    era: str = "auto",
    default_agent: str = "",
    debug: bool = False,
) -> AsyncIterator[tuple[Client, OutsideService]]:
    async with outside_service(stage, answers or Answers(), default_agent) as service:
        server = build_gateway(service, lambda: "main", debug=debug)
        async with Client(server, mode=era) as client:
            await client.list_tools()  # a client that knows the schemas checks the answers
            yield client, service


def halves(result: t.CallToolResult) -> Any:
    """What an answer says, which both of its halves say."""
    (block,) = result.content
    assert isinstance(block, t.TextContent)
    said = result.structured_content
    assert said is not None
    if result.is_error:
        error = said["error"]
        whole = f"{error['code']}: {error['message']}"
        assert block.text in (whole, error["message"] if error["code"] == "caller_error" else "")
        return error
    document = json.loads(block.text)
    assert document == said.get("result", said)
    return document


async def call(client: Client, name: str, /, **arguments: object) -> t.CallToolResult:
    with anyio.fail_after(PATIENCE):
        result = await client.call_tool(name, arguments)
    assert isinstance(result, t.CallToolResult)
    return result


async def code(client: Client, name: str, /, **arguments: object) -> str:
    result = await call(client, name, **arguments)
    assert result.is_error, result
    return str(halves(result)["code"])


@pytest.mark.parametrize("era", ERAS)
async def test_the_multi_agent_flow_of_the_document(stage: OutsideStage, era: str) -> None:
    answers = Answers({"content": [{"type": "text", "text": "it is open"}], "isError": False})
    async with gateway(stage, answers, era=era) as (client, _):
        names = [each.name for each in (await client.list_tools()).tools]
        assert names == ["list_servers", "get_server_tools", "execute_tool"]
        me = {"agent_id": "front-end"}
        assert halves(await call(client, "list_servers", **me)) == [
            {"name": "browser", "description": "What browser is for"},
            {"name": "ui-components", "description": "What ui-components is for"},
        ]
        found = halves(await call(client, "get_server_tools", server="browser", **me))
        tokens = found.pop("tokens_used")
        assert found == {
            "tools": [tool("open"), tool("close")],
            "server": "browser",
            "total_available": 2,
            "returned": 2,
        }
        assert tokens > 0
        found = halves(await call(client, "get_server_tools", server="ui-components", **me))
        assert [each["name"] for each in found["tools"]] == ["search_buttons"]
        done = await call(
            client, "execute_tool", server="browser", tool="open", args={"url": "x"}, **me
        )
    assert not done.is_error
    assert done.structured_content == {
        "content": [{"type": "text", "text": "it is open"}],
        "isError": False,
    }
    assert answers.asked == [("browser", "open", {"url": "x"}, "front-end", None)]


async def test_the_single_agent_flow_of_the_document(stage: OutsideStage) -> None:
    everything = {"allow": {"servers": ["*"], "tools": {"*": ["*"]}}}
    stage.write_rules({"agents": {"developer": everything}, "defaults": LENIENT})
    async with gateway(stage, default_agent="developer") as (client, _):
        listed = halves(await call(client, "list_servers"))
        assert [each["name"] for each in listed] == ["browser", "database", "ui-components"]
        found = halves(await call(client, "get_server_tools", server="database"))
        assert [each["name"] for each in found["tools"]] == list(DATABASE_TOOLS)
        done = await call(client, "execute_tool", server="database", tool="drop_table")
        assert not done.is_error


async def test_metadata_is_told_when_asked_for_and_no_key_in_an_address(
    stage: OutsideStage,
) -> None:
    url = "https://mcp.example.org/mcp?key=s3cret"
    stage.add_server("remote", tool("get"), command=None, url=url)
    async with gateway(stage) as (client, _):
        me = {"agent_id": "security-reviewer", "include_metadata": True}
        said = {each["name"]: each for each in halves(await call(client, "list_servers", **me))}
    assert said["browser"] == {
        "name": "browser",
        "description": "What browser is for",
        "transport": "stdio",
        "command": "serve",
    }
    assert (said["remote"]["transport"], said["remote"]["url"]) == (
        "http",
        "https://mcp.example.org/mcp",
    )


async def test_tools_are_shown_by_name_by_pattern_and_by_what_fits(stage: OutsideStage) -> None:
    stage.add_server("database", tool("query"), tool("list_all", "x" * 4000), tool("list_one"))
    async with gateway(stage) as (client, _):
        me = {"agent_id": "back-end", "server": "database"}

        async def shown(**more: object) -> list[str]:
            found = halves(await call(client, "get_server_tools", **me, **more))
            assert (found["total_available"], found["returned"]) == (3, len(found["tools"]))
            assert found["tokens_used"] <= more.get("max_schema_tokens", 2000)
            return [each["name"] for each in found["tools"]]

        assert await shown() == ["query", "list_all", "list_one"]
        assert await shown(names="list_one, query,gone") == ["query", "list_one"]
        assert await shown(pattern="list_?ne") == ["list_one"]
        assert await shown(names="", pattern=None, max_schema_tokens=100) == ["query", "list_one"]
        assert await shown(max_schema_tokens=1) == []


@pytest.mark.parametrize("era", ERAS)
async def test_every_refusal_has_its_code_and_the_rule(stage: OutsideStage, era: str) -> None:
    answers = Answers()
    stage.add_server("api-server")  # nobody has pinned it
    stage.add_server("broken", command=None)
    number: JsonMap = {"type": "integer"}
    stage.add_server("browser", tool("open", tab=number))
    asked: dict[str, Any]
    query: dict[str, Any] = {"server": "database", "tool": "query"}
    async with gateway(stage, answers, era=era) as (client, _):
        denied = halves(await call(client, "execute_tool", agent_id="front-end", **query))
        assert denied == {
            "code": "DENIED_BY_POLICY",
            "message": "agent 'front-end' may not use database/query: "
            "agents.front-end.deny.servers[0] ('database') denies the server 'database'; "
            "retrying will not help",
            "rule": "agents.front-end.deny.servers[0]",
        }
        drop = {"agent_id": "back-end", "server": "database", "tool": "drop_table"}
        denied = halves(await call(client, "execute_tool", **drop))
        assert denied["rule"] == "agents.back-end.deny.tools.database[0]"
        for name in ("database", "gone"):  # no name can be found out by trying
            asked = {"server": name, "agent_id": "default"}
            assert await code(client, "get_server_tools", **asked) == "DENIED_BY_POLICY"
        me: dict[str, Any] = {"agent_id": "security-reviewer"}
        for server in ("gone", "broken"):
            asked = {"server": server, **me}
            assert await code(client, "get_server_tools", **asked) == "SERVER_UNAVAILABLE"
        unread = halves(await call(client, "get_server_tools", server="api-server", **me))
        assert unread["code"] == "SERVER_UNAVAILABLE"
        assert "orchestrator servers pin api-server" in unread["message"]
        for name in ("gone", "no tool\n"):
            asked = {"server": "browser", "tool": name, **me}
            assert await code(client, "execute_tool", **asked) == "TOOL_NOT_FOUND"
        asked = {"server": "browser", "tool": "open", "args": {"tab": "one"}, **me}
        assert await code(client, "execute_tool", **asked) == "ARGUMENTS_INVALID"
        assert await code(client, "list_servers", agent_id="no id") == "INVALID_AGENT_ID"
        assert answers.asked == []
        answers.answer = ToolTimeout("database did not answer within 5 s")
        asked = {**query, "agent_id": "back-end", "timeout_ms": 5000}
        assert await code(client, "execute_tool", **asked) == "TIMEOUT"
        answers.answer = ServerUnavailable("the server database could not be started")
        assert await code(client, "execute_tool", **query, **me) == "SERVER_UNAVAILABLE"
        assert [asked[4] for asked in answers.asked] == [5.0, None]
        for wrong in ({"timeout_ms": 0}, {"timeout": 5}, {"args": [1]}):
            assert await code(client, "execute_tool", **query, **me, **wrong) == "caller_error"


async def test_who_it_is_cannot_be_said_by_nobody(stage: OutsideStage) -> None:
    agents = {"dev": {"allow": {"servers": ["*"]}}}
    stage.write_rules({"agents": agents})
    async with gateway(stage) as (client, _):
        assert await code(client, "list_servers") == "INVALID_AGENT_ID"
        assert await code(client, "list_servers", agent_id="dve") == "INVALID_AGENT_ID"
        stage.write_rules({"agents": agents, "defaults": LENIENT})
        assert await code(client, "list_servers") == "NO_FALLBACK_CONFIGURED"
        assert len(halves(await call(client, "list_servers", agent_id="dev"))) == 3
    async with gateway(stage, default_agent="gone") as (client, _):
        assert await code(client, "list_servers") == "FALLBACK_AGENT_NOT_IN_RULES"


async def test_status_is_there_in_debug_mode_and_tells_of_mistakes(stage: OutsideStage) -> None:
    async with gateway(stage, debug=True) as (client, _):
        names = [each.name for each in (await client.list_tools()).tools]
        assert names[-1] == "get_gateway_status"
        said = halves(await call(client, "get_gateway_status", agent_id="default"))
        rules = said["reload_status"]["gateway_rules"]
        assert rules["last_error"] is None
        assert rules["last_attempt"] == rules["last_success"]
        assert rules["last_warnings"] == [
            "agents.front-end.allow.tools.ui-components[1]: there is no tool 'validate_*'",
            "agents.back-end.allow.servers[1]: there is no server 'api-server'",
            "agents.back-end.allow.tools.api-server: there is no server 'api-server'",
        ]
        assert said["policy_state"] == {
            "total_agents": 4,
            "agent_ids": ["front-end", "back-end", "security-reviewer", "default"],
            "defaults": {"deny_on_missing_agent": False},
        }
        assert said["available_servers"] == ["browser", "database", "ui-components"]
        assert said["config_paths"] == {
            "mcp_config": str(stage.agents / "servers"),
            "gateway_rules": str(stage.rules),
        }
        assert said["message"] == "The gateway works."
        stage.write_rules('{"agents": {}, "agents": {}}')
        said = halves(await call(client, "get_gateway_status"))
        rules = said["reload_status"]["gateway_rules"]
        assert "agents: is given twice" in rules["last_error"]
        assert (rules["attempt_count"], rules["success_count"]) == (2, 1)
        assert said["policy_state"]["total_agents"] == 4


async def test_a_change_of_the_rules_counts_for_the_next_call_and_a_mistake_for_none(
    stage: OutsideStage,
) -> None:
    async with gateway(stage) as (client, _):
        asked = {"agent_id": "front-end", "server": "database", "tool": "query"}
        assert await code(client, "execute_tool", **asked) == "DENIED_BY_POLICY"
        stage.write_rules({"agents": {"front-end": {"allow": {"servers": ["database"]}}}})
        assert not (await call(client, "execute_tool", **asked)).is_error
        stage.write_rules({"agents": {"front-end": {"deny": {"servers": []}}}})
        assert not (await call(client, "execute_tool", **asked)).is_error
        assert stage.told[-1].startswith("the rules are wrong now, and those of before go on:\n")
        stage.write_rules({"agents": {"front-end": {"deny": {"servers": ["*"]}}}})
        assert await code(client, "execute_tool", **asked) == "DENIED_BY_POLICY"


# The record


async def rows(stage: OutsideStage) -> list[tuple[Any, ...]]:
    store = Store(stage.state / "runs.sqlite")
    try:
        found = await store.outside_calls.find(AuditQuery())
    finally:
        store.close()
    return [
        (entry.who, entry.subject, entry.allowed, call.rule, call.code, call.latency_ms is not None)
        for entry, call in found
    ]


async def test_every_operation_is_written_down_refusals_too(stage: OutsideStage) -> None:
    answers = Answers()
    async with gateway(stage, answers) as (client, _):
        await call(client, "list_servers", agent_id="front-end")
        asked = {"server": "database", "tool": "query"}
        await call(client, "execute_tool", **asked, agent_id="front-end")
        await call(client, "execute_tool", **asked, agent_id="back-end")
        await call(client, "execute_tool", **asked, agent_id="stranger")
        await call(client, "list_servers", agent_id="no id")
        answers.answer = ToolTimeout("too long")
        await call(client, "execute_tool", **asked, agent_id="back-end")
        await call(client, "get_server_tools", server="gone", agent_id="security-reviewer")
    denied, mine = "agents.front-end.deny.servers[0]", "agents.back-end.allow.tools.database[0]"
    everyone, all_of = "agents.default.deny.servers[0]", "agents.security-reviewer.allow.servers[0]"
    assert await rows(stage) == [
        ("main", "list_servers as front-end", True, "", "", True),
        (
            *("main", "execute_tool database/query as front-end", False),
            *(denied, "DENIED_BY_POLICY", True),
        ),
        ("main", "execute_tool database/query as back-end", True, mine, "", True),
        (
            *("main", "execute_tool database/query as default", False),
            *(everyone, "DENIED_BY_POLICY", True),
        ),
        ("main", "list_servers as no id (claimed)", False, "", "INVALID_AGENT_ID", True),
        ("main", "execute_tool database/query as back-end", True, mine, "TIMEOUT", True),
        (
            *("main", "get_server_tools gone as security-reviewer", True),
            *(all_of, "SERVER_UNAVAILABLE", True),
        ),
    ]


async def test_the_row_is_there_before_the_call_and_a_cancelled_call_says_so(
    stage: OutsideStage,
) -> None:
    answers = Answers()
    answers.hold = anyio.Event()
    asked = {"server": "database", "tool": "query", "agent_id": "back-end"}
    async with gateway(stage, answers) as (client, _):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "execute_tool", asked)
                await answers.reached.wait()
                rule = "agents.back-end.allow.tools.database[0]"
                subject = "execute_tool database/query as back-end"
                assert await rows(stage) == [("main", subject, True, rule, "", False)]
                tasks.cancel_scope.cancel()
            while (await rows(stage))[0][4] != "CANCELLED":
                await anyio.sleep(0.01)
        assert (await rows(stage))[0][5]


async def test_without_a_record_nothing_is_called(stage: OutsideStage) -> None:
    answers = Answers()
    async with gateway(stage, answers) as (client, service):
        service._store.close()
        asked = {"server": "database", "tool": "query", "agent_id": "back-end"}
        assert await code(client, "execute_tool", **asked) == "store_failed"
        assert answers.asked == []


async def test_progress_is_passed_on(stage: OutsideStage) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    asked = {"server": "database", "tool": "query", "agent_id": "back-end"}
    async with gateway(stage) as (client, _):
        await client.call_tool("execute_tool", asked, progress_callback=hear)
    assert heard == [(1, 2, "half")]
