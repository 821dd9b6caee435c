"""Who calls, and may they? Also: may they have an agent of their own making? Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec, Permissions, Rule, Session, Verdict
from orchestrator.errors import CallerMissing, CallerRefused, RunRefused

DEFAULT_CALLER = "default"
"""Who calls without a name: may run the agents that list this name, and no others."""

NEAR = 0.6
"""How alike two names must be for one to be taken for the other, misspelt; of 1."""

CHEAP_MODEL = "haiku"
"""For agents made at call time, unless their template says otherwise."""


def check_caller(agent: AgentSpec, caller: str) -> None:
    """CallerRefused unless the agent's author lets this caller run it."""
    if caller not in agent.allowed_callers:
        allowed = ", ".join(agent.allowed_callers) or "nobody"
        raise CallerRefused(
            f"agent {agent.name!r} does not allow caller {caller!r}; it allows {allowed}"
            f"{did_you_mean(caller, agent.allowed_callers)}"
        )


def known_caller(named: str, otherwise: str, *, deny_missing: bool) -> str:
    """The caller by its name; without one, who that is, or CallerMissing if every caller must have
    a name.
    """
    if named:
        return named
    if deny_missing:
        raise CallerMissing(
            "this call names no caller, and the operator has set deny_on_missing_caller; set "
            "ORCHESTRATOR_CALLER for the process that calls, give --caller, or over HTTP a token "
            "of ORCHESTRATOR_HTTP_TOKENS"
        )
    return otherwise


def misspelt(name: str, known: Iterable[str], *, declared: bool) -> str:
    """What to say of a caller's name that is probably wrong; "" if nothing is. If all callers are
    declared, another one is wrong; otherwise only one that looks like a known name is pointed out.
    """
    names = tuple(known)
    if name in names:
        return ""
    guess = did_you_mean(name, names)
    if not declared:
        return f"no caller is known as {name!r}{guess}" if guess else ""
    there = f"; there are {', '.join(names)}"
    return f"no caller is declared as {name!r}{guess or there}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest name, as the end of a sentence; "" if none is near."""
    close = difflib.get_close_matches(name, tuple(known), n=1, cutoff=NEAR)
    return f"; did you mean {close[0]!r}?" if close else ""


class Wish(Frozen):
    """An agent that a caller describes at call time."""

    description: str
    instructions: str
    tools: tuple[Rule, ...]
    max_steps: Annotated[int, Field(ge=1, le=1000)] = 30
    sandboxed: bool = True
    """False: nothing that the agent does goes without the caller's word."""


def narrowed(template: AgentSpec, wish: Wish) -> AgentSpec:
    """The template, made smaller: fewer tools, fewer steps, never more. RunRefused otherwise."""
    if not wish.tools:
        raise RunRefused("tools is empty: name the tools that the agent needs")
    allowed = template.permissions.allow
    refused = [tool for tool in wish.tools if not any(_covers(rule, tool) for rule in allowed)]
    if refused:
        raise RunRefused(
            f"{', '.join(refused)}: not among the tools that may be given ({', '.join(allowed)}), "
            f"as the agent {template.name!r} has them"
        )
    model = template.model if "model" in template.model_fields_set else CHEAP_MODEL
    prompt = "\n\n".join(filter(None, (template.prompt, wish.instructions)))
    return template.model_copy(
        update={
            "description": wish.description or template.description,
            "prompt": prompt,
            "permissions": Permissions(allow=wish.tools, deny=template.permissions.deny),
            "max_turns": min(wish.max_steps, template.max_turns),
            "model": model,
            "approval": template.approval if wish.sandboxed else _asking(template),
            "session": Session(),
            "warm": 0,
            "output_schema": None,
            "output_format": "text",
        }
    )


def _asking(template: AgentSpec) -> dict[str, Verdict]:
    """The caller decides about every call; what was denied stays so."""
    denied = {rule: verdict for rule, verdict in template.approval.items() if verdict == "deny"}
    return {"*": "ask", **denied}


def _covers(rule: str, tool: str) -> bool:
    """Whether a rule of the template's holds all that another one would."""
    return rule == tool or ("(" not in rule and rule == tool.partition("(")[0])
