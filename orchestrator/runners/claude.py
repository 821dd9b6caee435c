"""The claude CLI: AgentSpec -> Launch, and bytes -> signs. For versions 2.1.197 and 2.1.325.

Every flag here answers a trap. Without `--setting-sources ''` a file in the workspace, or one that
the agent left in its HOME, runs hooks and redirects the API traffic; without `--strict-mcp-config`
a `.mcp.json` starts servers; an unset `--model` differs by version; a 401 is retried for three
minutes. What an author wrote is passed as `--flag=value`, one argument: the CLI also scans its
arguments for some flags by name, and a rule that reads "--bare" is not to be one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.domain.agent import AgentSpec, McpServer
from orchestrator.domain.container import HOME, File, Launch
from orchestrator.domain.result import Reason
from orchestrator.errors import AgentInvalid
from orchestrator.runners.signs import (
    ControlAnswered,
    ControlAsked,
    Noise,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Retrying,
    Said,
    Sign,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

PROMPT_FILE = f"{HOME}/.orchestrator/prompt.md"
MCP_FILE = f"{HOME}/.orchestrator/mcp.json"

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

LINE_BYTES = 8 * 1024 * 1024
"""The longest line that is read; of a longer one nothing is kept but the news that it came."""

NOISE_CHARS = 500
"""How much of a line that means nothing to us is repeated."""

INPUT_DEPTH = 32
"""How deep a tool's input may be nested before the rest of it is left out."""

MAX_COST_USD = 1e9
"""A cost beyond this is not one."""

OWN_PREFIXES = ("ANTHROPIC_", "CLAUDE_")
"""Variables of the CLI that decide where it talks to, as whom, and what it loads."""

PARENT = "parent"
"""What the MCP server is called through which the agent reaches whoever called it."""

ANSWER_MS = 24 * 3600 * 1000
"""How long the CLI waits for an answer from there. Whose patience ends sooner says so to us."""

WHAT_CHARS = 100
"""Of the name of something that the CLI wants of us."""

_DOLLAR = "ORCHESTRATOR_DOLLAR"
_SESSION = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def launch(
    agent: AgentSpec,
    *,
    base_url: str,
    token: str,
    env: Mapping[str, str],
    mcp_servers: Sequence[McpServer],
    cwd: str,
    session_id: str | None = None,
    resume: str | None = None,
    memory: str = "",
    surroundings: Mapping[str, str] | None = None,
    files: Sequence[File] = (),
    parent_url: str | None = None,
    ask_rules: Sequence[str] = (),
    approvals: bool = False,
) -> Launch:
    """The CLI, waiting for messages on stdin until it is closed.

    `env` and `mcp_servers` are the agent's, with their variables filled in. A variable of the
    orchestrator's own is refused rather than overwritten in silence, and so is text that no
    argument can carry. `memory` follows the agent's prompt; `surroundings` are variables, and
    `files` files, of the orchestrator's own. With neither `session_id` nor `resume`
    the conversation is not written down.

    At `parent_url` the agent finds tools to ask whoever called it. With `approvals` the CLI asks
    us about every call that no rule allows, and about those of `ask_rules` though another rule
    allows them; without, it refuses both by itself.
    """
    own = _environment(base_url, token) | dict(surroundings or {})
    if parent_url is not None and any(server.name == PARENT for server in mcp_servers):
        raise AgentInvalid(
            f"agent {agent.name!r} names an MCP server {PARENT!r}, as the orchestrator's own is "
            "called; give it another name"
        )
    config = _mcp_config(mcp_servers, parent_url)
    if _DOLLAR in config:
        own[_DOLLAR] = "$"
    placed = [*files, File(path=MCP_FILE, content=config.encode())]
    argv = [
        *("claude", "-p", "--verbose"),
        *("--input-format", "stream-json", "--output-format", "stream-json"),
        *("--setting-sources", "", "--strict-mcp-config", "--mcp-config", MCP_FILE),
        *_approval_flags(agent, ask_rules, approvals=approvals),
        *_permission_flags(
            agent, [s.name for s in mcp_servers] + [PARENT] * (parent_url is not None), ask_rules
        ),
        f"--model={agent.model}",
        f"--max-turns={agent.max_turns}",
    ]
    prompt = "\n\n".join(part for part in (agent.prompt.strip(), memory.strip()) if part)
    if prompt:
        argv += ["--system-prompt-file", PROMPT_FILE]
        placed.append(File(path=PROMPT_FILE, content=_utf8(agent, "the prompt", prompt)))
    argv += _session_flags(session_id, resume)
    for argument in argv:
        _utf8(agent, f"the argument {argument[:40]!r}", argument)
    return Launch(argv=tuple(argv), env=_merged(agent, env, own), cwd=cwd, files=tuple(placed))


