"""What of the model an agent was given: which one, which tools, how many requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.domain.agent import AgentSpec
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.money.prices import FAMILIES, undecorated

SIDE_MODELS: dict[ProviderName, tuple[str, frozenset[str]]] = {
    "anthropic": ("claude", frozenset(("haiku",))),
    "openai": ("gpt", frozenset(("mini", "nano", "luna"))),
    "google": ("gemini", frozenset(("flash",))),
}
"""How the names of a provider's models begin, and the families of small ones that a CLI uses beside
the agent's, for titles and summaries."""

UNLIKE_WORDS = frozenset(("image", "tts", "audio", "live", "realtime", "search", "research"))
"""Words in the names of models that make something else than text, or search the web without being
told to. Either costs more than tokens, and the latter is a way out."""

ALIASES = {"opusplan": ("opus", "sonnet"), **{family: (family,) for family in FAMILIES}}
"""What a CLI makes a model's name of by itself, and of which families."""

REQUESTS_PER_TURN = 4
SPARE_REQUESTS = 100
"""A CLI counts its turns itself. Requests that are refused here are many more than it needs: it
also asks for titles and summaries, and again after an error."""

DELEGATES = 10
"""So many times more, where agents of the CLI's own may work beside it."""

DELEGATING_TOOLS = ("Task", "Agent")

IsOffered = Callable[[str], bool]
"""Whether the model is to know of a tool of this name."""


def every_tool(tool: str) -> bool:  # noqa: ARG001 the shape of a rule
    """The model is told of all tools."""
    return True


def may_use(given: str, asked: str, provider: ProviderName = "anthropic") -> bool:
    """Whether an agent that was given a model may ask for that one.

    An alias such as "sonnet" stands for every model of its family; any other name is itself, with a
    date or without. Models of the small families are always there.
    """
    return _is_given(given, asked, provider) or is_side_model(given, asked, provider)


def is_side_model(given: str, asked: str, provider: ProviderName = "anthropic") -> bool:
    """Whether a model is a small one that a CLI asks for by the way, and not the one given."""
    families = SIDE_MODELS[provider][1]
    return not _is_given(given, asked, provider) and _is_of(families, asked, provider)


def _is_given(given: str, asked: str, provider: ProviderName) -> bool:
    if undecorated(given) == undecorated(asked) != "":
        return True
    return _is_of(frozenset(ALIASES.get(undecorated(given), ())), asked, provider)


def _is_of(families: frozenset[str], asked: str, provider: ProviderName) -> bool:
    vendor = SIDE_MODELS[provider][0]
    name = re.fullmatch(rf"{vendor}(-[a-z0-9.]+)+", undecorated(asked), re.ASCII)
    words = set(name[0].split("-")) if name else set()
    return not words.isdisjoint(families) and words.isdisjoint(UNLIKE_WORDS)


def most_requests(agent: AgentSpec, *, counts: bool = True) -> int:
    """How many requests of one run are answered, from one thing that it is told to the next; for a
    CLI that counts its turns itself, or does not.
    """
    if not counts:
        return agent.max_turns
    delegates = any(rule.partition("(")[0] in DELEGATING_TOOLS for rule in agent.permissions.allow)
    turns = agent.max_turns * (agent.retries + 1) * (DELEGATES if delegates else 1)
    return REQUESTS_PER_TURN * turns + SPARE_REQUESTS
