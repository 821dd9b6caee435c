"""What is launched, by value."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from orchestrator.domain.agent import AgentSpec, McpServer, Permissions
from orchestrator.domain.container import HOME, File, Launch
from orchestrator.errors import AgentInvalid
from orchestrator.runners.claude import launch as claude_launch
from orchestrator.runners.contract import LaunchTerms
from orchestrator.runners.launching import WITH_LOG
from tests.runners.claude.recordings import SESSION


def agent(
    *,
    prompt: str = "",
    model: str = "sonnet",
    allow: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
    ask: tuple[str, ...] = (),
) -> AgentSpec:
    return AgentSpec(
        name="a",
        description="An agent.",
        prompt=prompt,
        model=model,
        permissions=Permissions(allow=allow, deny=deny),
        approval=dict.fromkeys(ask, "ask"),
    )


def launched(
    spec: AgentSpec,
    *servers: McpServer,
    env: dict[str, str] | None = None,
    conversation: str = "",
    resume: bool = False,
    memory: str = "",
    parent_url: str | None = None,
) -> Launch:
    terms = LaunchTerms(
        base_url="http://127.0.0.1:8080",
        token="run-token",
        env=env or {},
        mcp_servers=servers,
        cwd="/workspace",
        conversation=conversation,
        resume=resume,
        memory=memory,
        parent_url=parent_url,
    )
    return claude_launch.launch(spec, terms)


ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/home/agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
    "ANTHROPIC_API_KEY": "run-token",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_EAGER_FLUSH": "1",
    "CLAUDE_CODE_MAX_RETRIES": "2",
    "MCP_CONNECTION_NONBLOCKING": "0",
    "MCP_CONNECT_TIMEOUT_MS": "15000",
    "ENABLE_TOOL_SEARCH": "false",
}
FIXED = (
    *("claude", "-p", "--verbose"),
    *("--input-format", "stream-json", "--output-format", "stream-json"),
    "--include-partial-messages",
    *("--setting-sources", "", "--strict-mcp-config"),
    *("--mcp-config", "/home/agent/.orchestrator/mcp.json", "--permission-mode", "dontAsk"),
)


def test_an_agent_that_says_nothing_may_do_nothing() -> None:
    assert launched(agent()) == Launch(
        argv=(*FIXED, "--tools=", "--model=sonnet", "--max-turns=50", "--no-session-persistence"),
        env=ENV,
        cwd="/workspace",
        files=(
            File(path="/home/agent/.orchestrator/mcp.json", content=b'{\n "mcpServers": {}\n}'),
        ),
    )


def test_an_agent_that_says_everything_gets_it() -> None:
    spec = agent(
        prompt="Be good.\n",
        allow=("Bash(curl:*)", "Bash(jq:*)", "Read"),
        deny=("Bash(curl -d:*)",),
    )
    server = McpServer(name="my.srv", command="srv", args=("--x", "${A}"), env={"K": "$v"})
    launch = launched(spec, server, env={"TZ": "UTC"}, conversation=SESSION, memory="Remember.")

    assert launch.argv == (
        *FIXED,
        "--tools=Bash,Read",
        "--allowedTools=Bash(curl:*),Bash(jq:*),Read,mcp__my_srv",
        "--disallowedTools=Bash(curl -d:*)",
        "--model=sonnet",
        "--max-turns=50",
        *("--system-prompt-file", "/home/agent/.orchestrator/prompt.md"),
        f"--session-id={SESSION}",
    )
    assert launch.env == {"TZ": "UTC", **ENV, "ORCHESTRATOR_DOLLAR": "$"}
    config, prompt = launch.files
    assert json.loads(config.content) == {
        "mcpServers": {
            "my.srv": {
                "type": "stdio",
                "command": "/bin/bash",
                "args": ["-c", WITH_LOG, f"{HOME}/.orchestrator/my.srv.stderr", *SERVER_ARGV],
                "env": {"K": "$v"},
            }
        }
    }
    assert prompt == File(
        path="/home/agent/.orchestrator/prompt.md", content=b"Be good.\n\nRemember.", mode=0o600
    )


SERVER_ARGV = ("srv", "--x", "${ORCHESTRATOR_DOLLAR}{A}")


def allowed(launch: Launch) -> str:
    return next((arg for arg in launch.argv if arg.startswith("--allowedTools=")), "")


def test_a_declared_server_is_allowed_unless_the_author_says_which_of_its_tools() -> None:
    server = McpServer(name="github", command="srv")
    one = "mcp__github__get_issue"
    assert allowed(launched(agent(), server)) == "--allowedTools=mcp__github"
    assert allowed(launched(agent(allow=(one,)), server)) == f"--allowedTools={one}"
    assert allowed(launched(agent(deny=("mcp__github",)), server)) == ""
    assert "--tools=" in launched(agent(allow=(one,)), server).argv


PARENT_URL = "http://127.0.0.1:8083/mcp"


def test_the_parent_is_a_server_that_is_always_there_and_is_waited_for() -> None:
    launch = launched(agent(), parent_url=PARENT_URL)
    entry = {"type": "http", "url": PARENT_URL, "timeout": 86_400_000, "alwaysLoad": True}
    assert json.loads(launch.files[0].content) == {"mcpServers": {"parent": entry}}
    assert allowed(launch) == "--allowedTools=mcp__parent"
    assert allowed(launched(agent(deny=("mcp__parent",)), parent_url=PARENT_URL)) == ""


def test_nobody_else_is_called_parent() -> None:
    server = McpServer(name="parent", command="srv")
    assert launched(agent(), server).files
    with pytest.raises(AgentInvalid, match="names an MCP server 'parent'"):
        launched(agent(), server, parent_url=PARENT_URL)


def approval_flags(launch: Launch) -> tuple[str, ...]:
    mode = launch.argv.index("--permission-mode")
    return launch.argv[mode : launch.argv.index("--model=sonnet")]


def test_calls_to_be_approved_are_asked_about_and_their_tools_are_there() -> None:
    spec = agent(allow=("Read", "Bash(git:*)"), ask=("Bash(git push:*)", "Write"))
    assert approval_flags(launched(spec)) == (
        *("--permission-mode", "default", "--permission-prompt-tool", "stdio"),
        '--settings={"permissions": {"ask": ["Bash(git push:*)", "Write"]}}',
        "--tools=Read,Bash,Write",
        "--allowedTools=Read,Bash(git:*)",
    )


def test_a_tool_asked_about_as_a_whole_and_denied_in_part_is_asked_about_call_by_call() -> None:
    spec = agent(
        allow=("Bash", "Read", "WebFetch"),
        deny=("Bash(rm:*)", "WebFetch(domain:example.org)"),
        ask=("Bash", "Read", "WebFetch"),
    )
    assert approval_flags(launched(spec)) == (
        *("--permission-mode", "default", "--permission-prompt-tool", "stdio"),
        (
            '--settings={"permissions": {"ask": ["Bash(**)", "WebFetch(domain:*)", "Read"]}, '
            '"skipWebFetchPreflight": true}'
        ),
        "--tools=Bash,Read,WebFetch",
        "--allowedTools=Read",
        "--disallowedTools=Bash(rm:*),WebFetch(domain:example.org)",
    )


def test_a_session_is_resumed_by_its_id() -> None:
    assert launched(agent(), conversation=SESSION, resume=True).argv[-1] == f"--resume={SESSION}"
    with pytest.raises(ValueError, match="is no session id"):
        launched(agent(), conversation="../../etc/passwd", resume=True)


HOSTILE = ("--bare", "--dangerously-skip-permissions", "-p", "a\n--bare", "'; rm -rf / #")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_an_author_becomes_a_flag(text: str) -> None:
    launch = launched(agent(prompt=text, model=text), memory=text)
    plain = launched(agent(prompt="x"))
    assert len(launch.argv) == len(plain.argv)
    assert [new for new, old in zip(launch.argv, plain.argv, strict=True) if new != old] == [
        f"--model={text}"
    ]
    assert launch.files[1].content == f"{text}\n\n{text}".encode()


RULES = (
    "--bare",
    "",
    "Bash(",
    "Bash(a)(b)",
    "Bash(a))",
    "Bash,Write",
    "Bash Write",
    "Bash()",
    "(x)",
)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_could_become_another_or_a_flag_is_none(rule: str) -> None:
    for field in ("allow", "deny"):
        with pytest.raises(ValidationError, match="must be the name of a tool"):
            Permissions.model_validate({field: [rule]})


@pytest.mark.parametrize(
    "spec",
    [
        agent(prompt="a\0b"),
        agent(model="a\0b"),
        agent(allow=("Bash(a\0b)",)),
        agent(deny=("Bash(a\0b)",)),
    ],
)
def test_a_nul_is_refused(spec: AgentSpec) -> None:
    with pytest.raises(AgentInvalid, match="NUL"):
        launched(spec)


def test_a_nul_in_a_variable_is_refused() -> None:
    with pytest.raises(AgentInvalid, match="the variable X holds a NUL"):
        launched(agent(), env={"X": "a\0b"})


def test_half_a_character_in_memory_is_refused() -> None:
    with pytest.raises(AgentInvalid, match="half a character"):
        launched(agent(), memory="\ud800")


@pytest.mark.parametrize("name", [*ENV, "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CONFIG_DIR"])
def test_the_orchestrators_own_variables_are_not_an_agents_to_set(name: str) -> None:
    with pytest.raises(AgentInvalid, match=f"sets {name} in its env"):
        launched(agent(), env={name: "x"})
