"""Which runners an agent is tried on: by agent.md, the operator's words, its model, and keys."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.domain.agent import AgentSpec, RunnerWish
from orchestrator.errors import AgentInvalid
from orchestrator.runners.choice import choose
from orchestrator.runners.contract import Abilities, Runner, WireFormat
from orchestrator.runners.known import RUNNERS

ALL = frozenset(("anthropic", "openai", "google"))

KEYS = {"anthropic": "anthropic", "responses": "openai", "chat": "openai", "gemini": "google"}


class Other:
    """A runner of which only this is asked here."""

    def __init__(self, name: str, default_model: str, *wire_formats: WireFormat) -> None:
        self.name, self.default_model, self.wire_formats = name, default_model, wire_formats
        self.abilities = Abilities()


FIVE: dict[str, Any] = {
    "claude": RUNNERS["claude"],
    "codex": RUNNERS["codex"],
    "copilot": Other("copilot", "claude-s", "anthropic", "responses", "chat"),
    "gemini": Other("gemini", "gemini-3-pro", "gemini"),
    "opencode": Other("opencode", "claude-s", "anthropic", "responses", "chat", "gemini"),
}

CONFIG = [
    {"name": "copilot", "priority": 2, "models": ["claude-s", "gpt-5.5"]},
    {"name": "codex", "priority": 1, "models": ["gpt-5.5"]},
    {"name": "opencode", "priority": 3},
]


def ways(
    agent: dict[str, object],
    preferred: str | None = None,
    config: list[dict[str, object]] | None = None,
    keys: frozenset[str] = ALL,
) -> tuple[list[str], list[str]]:
    """What is tried, as "runner model format", and what is passed over, by its runner."""
    spec = AgentSpec.model_validate({"name": "a", "description": "A.", **agent})
    runners: dict[str, Runner] = FIVE
    choice = choose(
        spec,
        runners,
        lambda wire_format: "" if KEYS[wire_format] in keys else f"{KEYS[wire_format]}'s key",
        RunnerWish.model_validate(
            {"preferred": preferred or "", "config": config and {"runners": config}}
        ),
    )
    tried = [f"{each.runner} {each.model} {each.wire_format}" for each in choice.candidates]
    return tried, [line.partition(":")[0] for line in choice.passed_over]


CLAUDE, CODEX = "claude sonnet anthropic", "codex gpt-5.5 responses"
NO_ANTHROPIC = ALL - {"anthropic"}


@pytest.mark.parametrize(
    ("agent", "preferred", "config", "keys", "tried", "passed"),
    [
        # by the model alone
        ({}, None, None, ALL, [CLAUDE], []),
        ({"model": "claude-opus-5"}, None, None, ALL, ["claude claude-opus-5 anthropic"], []),
        ({"model": "opus[1m]"}, None, None, ALL, ["claude opus[1m] anthropic"], []),
        ({"model": "gpt-5.5"}, None, None, ALL, [CODEX], []),
        ({"model": "o4-mini"}, None, None, ALL, ["codex o4-mini responses"], []),
        ({"model": "codex-1"}, None, None, ALL, ["codex codex-1 responses"], []),
        ({"model": "gemini-3-pro"}, None, None, ALL, ["gemini gemini-3-pro gemini"], []),
        ({"model": "llama-9"}, None, None, ALL, ["claude llama-9 anthropic"], []),
        ({"model": "llama-9", "runner": ["copilot", "opencode", "codex"]}, None, None,
         frozenset({"openai"}), ["copilot llama-9 chat", "opencode llama-9 chat",
         "codex llama-9 responses"], []),
        # by agent.md
        ({"runner": ["codex"]}, None, None, ALL, [CODEX], []),
        ({"runner": ["opencode"], "model": "gemini-3-pro"}, None, None, ALL,
         ["opencode gemini-3-pro gemini"], []),
        ({"runner": ["copilot"], "model": "gpt-5.5"}, None, None, ALL,
         ["copilot gpt-5.5 responses"], []),
        ({"runner": ["claude", "codex"]}, None, None, ALL, [CLAUDE, CODEX], []),
        ({"runner": ["claude", "codex"], "model": "sonnet"}, None, None, ALL, [CLAUDE], ["codex"]),
        ({"runner": ["claude", "codex"], "model": "opus", "models": {"codex": "gpt-6"}}, None,
         None, ALL, ["claude opus anthropic", "codex gpt-6 responses"], []),
        ({"runner": ["codex"], "model": "llama-9"}, None, None, ALL,
         ["codex llama-9 responses"], []),
        # by --runner
        ({}, "codex", None, ALL, [CODEX], []),
        ({}, "copilot", None, ALL, ["copilot claude-s anthropic"], []),
        ({"model": "sonnet"}, "codex", None, ALL, [CLAUDE], ["codex"]),
        ({"model": "sonnet"}, "copilot", None, ALL, [CLAUDE], ["copilot"]),
        ({"model": "claude-s"}, "copilot", None, ALL,
         ["copilot claude-s anthropic", "claude claude-s anthropic"], []),
        ({"runner": ["claude", "codex"]}, "codex", None, ALL, [CODEX, CLAUDE], []),
        ({"runner": ["claude"]}, "codex", None, ALL, [CLAUDE], []),
        # by --runner-config
        ({"model": "gpt-5.5"}, None, CONFIG, ALL,
         [CODEX, "copilot gpt-5.5 responses", "opencode gpt-5.5 responses"], []),
        ({"model": "claude-s"}, None, CONFIG, ALL,
         ["copilot claude-s anthropic", "opencode claude-s anthropic"], ["codex"]),
        ({"model": "gpt-5.5"}, "copilot", CONFIG, ALL,
         ["copilot gpt-5.5 responses", CODEX, "opencode gpt-5.5 responses"], []),
        ({"model": "gemini-3-pro"}, "codex", CONFIG, ALL,
         ["opencode gemini-3-pro gemini"], ["codex", "copilot"]),
        ({"runner": ["claude"], "model": "sonnet"}, None, CONFIG, ALL, [CLAUDE], []),
        # what has no credential is passed over; if that leaves none, the first says what it lacks
        ({"runner": ["claude", "codex"]}, None, None, NO_ANTHROPIC, [CODEX], ["claude"]),
        ({"runner": ["claude", "codex"]}, None, None, frozenset(), [CLAUDE], ["codex"]),
        ({}, None, None, frozenset(), [CLAUDE], []),
        ({"runner": ["opencode"], "model": "llama-9"}, None, None, frozenset(("google",)),
         ["opencode llama-9 gemini"], []),
        ({"model": "claude-s"}, None, CONFIG, NO_ANTHROPIC, ["copilot claude-s anthropic"],
         ["codex", "opencode"]),
    ],
)  # fmt: skip
def test_runners_are_chosen_in_this_order(
    agent: dict[str, object],
    preferred: str | None,
    config: list[dict[str, object]] | None,
    keys: frozenset[str],
    tried: list[str],
    passed: list[str],
) -> None:
    assert ways(agent, preferred, config, keys) == (tried, passed)


def test_an_agent_that_no_runner_can_run_is_told_what_to_write() -> None:
    with pytest.raises(AgentInvalid, match=r"`models: \{codex: gpt-5.5\}`"):
        ways({"runner": ["codex"], "model": "sonnet"})
    with pytest.raises(AgentInvalid, match="does not list gemini-3-pro"):
        ways({"model": "gemini-3-pro"}, None, CONFIG[:2])
    with pytest.raises(AgentInvalid, match="copilot: it does not know the alias opus; name a m"):
        ways({"runner": ["copilot"], "model": "opus"})
    with pytest.raises(AgentInvalid, match="codx: there is no such runner here; there are claude"):
        ways({}, None, [{"name": "codx", "priority": 1}])