def is_asked_about(
    asked: PermissionAsked, allow_rules: Sequence[str], ask_rules: Sequence[str]
) -> bool:
    """Whether the author said to ask about this call. The CLI also asks where no rule says so."""
    if asked.why == "rule" or asked.tool in _whole_tools(ask_rules):
        return True
    # Of a tool that is allowed as a whole, no part waits for want of a rule.
    return asked.why == "parts" and asked.tool in _whole_tools(allow_rules)


def history_file(session_id: str, cwd: str) -> str:
    """Where the CLI keeps a conversation that it can take up again."""
    return f"{HOME}/.claude/projects/{re.sub(r'[^A-Za-z0-9]', '-', cwd)}/{session_id}.jsonl"


def user_message(text: str) -> bytes:
    """The line that starts a turn, or that the agent reads between two steps of a running one.

    The CLI takes the last block of a message for something typed: "/clear" never reaches the model
    and "@/etc/passwd" attaches the file, whatever the permissions say. So the last block is empty,
    and dropped by the CLI itself.
    """
    blocks = [{"type": "text", "text": text}, {"type": "text", "text": ""}]
    return _line({"type": "user", "message": {"role": "user", "content": blocks}})


def interrupt(request_id: str) -> bytes:
    """The line that stops the turn; the CLI answers it and stays usable."""
    return _control(request_id, {"subtype": "interrupt"})


def allow(request_id: str, tool_input: Mapping[str, object]) -> bytes:
    """The line that lets a call run, with this input, whatever the one was that was asked for."""
    return _answer(request_id, {"behavior": "allow", "updatedInput": dict(tool_input)})


def deny(request_id: str, message: str) -> bytes:
    """The line that refuses a call; the agent reads the message as the call's result."""
    return _answer(request_id, {"behavior": "deny", "message": message})


def refuse(request_id: str, why: str) -> bytes:
    """The line for a request that we do not know, so that the CLI does not wait for more."""
    error = {"subtype": "error", "request_id": request_id, "error": why}
    return _line({"type": "control_response", "response": error})


def initialize(request_id: str) -> bytes:
    """The first line to write. It is answered when the CLI can take messages; no model is asked.

    It also keeps 2.1.325 from sending the system prompt of a conversation's first day for ever:
    without it, a resumed session never hears of a new prompt.
    """
    return _control(request_id, {"subtype": "initialize", "systemPromptSnapshot": False})


def rehearsal() -> bytes:
    """A message of nothing: the CLI does all that it does for its first one, and forgets it.

    Its first request takes 150 ms, the next ones 30: what it needs for them is there by then. What
    is asked for is refused by the gateway, and neither message nor refusal is in the next request
    (seen with 2.1.325; tests/engine/test_spares.py keeps an eye on it).
    """
    return _line({"type": "user", "message": {"role": "user", "content": []}})


