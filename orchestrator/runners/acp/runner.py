"""What gemini and opencode have in common as runners; their launches differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import File, Launch
from orchestrator.runners.acp.calls import server_tool
from orchestrator.runners.acp.dialogue import AcpDialogue, AcpManners
from orchestrator.runners.contract import Abilities, Dialogue, LaunchTerms, RuleDecision
from orchestrator.runners.launching import told_apart, variables
from orchestrator.runners.rule_names import is_offered, rule_tool, server_names
from orchestrator.runners.rules import decide, rules_of
from orchestrator.runners.signs import PermissionAsked

EMPTY_FOLDER = "/srv"
"""Where sessions are: a directory of the image's with nothing in it, which no agent can write to.
What the CLIs find in the directory of a session acts on them."""


class AcpRunner:
    """A CLI that speaks the Agent Client Protocol, but for how it is launched."""

    name: str
    abilities = Abilities(tells_servers=False, tells_cut=False)
    manners: AcpManners
    own_names: Mapping[str, tuple[str, ...]]
    """agent.md's word for a tool -> what the CLI calls it."""

    def is_own_variable(self, name: str, own: Mapping[str, str]) -> bool:
        raise NotImplementedError

    def words(self, agent: AgentSpec) -> tuple[str, ...]:
        """The tools of the CLI's own that rules name, in their words."""
        named = map(rule_tool, (*agent.permissions.allow, *agent.ask_rules))
        return tuple(dict.fromkeys(word for word in named if word in self.own_names))

    def launched(
        self,
        agent: AgentSpec,
        terms: LaunchTerms,
        argv: Sequence[str],
        own: Mapping[str, str],
        *,
        files: Sequence[File] = (),
        servers: Sequence[str] = (),
        servers_inside: Sequence[Mapping[str, object]] = (),
    ) -> Launch:
        """The CLI with these variables of its own; `servers_inside` are told to the session."""
        told_apart(agent, servers, self.name, "_")
        return Launch(
            argv=tuple(argv),
            env=variables(agent, terms.env, {**own, **terms.surroundings}, self.is_own_variable),
            cwd=EMPTY_FOLDER,
            files=(*terms.files, *files),
            opening={
                "session": {"cwd": EMPTY_FOLDER, "mcpServers": list(servers_inside)},
                "resume": terms.conversation if terms.resume else "",
                "model": agent.model,
                "tools": list(self.words(agent)),
                "servers": list(servers),
            },
        )

    def dialogue(self, launch: Launch) -> Dialogue:
        return AcpDialogue(launch, self.manners)

    def decide(self, agent: AgentSpec, asked: PermissionAsked) -> RuleDecision:
        return decide(asked.tool, asked.input, rules_of(agent))

    def is_offered(self, agent: AgentSpec, tool: str) -> bool:
        named = server_tool(tool, self.manners.words, server_names(agent))
        return named is None or is_offered(agent, named)

    def history_file(self, conversation: str, cwd: str) -> str | None:  # noqa: ARG002 only the CLI knows
        return None
