"""Who may call, and what a caller may make of a template."""

from __future__ import annotations

import pytest

from orchestrator.access import Wish, check_caller, narrowed
from orchestrator.domain.agent import AgentSpec, Network, Permissions, Session
from orchestrator.errors import CallerRefused, RunRefused

TEMPLATE = AgentSpec(
    name="helper",
    description="Helps.",
    prompt="You help.",
    permissions=Permissions(allow=("Read", "Bash(git log:*)", "Grep"), deny=("Bash(rm:*)",)),
    network=Network(mode="allow", allow=("example.org",)),
    session=Session(keep=True),
    max_turns=20,
)


def wish(*tools: str, **fields: object) -> Wish:
    told = {"description": "d", "instructions": "Do it well.", "tools": tools, **fields}
    return Wish.model_validate(told)


def test_a_caller_that_is_not_listed_is_refused() -> None:
    check_caller(TEMPLATE, "main")
    with pytest.raises(CallerRefused, match="does not allow caller 'stranger'; it allows main"):
        check_caller(TEMPLATE, "stranger")


def test_a_template_can_be_made_smaller() -> None:
    made = narrowed(TEMPLATE, wish("Read", "Grep(todo)", max_steps=5))
    assert made.permissions == Permissions(allow=("Read", "Grep(todo)"), deny=("Bash(rm:*)",))
    assert (made.max_turns, made.model, made.prompt) == (5, "haiku", "You help.\n\nDo it well.")
    assert (made.network, made.resources) == (TEMPLATE.network, TEMPLATE.resources)
    assert not made.session.keep


def test_what_is_made_of_a_template_has_no_spares() -> None:
    template = AgentSpec(name="a", description="b", permissions=TEMPLATE.permissions, warm=2)
    assert narrowed(template, wish("Read")).warm == 0


def test_and_never_larger() -> None:
    assert narrowed(TEMPLATE, wish("Read", max_steps=1000)).max_turns == 20
    for tools in (("Write",), ("Bash",), ("Read", "Bash(git push:*)"), ()):
        with pytest.raises(RunRefused):
            narrowed(TEMPLATE, wish(*tools))


def test_the_template_chooses_the_model_and_a_cheap_one_is_the_default() -> None:
    chosen = AgentSpec(name="a", description="b", model="opus", permissions=TEMPLATE.permissions)
    assert narrowed(chosen, wish("Read")).model == "opus"


def test_without_the_sandbox_nothing_goes_without_the_callers_word() -> None:
    assert narrowed(TEMPLATE, wish("Read", sandboxed=False)).approval == {"*": "ask"}
