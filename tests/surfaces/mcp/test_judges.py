"""What others say of our MCP surface: Claude Code, the MCP inspector, the conformance suite."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import anyio
import pytest

from orchestrator.gateway.model.scripted import Script
from tests.gateway.model.scripted_server import scripted_server
from tests.npm_packages import npm_commands
from tests.surfaces.mcp.claude_parent import claude_executable
from tests.surfaces.mcp.mcp_stage import (
    COMMAND,
    PATIENCE,
    TOOLS,
    Message,
    Stage,
    http_server,
    on_stage,
    unfenced,
)
from tests.surfaces.mcp.test_answers import WRONG

pytestmark = pytest.mark.anyio

PACKAGES = Path(__file__).with_name("judges")

NEEDS_NODE = 22
"""The conformance suite's; where node is older, the locked packages bring one."""

RUN_TOOL = "mcp__subagents__run_subagent"

PATIENT = ("--connect-timeout", str(1000 * PATIENCE))

IS_ERROR = 5
"""What the inspector exits with after an answer that is an error."""

OURS = ("ORCHESTRATOR_", "DOCKER_", "PYTHONPATH")
"""Variables that the inspector hands on to the server."""

ALWAYS = frozenset(
    ("tools-list", "resources-list", "prompts-list", "server-sse-multiple-streams")
) | {"dns-rebinding-protection"}

PASSED = {
    "2025-11-25": ALWAYS | {"server-initialize", "server-session-lifecycle", "ping"},
    "2026-07-28": ALWAYS | {"caching", "http-header-validation", "sep-2164-resource-not-found"},
}
"""Scenarios of the suite that need none of its own tools and prompts in the server. Completion and
log levels need none either, but are optional, and we offer neither."""

TASK_CHECKS = {
    "tasks-capability-negotiation": {
        "tasks-extension-advertised",
        "sep-2663-tasks-methods-non-declaring",
    },
    "tasks-dispatch-and-envelope": {
        "sep-2663-tasks-result-removed-method-not-found",
        "tasks-removed-tasks-list",
        "sep-2663-tasks-get-invalid-task-id-32602",
    },
}
"""Of its scenarios about tasks, the checks that call no tool: each scenario as a whole needs tools
of its own in the server."""


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        callers = ["main", "default"]  # on pipes, and over HTTP without a token
        text = "the inner agent heard: {last_user_text}"
        stage.add_agent("echo", {"text": text}, allowed_callers=callers)
        yield stage


# Claude Code