class Parser:
    """What the CLI writes, in pieces of any size -> signs. Nothing that it writes is an error."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._skipping = False
        self._fault = ""
        """What the CLI called the error of this turn, when it spoke in the model's place."""

    def feed(self, data: bytes) -> list[Sign]:
        """The signs of the lines that these bytes complete."""
        signs: list[Sign] = []
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._take(piece, signs)
            self._end_line(signs)
        self._take(rest, signs)
        return signs

    def finish(self) -> list[Sign]:
        """The signs of a last line that was never ended."""
        signs: list[Sign] = []
        self._end_line(signs)
        return signs

    def _take(self, piece: bytes, signs: list[Sign]) -> None:
        if self._skipping:
            return
        if len(self._line) + len(piece) > LINE_BYTES:
            self._skipping = True
            self._line.clear()
            signs.append(Noise(text=f"a line of more than {LINE_BYTES} bytes"))
        else:
            self._line += piece

    def _end_line(self, signs: list[Sign]) -> None:
        text = self._line.decode(errors="replace").strip()
        self._line.clear()
        self._skipping = False
        if text:
            event = _event(text)
            signs += [_noise(text)] if event is None else self._signs(event, text)

    def _signs(self, event: Mapping[str, object], text: str) -> list[Sign]:
        match event.get("type"):
            case "assistant":
                self._fault = _str(event, "error") or self._fault
                return _from_assistant(event)
            case "user":
                return _from_user(event)
            case "system":
                return _from_system(event)
            case "result":
                return [self._turn_ended(event)]
            case "control_response":
                response = _dict(event, "response")
                ok = response.get("subtype") == "success"
                return [ControlAnswered(request_id=_str(response, "request_id"), ok=ok)]
            case "tool_progress":
                return []  # 2.1.325 says every 30 s that a tool still runs
            case "control_request" if _str(event, "request_id"):
                return [_from_request(_str(event, "request_id"), _dict(event, "request"))]
            case "control_cancel_request" if _str(event, "request_id"):
                return [PermissionWithdrawn(request_id=_str(event, "request_id"))]
            case _:
                return [_noise(text)]

    def _turn_ended(self, event: Mapping[str, object]) -> TurnEnded:
        reason = _reason(event, self._fault)
        self._fault = ""
        errors = [_clean(error) for error in _list(event, "errors") if isinstance(error, str)]
        text = _str(event, "result") or "\n".join(errors)
        if reason == "cancelled":
            text = "the turn was interrupted"  # and not "[ede_diagnostic] result_type=user ..."
        elif reason == "stream_cut" and event.get("is_error") is not True:
            text = "the model's answer broke off"  # what there was of it has been said before
        denials = tuple(
            ToolCalled(
                id=_str(denial, "tool_use_id"),
                tool=_str(denial, "tool_name"),
                input=_input(denial, "tool_input"),
            )
            for denial in _dicts(event, "permission_denials")
        )
        return TurnEnded(
            reason=reason,
            text=text,
            session_id=_str(event, "session_id"),
            num_turns=_int(event, "num_turns") or 0,
            cost_usd=_float(event, "total_cost_usd"),
            denials=denials,
            interrupted=reason == "cancelled",
        )


def _from_assistant(event: Mapping[str, object]) -> list[Sign]:
    message = _dict(event, "message")
    # The CLI's own words ("API Error: ...") and a sub-agent's are not what the agent said.
    its_own = message.get("model") != "<synthetic>" and event.get("parent_tool_use_id") is None
    signs: list[Sign] = []
    for block in _dicts(message, "content"):
        if block.get("type") == "tool_use":
            called = ToolCalled(
                id=_str(block, "id"), tool=_str(block, "name"), input=_input(block, "input")
            )
            signs.append(called)
        elif block.get("type") == "text" and its_own and _str(block, "text"):
            signs.append(Said(text=_str(block, "text")))
    return signs


def _from_user(event: Mapping[str, object]) -> list[Sign]:
    signs: list[Sign] = []
    for block in _dicts(_dict(event, "message"), "content"):
        if block.get("type") == "tool_result":
            parts = [_str(part, "text") for part in _dicts(block, "content")]
            returned = ToolReturned(
                id=_str(block, "tool_use_id"),
                text=_str(block, "content") or "\n".join(part for part in parts if part),
                is_error=block.get("is_error") is True,
            )
            signs.append(returned)
    return signs


def _from_system(event: Mapping[str, object]) -> list[Sign]:
    if event.get("subtype") == "init":
        tools = tuple(_clean(tool) for tool in _list(event, "tools") if isinstance(tool, str))
        servers = {_str(s, "name"): _str(s, "status") for s in _dicts(event, "mcp_servers")}
        ready = Ready(
            session_id=_str(event, "session_id"),
            model=_str(event, "model"),
            tools=tools,
            mcp_servers=servers,
        )
        return [ready]
    if event.get("subtype") == "api_retry":
        retrying = Retrying(
            attempt=_int(event, "attempt") or 0,
            status=_int(event, "error_status"),
            error=_str(event, "error"),
        )
        return [retrying]
    return []  # how its windows look, which tool it just denied: nothing that is not told elsewhere


def _from_request(request_id: str, request: Mapping[str, object]) -> Sign:
    if request.get("subtype") != "can_use_tool" or not isinstance(request.get("input"), dict):
        return ControlAsked(request_id=request_id, what=_str(request, "subtype")[:WHAT_CHARS])
    return PermissionAsked(
        request_id=request_id,
        call_id=_str(request, "tool_use_id"),
        tool=_str(request, "tool_name"),
        input=_input(request, "input"),
        why=_why_asked(request),
    )


