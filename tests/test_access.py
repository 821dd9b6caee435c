"""Who may call, and what a caller may make of a template."""

from __future__ import annotations

import pytest

from orchestrator.access import check_caller, models_given, narrowed
from orchestrator.domain.agent import AgentSpec, McpServer, Network, Permissions, Session
from orchestrator.domain.task import Wish
from orchestrator.domain.tool_use import Verdict
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
    told = {"description": "d", "tools": tools, **fields}
    return Wish.model_validate(told)


def test_a_caller_that_is_not_listed_is_refused() -> None:
    check_caller(TEMPLATE, "main")
    with pytest.raises(CallerRefused, match="does not allow caller 'stranger'; it allows main"):
        check_caller(TEMPLATE, "stranger")


def test_a_template_can_be_made_smaller() -> None:
    made = narrowed(TEMPLATE, wish("Read", "Grep(todo)", max_steps=5))
    assert made.permissions == Permissions(allow=("Read", "Grep(todo)"), deny=("Bash(rm:*)",))
    assert (made.max_turns, made.model, made.prompt) == (5, "haiku", "You help.")
    assert (made.network, made.resources) == (TEMPLATE.network, TEMPLATE.resources)
    assert (made.session, made.memory) == (TEMPLATE.session, "none")


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


GIT_LOG = "Bash(git log:*)"


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ({}, (GIT_LOG,)),
        ({"Bash": "auto"}, ()),
        ({GIT_LOG: "auto"}, ()),
        ({"Read": "ask"}, (GIT_LOG, "Read")),
        ({"*": "ask"}, (GIT_LOG, "Read", "Grep")),
        ({"*": "auto"}, (GIT_LOG,)),
        ({"Write": "ask"}, (GIT_LOG,)),
    ],
)
def test_without_the_sandbox_what_changes_something_waits_unless_the_template_says_otherwise(
    said: dict[str, Verdict], asked: tuple[str, ...]
) -> None:
    template = TEMPLATE.model_copy(update={"approval": said})
    made = narrowed(template, wish("Read", GIT_LOG, "Grep", sandboxed=False))
    assert set(made.ask_rules) == set(asked)
    boxed = narrowed(template, wish("Read", GIT_LOG, "Grep"))
    assert set(boxed.ask_rules) <= set(asked)


def test_a_tool_that_need_not_wait_waits_all_the_same_if_the_template_says_so() -> None:
    template = TEMPLATE.model_copy(
        update={"permissions": Permissions(allow=("Bash", "Write")), "approval": {"Write": "ask"}}
    )
    trusting = wish("Bash", "Write", sandboxed=False).model_copy(
        update={"unasked": ("Bash", "Write")}
    )
    assert narrowed(template, trusting).approval == {"Write": "ask"}


def test_a_model_is_one_that_the_template_has() -> None:
    template = AgentSpec(
        **TEMPLATE.model_dump(exclude_unset=True) | {"model": "opus", "models": {"codex": "gpt-5"}}
    )
    assert models_given(template) == ("opus", "gpt-5")
    other = wish("Read").model_copy(update={"model": "gpt-5"})
    assert narrowed(template, other).model == "gpt-5"
    with pytest.raises(RunRefused, match="not among the models"):
        narrowed(template, other.model_copy(update={"model": "haiku"}))


def test_what_the_template_denies_stays_denied() -> None:
    template = TEMPLATE.model_copy(update={"approval": {"Bash(git log -p:*)": "deny"}})
    for sandboxed in (True, False):
        made = narrowed(template, wish("Read", sandboxed=sandboxed))
        assert made.deny_rules == ("Bash(rm:*)", "Bash(git log -p:*)")


def test_of_the_templates_mcp_servers_there_are_only_those_that_were_asked_for() -> None:
    # A server of which no tool is named is allowed as a whole: more than the template may do.
    servers = tuple(McpServer(name=name, command="serve") for name in ("issues", "wiki"))
    allow = ("Read", "mcp__issues__list")
    template = TEMPLATE.model_copy(
        update={"mcp_servers": servers, "permissions": Permissions(allow=allow)}
    )
    assert narrowed(template, wish("Read")).mcp_servers == ()
    made = narrowed(template, wish("mcp__issues__list", "mcp__wiki__read"))
    assert made.mcp_servers == servers
    for tool in ("mcp__issues", "mcp__issues__delete", "mcp__other"):
        with pytest.raises(RunRefused, match=f"{tool}: not among the tools"):
            narrowed(template, wish(tool))


def test_a_rule_for_a_server_holds_for_each_of_its_tools() -> None:
    """Or an agent made at call time could use a tool that the template keeps for a person."""
    servers = (McpServer(name="srv", command="x"),)
    template = AgentSpec(
        name="a",
        description="d",
        mcp_servers=servers,
        permissions=Permissions(allow=("Read", "mcp__srv", "Write")),
        approval={"mcp__srv": "ask", "mcp__srv__drop": "ask", "Write": "ask"},
    )
    made = narrowed(template, wish("mcp__srv__delete"))
    assert made.approval == {"mcp__srv__delete": "ask"}
    made = narrowed(template, wish("mcp__srv"))
    assert made.approval == {"mcp__srv": "ask", "mcp__srv__drop": "ask"}
