"""The codex CLI as a runner: what it can do, and what agent.md's rules say of its calls."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Launch
from orchestrator.runners.codex import launch as codex_launch
from orchestrator.runners.codex.calls import paths_of
from orchestrator.runners.codex.dialogue import CodexDialogue
from orchestrator.runners.codex.reading import may_read
from orchestrator.runners.contract import (
    Abilities,
    Dialogue,
    LaunchTerms,
    RuleDecision,
    ToolNames,
    WireFormat,
)
from orchestrator.runners.rule_names import is_named, is_offered, whole_tools
from orchestrator.runners.rules import decide, rules_of
from orchestrator.runners.signs import PermissionAsked

CODEX_VERSION = "0.166.0"

CODEX_TOOLS = ToolNames(
    version=f"codex {CODEX_VERSION}",
    built_in=frozenset(("Bash", "Edit", "Write", "Read", "Glob", "Grep")),
    former={"WebSearch": "remove it", "WebFetch": "write Bash(curl:*)"},
)

TYPED = "only an agent that may run every command may type into one; run another command"

_NEEDED = {
    "exec_command": ("Bash", "Read", "Glob", "Grep"),
    "write_stdin": ("Bash",),
    "apply_patch": ("Edit", "Write"),
    "view_image": ("Read",),
    "request_user_input": (),
}
"""Its tools by their names in a request -> rules, of which one has to be there."""


class Codex:
    """codex, version 0.166.0, through its app-server."""

    name = "codex"
    abilities = Abilities()
    wire_formats: tuple[WireFormat, ...] = ("responses",)
    tools = CODEX_TOOLS
    default_model = "gpt-5.5"

    def launch(self, agent: AgentSpec, terms: LaunchTerms) -> Launch:
        return codex_launch.launch(agent, terms)

    def is_own_variable(self, name: str, own: Mapping[str, str]) -> bool:
        return codex_launch.is_own_variable(name, own)

    def dialogue(self, launch: Launch) -> Dialogue:
        return CodexDialogue(launch)

    def decide(self, agent: AgentSpec, asked: PermissionAsked) -> RuleDecision:
        rules = rules_of(agent)
        if "into_a_running_command" in asked.input:
            # What is typed is no command of its own: only those who may run all may type all.
            whole = "Bash" in whole_tools(rules.allow) and not is_named("Bash", rules.deny)
            return RuleDecision(verdict="allow" if whole else "deny", why="" if whole else TYPED)
        if asked.tool == "Bash" and may_read(str(asked.input.get("command", "")), rules):
            return RuleDecision(verdict="allow", why="it only reads")
        inputs: list[Mapping[str, object]] = [asked.input]
        if asked.tool in ("Edit", "Write"):
            inputs = [{"file_path": path} for path in paths_of(asked.input)] or inputs
        said = [decide(asked.tool, given, rules) for given in inputs]
        return min(said, key=lambda each: ("deny", "ask", "allow").index(each.verdict))

    def is_offered(self, agent: AgentSpec, tool: str) -> bool:
        if tool in _NEEDED:
            rules = (*agent.permissions.allow, *agent.ask_rules)
            return any(is_named(needed, rules) for needed in _NEEDED[tool])
        return is_offered(agent, tool)

    def history_file(self, conversation: str, cwd: str) -> str | None:  # noqa: ARG002
        return None