def _why_asked(request: Mapping[str, object]) -> Literal["rule", "parts", "no_rule"]:
    # 2.1.325 names the rule even where it has another reason besides.
    if request.get("decision_reason_type") == "rule" or _dict(request, "matched_ask_rule"):
        return "rule"
    return "parts" if request.get("decision_reason_type") == "subcommandResults" else "no_rule"


def _reason(event: Mapping[str, object], fault: str) -> Reason:
    """Why a turn ended. `subtype` alone is no verdict: an API error is a "success" as well."""
    subtype, stop = _str(event, "subtype"), event.get("stop_reason")
    if subtype != "success":
        return _SUBTYPES.get(subtype, "cli_crashed")
    if stop == "refusal":
        return "refusal"
    if stop in _TOO_LONG or fault == "max_output_tokens":
        return "max_tokens"
    if event.get("is_error") is True:
        status = _int(event, "api_error_status")
        if status is not None:
            return _STATUSES.get(status, "api_error")
        if fault in _FAULTS:
            return _FAULTS[fault]
        return "stream_cut" if _CUT.search(_str(event, "result")) else "api_error"
    # 2.1.197 calls an answer that broke off a success: its stop reason is null, or that of the
    # message before, which asked for a tool.
    return "stream_cut" if stop in (None, "tool_use") else "ok"


_SUBTYPES: dict[str, Reason] = {
    "error_max_turns": "max_turns",
    "error_max_budget_usd": "budget",
    "error_during_execution": "cancelled",
}
_STATUSES: dict[int, Reason] = {
    401: "api_auth",
    403: "api_auth",
    429: "api_rate_limit",
    503: "api_overloaded",
    529: "api_overloaded",
}
_FAULTS: dict[str, Reason] = {
    "authentication_failed": "api_auth",
    "rate_limit": "api_rate_limit",
}
_TOO_LONG = ("max_tokens", "model_context_window_exceeded")
_CUT = re.compile(
    "mid-response|Connection to the API was lost|Stream ended|stream_truncated"
    "|malformed response|Failed to parse JSON|JSON Parse error"
)
"""What an answer that broke off is called, and the one asked for in its place that did as well."""


def _environment(base_url: str, token: str) -> dict[str, str]:
    return {
        "PATH": PATH,
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",  # noqa: S108 inside the container
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": token,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",  # else HOME/.claude/projects/…/MEMORY.md is read
        "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
        "MCP_CONNECTION_NONBLOCKING": "0",
        "MCP_CONNECT_TIMEOUT_MS": "15000",
        "ENABLE_TOOL_SEARCH": "false",
    }


