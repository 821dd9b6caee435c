"""The claude CLI behind the contract of runners: its lines, and the answers that it waits for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Launch
from orchestrator.runners.claude import input as claude_input
from orchestrator.runners.claude import launch as claude_launch
from orchestrator.runners.claude.output import ControlAnswered, ControlAsked, Parsed, Parser
from orchestrator.runners.claude.permissions import decide
from orchestrator.runners.claude.tools import CLAUDE_TOOLS
from orchestrator.runners.contract import (
    MAX_UNANSWERED,
    Abilities,
    Dialogue,
    LaunchTerms,
    RuleDecision,
    WireFormat,
)
from orchestrator.runners.rule_names import is_offered
from orchestrator.runners.signs import Listening, PermissionAsked, Sign


class ClaudeDialogue:
    """One process of claude, in stream-json."""

    def __init__(self) -> None:
        self._parser = Parser()
        self._numbers = itertools.count(1)
        self._begin = ""
        """The request that is answered when the CLI can take messages."""
        self._unanswered: list[bytes] = []

    def begin(self) -> bytes:
        self._begin = f"begin-{next(self._numbers)}"
        return claude_input.initialize(self._begin)

    def rehearse(self) -> bytes:
        return claude_input.rehearsal()

    def say(self, text: str, message_id: str = "") -> bytes:
        return claude_input.user_message(text, message_id)

    def interrupt(self) -> bytes:
        return claude_input.interrupt(f"stop-{next(self._numbers)}")

    def allow(self, asked: PermissionAsked, tool_input: Mapping[str, object]) -> bytes:
        return claude_input.allow(asked.request_id, tool_input)

    def deny(self, asked: PermissionAsked, message: str) -> bytes:
        return claude_input.deny(asked.request_id, message)

    def hear(self, data: bytes) -> list[Sign]:
        return list(self._understood(self._parser.feed(data)))

    def hear_end(self) -> list[Sign]:
        return list(self._understood(self._parser.finish()))

    def replies(self) -> bytes:
        said, self._unanswered = b"".join(self._unanswered), []
        return said

    def _understood(self, heard: Sequence[Parsed]) -> Iterator[Sign]:
        for sign in heard:
            if isinstance(sign, ControlAsked):
                if len(self._unanswered) < MAX_UNANSWERED:
                    self._unanswered.append(claude_input.refuse(sign.request_id, "not supported"))
            elif isinstance(sign, ControlAnswered):
                if self._begin and sign.request_id == self._begin:
                    self._begin = ""
                    yield Listening()
            else:
                yield sign


class Claude:
    """claude, versions 2.1.197 and 2.1.325."""

    name = "claude"
    abilities = Abilities(
        rehearses=True,
        decides_by_itself=True,
        knows_aliases=True,
        counts_turns=True,
        quotes_api=True,
        edits_input=True,
    )
    wire_formats: tuple[WireFormat, ...] = ("anthropic",)
    tools = CLAUDE_TOOLS
    default_model = "sonnet"

    def launch(self, agent: AgentSpec, terms: LaunchTerms) -> Launch:
        return claude_launch.launch(agent, terms)

    def is_own_variable(self, name: str, own: Mapping[str, str]) -> bool:
        return claude_launch.is_own_variable(name, own)

    def dialogue(self, launch: Launch) -> Dialogue:  # noqa: ARG002 its arguments said it all
        return ClaudeDialogue()

    def decide(self, agent: AgentSpec, asked: PermissionAsked) -> RuleDecision:
        return decide(agent, asked)

    def is_offered(self, agent: AgentSpec, tool: str) -> bool:
        return is_offered(agent, tool)

    def history_file(self, conversation: str, cwd: str) -> str | None:
        return claude_launch.history_file(conversation, cwd)
