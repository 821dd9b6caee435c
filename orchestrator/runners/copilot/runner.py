"""The copilot CLI behind the contract of runners."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Launch
from orchestrator.runners import rule_names, rules
from orchestrator.runners.contract import Abilities, Dialogue, LaunchTerms, RuleDecision, WireFormat
from orchestrator.runners.copilot import launch as copilot_launch
from orchestrator.runners.copilot.calls import COPILOT_TOOLS
from orchestrator.runners.copilot.dialogue import CopilotDialogue
from orchestrator.runners.signs import PermissionAsked


class Copilot:
    """copilot, version 1.0.102."""

    name = "copilot"
    abilities = Abilities(tells_cut=False)
    wire_formats: tuple[WireFormat, ...] = ("anthropic", "responses", "chat")
    tools = COPILOT_TOOLS
    default_model = "claude-sonnet-5-5"

    def launch(self, agent: AgentSpec, terms: LaunchTerms) -> Launch:
        return copilot_launch.launch(agent, terms)

    def is_own_variable(self, name: str, own: Mapping[str, str]) -> bool:
        return copilot_launch.is_own_variable(name, own)

    def dialogue(self, launch: Launch) -> Dialogue:
        return CopilotDialogue(launch)

    def decide(self, agent: AgentSpec, asked: PermissionAsked) -> RuleDecision:
        return rules.decide(asked.tool, asked.input, rules.rules_of(agent))

    def is_offered(self, agent: AgentSpec, tool: str) -> bool:
        """Tools of MCP servers are called SERVER-TOOL here, which may be of more than one."""
        names = [
            f"{rule_names.server_prefix(server)}__{tool.removeprefix(f'{server}-')}"
            for server in rule_names.server_names(agent)
            if tool.startswith(f"{server}-")
        ]
        return not names or any(rule_names.is_offered(agent, name) for name in names)

    def history_file(self, conversation: str, cwd: str) -> str | None:  # noqa: ARG002 for every one
        return copilot_launch.history_file(conversation)