def _merged(agent: AgentSpec, env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if name in own or name.startswith(OWN_PREFIXES):
            raise AgentInvalid(
                f"agent {agent.name!r} sets {name} in its env, which the orchestrator sets itself; "
                "remove it"
            )
        _utf8(agent, f"the variable {name}", name + value)
    return {**env, **own}


def _mcp_config(servers: Sequence[McpServer], parent_url: str | None) -> str:
    entries: dict[str, dict[str, object]] = {
        server.name: {
            "type": "stdio",
            "command": _literal(server.command),
            "args": [_literal(arg) for arg in server.args],
            "env": {name: _literal(value) for name, value in server.env.items()},
        }
        for server in servers
    }
    if parent_url is not None:
        entries[PARENT] = {
            "type": "http",
            "url": parent_url,
            "timeout": ANSWER_MS,
            "alwaysLoad": True,
        }
    return json.dumps({"mcpServers": entries}, indent=1)


def _literal(text: str) -> str:
    # The CLI fills in ${VAR} as well, once more than the author asked for.
    return text.replace("${", f"${{{_DOLLAR}}}{{")


def _approval_flags(agent: AgentSpec, ask_rules: Sequence[str], *, approvals: bool) -> list[str]:
    flags = ["--permission-mode", "dontAsk"]
    if approvals:
        flags = ["--permission-mode", "default", "--permission-prompt-tool", "stdio"]
    if ask_rules:
        parted = _parted_tools(agent, ask_rules)
        ask = [_EVERY_CALL[tool] for tool in parted]
        ask += [rule for rule in ask_rules if _tool(rule) not in parted]
        flags.append("--settings=" + json.dumps({"permissions": {"ask": ask}}))
    return flags


_EVERY_CALL = {"Bash": "Bash(**)", "WebFetch": "WebFetch(domain:*)"}
"""Rules that ask about every call of a tool, and still let one go first that denies some of them:
with "Bash" or "Bash(*)", 2.1.197 asks about what is denied, and runs it when told to."""


def _parted_tools(agent: AgentSpec, ask_rules: Sequence[str]) -> list[str]:
    """Tools that are asked about as a whole, and denied in part."""
    denied = {_tool(rule) for rule in agent.permissions.deny}
    whole = _whole_tools(ask_rules)
    return [tool for tool in _EVERY_CALL if tool in denied and tool in whole]


def _whole_tools(rules: Sequence[str]) -> frozenset[str]:
    return frozenset(_tool(rule) for rule in rules if "(" not in rule or rule.endswith("(*)"))


def _tool(rule: str) -> str:
    return rule.partition("(")[0]


def _permission_flags(
    agent: AgentSpec, servers: Sequence[str], ask_rules: Sequence[str]
) -> list[str]:
    # As arguments and not in a settings file, which the agent could rewrite.
    deny = agent.permissions.deny
    tools = [_tool(rule) for rule in agent.permissions.allow]
    # Else 2.1.197 takes "(touch x)" for something else than every call, and runs it.
    parted = _parted_tools(agent, ask_rules)
    allow = [rule for rule in agent.permissions.allow if _tool(rule) not in parted]
    for server in servers:
        rule = "mcp__" + re.sub(r"[^A-Za-z0-9_-]", "_", server)  # as the CLI spells it
        named = any(tool == rule or tool.startswith(rule + "__") for tool in tools)
        if not named and rule not in deny:
            allow.append(rule)
    asked = (_tool(rule) for rule in ask_rules)
    seen = dict.fromkeys(tool for tool in (*tools, *asked) if not tool.startswith("mcp__"))
    flags = [f"--tools={','.join(seen)}"]
    if allow:
        flags.append(f"--allowedTools={','.join(allow)}")
    if deny:
        flags.append(f"--disallowedTools={','.join(deny)}")
    return flags


def _session_flags(session_id: str | None, resume: str | None) -> list[str]:
    for given in (session_id, resume):
        if given is not None and not _SESSION.fullmatch(given):
            raise ValueError(f"{given!r} is no session id; it takes a UUID")
    if resume is not None:
        return [f"--resume={resume}"]
    if session_id is not None:
        return [f"--session-id={session_id}"]
    return ["--no-session-persistence"]


def _utf8(agent: AgentSpec, what: str, text: str) -> bytes:
    if "\0" in text:
        raise AgentInvalid(f"agent {agent.name!r}: {what} holds a NUL character; remove it")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise AgentInvalid(
            f"agent {agent.name!r}: {what} holds half a character (a lone surrogate); remove it"
        ) from None


def _control(request_id: str, request: dict[str, object]) -> bytes:
    return _line({"type": "control_request", "request_id": request_id, "request": request})


def _answer(request_id: str, response: dict[str, object]) -> bytes:
    success = {"subtype": "success", "request_id": request_id, "response": response}
    return _line({"type": "control_response", "response": success})


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode() + b"\n"  # all ASCII: no character of it can end the line


def _event(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _noise(text: str) -> Noise:
    return Noise(text=_clean(text[:NOISE_CHARS]))


def _clean(text: str) -> str:
    # "\\ud800" is half a character: JSON can carry it, UTF-8 cannot.
    return text.encode(errors="replace").decode()


def _str(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    return _clean(value) if isinstance(value, str) else ""


def _int(values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(values: Mapping[str, object], key: str) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0.0
    return float(value) if 0 <= value < MAX_COST_USD else 0.0


def _list(values: Mapping[str, object], key: str) -> list[object]:
    value = values.get(key)
    return value if isinstance(value, list) else []


def _dict(values: Mapping[str, object], key: str) -> dict[str, object]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def _dicts(values: Mapping[str, object], key: str) -> list[dict[str, object]]:
    return [value for value in _list(values, key) if isinstance(value, dict)]


def _input(values: Mapping[str, object], key: str) -> dict[str, object]:
    return {_clean(k): _bounded(v, INPUT_DEPTH) for k, v in _dict(values, key).items()}


def _bounded(value: object, depth: int) -> object:
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, (dict, list)) and not depth:
        return "…"
    if isinstance(value, dict):
        return {_clean(key): _bounded(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item, depth - 1) for item in value]
    return value