@pytest.mark.parametrize("version", ["2.1.197", "2.1.325"])
async def test_claude_calls_run_subagent_and_gets_the_answer(
    stage: Stage, tmp_path: Path, version: str
) -> None:
    claude = claude_executable(version)
    home = tmp_path / "home"
    home.mkdir()
    ours = {k: v for k, v in stage.env.items() if k.startswith(("ORCHESTRATOR_", "PYTHONPATH"))}
    entry = {
        "type": "stdio",
        "command": COMMAND,
        "args": ["serve"],
        "env": ours | {"HOME": stage.env["HOME"]},
        "alwaysLoad": True,
    }
    asks = {"tool": RUN_TOOL, "input": {"agent_name": "echo", "prompt": "good morning"}}
    script = Script.model_validate({"steps": [asks, {"text": "It said {last_tool_result}"}]})
    argv = [
        *(str(claude), "-p", "Ask the echo agent.", "--model", "claude-sonnet-4-5"),
        *("--output-format", "stream-json", "--verbose", "--setting-sources", ""),
        *("--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": {"subagents": entry}})),
        *("--permission-mode", "dontAsk", "--tools", "", "--allowedTools", RUN_TOOL),
    ]
    async with scripted_server(script) as model:
        env = {
            "PATH": stage.env["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "worthless",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_CONNECT_TIMEOUT_MS": "30000",
        }
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(
                argv, env=env, cwd=home, stdin=subprocess.DEVNULL, check=False
            )

    events = [json.loads(line) for line in done.stdout.splitlines()]
    init = next(e for e in events if e["type"] == "system" and e["subtype"] == "init")
    assert [(server["name"], server["status"]) for server in init["mcp_servers"]] == [
        ("subagents", "connected")
    ]
    ended = next(e for e in events if e["type"] == "result")
    assert not ended["is_error"], ended
    assert ended["result"].startswith("It said {")  # the envelope, as JSON
    assert '"result":"the inner agent heard: good morning"' in ended["result"]
    assert stage.runs() == [("echo", "completed", "ok")]


# The judges that come from npm


@pytest.fixture(scope="session")
def judges() -> Path:
    """The folder with the judges' commands."""
    return npm_commands(PACKAGES)


async def test_the_inspector_finds_nothing_wrong_with_the_tools(stage: Stage, judges: Path) -> None:
    listed = await _inspect(stage, judges, "--method", "tools/list", "--strict")
    names = [tool["name"] for tool in listed["tools"]]
    assert names == TOOLS


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_the_inspector_calls_run_subagent(stage: Stage, judges: Path, era: str) -> None:
    arguments = ["--tool-arg", "agent_name=echo", "--tool-arg", "prompt=hello"]
    call = ["--method", "tools/call", "--tool-name", "run_subagent", *arguments]
    result = await _inspect(stage, judges, "--protocol-era", era, *call)
    said, closing = result["content"]
    assert unfenced(said["text"]) == "the inner agent heard: hello"
    assert closing["text"].startswith("(completed, run_id r")
    assert result["structuredContent"]["status"] == "completed"


async def test_the_inspector_takes_answers_and_errors_of_tools(stage: Stage, judges: Path) -> None:
    """`make soak` has it call every tool."""
    errors = {tool: WRONG[tool] for tool in ("run_subagents", "reply_subagent")}
    await takes_answers_and_errors(stage, judges, errors, ("wait_for_tasks", "get_logs"))


async def takes_answers_and_errors(
    stage: Stage, judges: Path, errors: Mapping[str, Message], answers: Iterable[str]
) -> None:
    """It refuses what does not fit the declared schema, and then says nothing of our message."""
    async with http_server(stage) as (_, url):
        for tool, arguments in errors.items():
            call = _tool_call(tool, arguments)
            result = await _inspect(stage, judges, *call, url=url, code=IS_ERROR)
            assert result["isError"], tool
            (said,) = result["content"]
            assert result["structuredContent"]["error"]["message"] == said["text"], tool
        task = {"agent_name": "echo", "prompt": "hello"}
        call = _tool_call("run_subagents", {"tasks": [task]})
        several = await _inspect(stage, judges, *call, url=url)
        run_id = several["structuredContent"]["ids"]["1"]
        asked: dict[str, Message] = {
            "list_agents": {},
            "get_all_tasks": {},
            "wait_for_tasks": {"task_ids": [run_id]},
            "get_task_details": {"task_id": run_id},
            "get_logs": {"run_id": run_id},
            "cancel_task": {"task_id": run_id},
        }
        for tool in answers:
            answer = await _inspect(stage, judges, *_tool_call(tool, asked[tool]), url=url)
            assert answer["structuredContent"], tool


def _tool_call(tool: str, arguments: Message) -> list[str]:
    given = [
        part
        for name, value in arguments.items()
        for part in (
            "--tool-arg",
            f"{name}={value if isinstance(value, str) else json.dumps(value)}",
        )
    ]
    return ["--method", "tools/call", "--tool-name", tool, *given]


async def _inspect(
    stage: Stage, judges: Path, *asked: str, url: str = "", code: int = 0
) -> Message:
    """What the inspector says of the server at this URL, or of one that it starts on pipes."""
    ours = {k: v for k, v in stage.env.items() if k.startswith(OURS)}
    options = [part for key, value in ours.items() for part in ("-e", f"{key}={value}")]
    target = [url, "--transport", "http"] if url else [COMMAND, "serve", *options]
    argv = [str(judges / "mcp-inspector"), "--cli", *target, *PATIENT, *asked]
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process(argv, env=stage.env, check=False)
    assert done.returncode == code, (done.stdout + done.stderr).decode()
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


async def test_the_conformance_suite_is_content(stage: Stage, judges: Path, tmp_path: Path) -> None:
    """In both eras; and with the tasks, whose scenarios are run one by one."""
    suite = [_node(judges), str(judges / "conformance"), "server"]
    async with http_server(stage) as (_, url):

        async def judged(folder: str, *asked: str) -> str:
            to = ["--url", url, "-o", str(tmp_path / folder)]
            with anyio.fail_after(PATIENCE):
                done = await anyio.run_process([*suite, *to, *asked], check=False)
            return done.stdout.decode()

        for version, wanted in PASSED.items():
            said = await judged(version, "--suite", "all", "--spec-version", version)
            passed = set(re.findall(r"^✓ (\S+): [1-9]\d* passed, 0 failed", said, re.MULTILINE))
            assert passed >= wanted, said
        for scenario, checks in TASK_CHECKS.items():
            extension = ("--scenario", scenario, "--spec-version", "2026-07-28", "--force")
            said = await judged(scenario, *extension)
            (found,) = (tmp_path / scenario).rglob("checks.json")
            rows = json.loads(found.read_text())
            assert {row["id"] for row in rows if row["status"] == "SUCCESS"} >= checks, said


def _node(judges: Path) -> str:
    """A node that is new enough: the user's own, or the one among the packages."""
    found = shutil.which("node")
    if found is not None:
        said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        if int(said.strip().removeprefix("v").partition(".")[0] or 0) >= NEEDS_NODE:
            return found
    if not (judges / "node").exists():
        pytest.skip(f"the conformance suite needs node {NEEDS_NODE}, and there is none")
    return str(judges / "node")
