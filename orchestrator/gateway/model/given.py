"""What of a request to the model an agent was given: which parts, which model, how many. Pure.

An API behind ANTHROPIC_BASE_URL may be a proxy that knows more than the real one: a key, an address
or a list of callbacks, in the request or in its metadata, that it uses in place of the operator's.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.domain.agent import AgentSpec
from orchestrator.gateway.model.prices import FAMILIES, undecorated

REQUEST_KEYS = frozenset(
    (
        *("model", "messages", "system", "max_tokens", "stream", "metadata"),
        *("tools", "tool_choice", "stop_sequences", "temperature", "top_k", "top_p"),
        *("thinking", "context_management", "output_config", "output_format", "cache_control"),
        *("service_tier", "speed", "inference_geo", "safeguards"),
        # These are refused, if they hold anything, and not only left out.
        *("mcp_servers", "container"),
    )
)
"""What the API documents and claude 2.1.325 sends. Any other part is left out, so that a newer CLI
goes on to work as it does with an older API."""

METADATA_KEYS = frozenset(("user_id",))
"""The API knows no other; proxies do."""

SIDE_FAMILY = "haiku"
"""The family of small models that a CLI uses beside the agent's, for titles and summaries."""

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


def narrowed(
    body: dict[str, object], is_offered: IsOffered = every_tool
) -> tuple[dict[str, object], tuple[str, ...]]:
    """A body without what does not pass, and the names of that. Of tools that the agent may not
    call the model is not told either; that is as it should be, and not worth a word.
    """
    left_out = [key for key in body if key not in REQUEST_KEYS]
    kept = {key: value for key, value in body.items() if key in REQUEST_KEYS}
    tools = body.get("tools")
    if isinstance(tools, list):
        kept["tools"] = [tool for tool in tools if is_offered(_name_of(tool))]
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"] = {key: metadata[key] for key in metadata if key in METADATA_KEYS}
        left_out += [f"metadata.{key}" for key in metadata if key not in METADATA_KEYS]
    return kept, tuple(left_out)


def _name_of(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


def may_use(given: str, asked: str) -> bool:
    """Whether an agent that was given a model may ask for that one.

    An alias such as "sonnet" stands for every model of its family; any other name is itself, with a
    date or without. Models of the small family are always there.
    """
    if undecorated(given) == undecorated(asked) != "":
        return True
    families = (*ALIASES.get(undecorated(given), ()), SIDE_FAMILY)
    name = re.fullmatch(r"claude(-[a-z0-9.]+)+", undecorated(asked), re.ASCII)
    return name is not None and not set(families).isdisjoint(name[0].split("-"))


def most_requests(agent: AgentSpec) -> int:
    """How many requests of one run are answered, from one thing that it is told to the next."""
    delegates = any(rule.partition("(")[0] in DELEGATING_TOOLS for rule in agent.permissions.allow)
    turns = agent.max_turns * (agent.retries + 1) * (DELEGATES if delegates else 1)
    return REQUESTS_PER_TURN * turns + SPARE_REQUESTS
