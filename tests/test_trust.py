"""What an agent could reach, and what of it is new: by value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.catalog.agent_file import parse_agent
from orchestrator.domain.agent import AgentSpec
from orchestrator.trust import NOTHING, Extent, Grant, extent_of, grown, is_below, trust_command


def agent(name: str = "a", /, **fields: object) -> AgentSpec:
    head = json.dumps({"name": name, "description": "Does it.", **fields})  # which is YAML
    path = Path(f"agents/{name}/agent.md")
    parsed = parse_agent(
        f"---\n{head}\n---\n", folder=name, path=path, read_beside=lambda _: (path, "")
    )
    assert isinstance(parsed, AgentSpec), parsed
    return parsed


def wants(**fields: object) -> tuple[str, ...]:
    return grown(NOTHING, extent_of(agent(**fields), {}))


TOKEN = {"name": "token", "hosts": ["api.example.org"], "paths": ["/a", "/b"]}
ALL = {
    "network": {"allow": ["example.org"], "allow_private": ["nas.local"], "deny": ["x.org"]},
    "secrets": [TOKEN, {"name": "key", "expose": "env"}],
    "env": {"A": "${HOME_TOKEN}", "B": "$${NOT_ONE}", "C": "plain"},
    "mcp_servers": [{"name": "s", "command": "s", "args": ["${ARG:-x}"], "env": {"E": "${ENV}"}}],
    "image": "other:1",
    "runtime": "runsc",
    "seccomp": "engine",
    "workspace": "rw",
    "permissions": {"allow": ["WebSearch"]},
}


def test_an_agent_that_wants_nothing_reaches_nothing() -> None:
    usual = agent(
        permissions={"allow": ["Bash", "Read", "Write", "mcp__s"]},
        session=True,
        memory="rw",
        workspace="copy",
        ask="user",
        env={"TZ": "UTC"},
        mcp_servers=[{"name": "s", "command": "npx", "args": ["-y", "it"]}],
        resources={"memory_mb": 8192},
    )
    assert extent_of(usual, {}) == NOTHING


def test_all_that_an_agent_could_reach_is_told() -> None:
    assert wants(**ALL) == (
        "image: other:1",
        "network: example.org",
        "private: nas.local",
        "runtime: runsc",
        "secret: key enters the container",
        "secret: token as Authorization, bearer",
        "secret: token at /a",
        "secret: token at /b",
        "secret: token by GET",
        "secret: token by HEAD",
        "secret: token to api.example.org",
        "system calls: the engine's own choice",
        "variable: ARG",
        "variable: ENV",
        "variable: HOME_TOKEN",
        "web search: by the model API, which sends what is searched for",
        "workspace: written to, also outside the project",
    )
    assert wants(network="open") == ("network: every public host",)


REACHING = {
    *("network", "secrets", "env", "mcp_servers", "image", "runtime", "seccomp"),
    *("workspace", "permissions", "subagents", "allowed_callers"),
}
INSIDE = {
    *("name", "description", "prompt", "session", "memory", "warm", "timeout_ms", "model"),
    *(
        "output_schema",
        "output_format",
        "runner",
        "ask",
        "approval",
        "approval_by",
        "resources",
        "max_turns",
    ),
    *("approval_by", "max_turns", "max_budget_usd", "retries"),
}


def test_every_field_has_been_judged() -> None:
    """A field that is added here lets an agent reach nothing, or `extent_of` knows of it."""
    assert set(AgentSpec.model_fields) == REACHING | INSIDE


LESS_AND_MORE: list[tuple[dict[str, object], dict[str, object], tuple[str, ...]]] = [
    ({"network": {"allow": ["a.org"]}}, {"network": {"allow": ["a.org", "b.org"]}}, ("b.org",)),
    ({"network": {"allow": ["a.org"]}}, {"network": {"allow": ["a.org:8443"]}}, ("a.org:8443",)),
    ({"network": {"allow": ["a.org"]}}, {"network": "open"}, ("every public host",)),
    ({"network": {"allow": ["a.org"]}}, {"network": {"allow": ["*.a.org"]}}, ("*.a.org",)),
    ({"secrets": [TOKEN]}, {"secrets": [TOKEN | {"methods": ["GET", "POST"]}]}, ("POST",)),
    ({"secrets": [TOKEN]}, {"secrets": [TOKEN | {"paths": ["/a", "/**"]}]}, ("/**",)),
    ({"secrets": [TOKEN]}, {"secrets": [{"name": "token", "expose": "env"}]}, ("enters",)),
    ({"secrets": [TOKEN]}, {"secrets": [TOKEN | {"header": "X-Key"}]}, ("X-Key",)),
    ({"env": {"A": "${ONE}"}}, {"env": {"A": "${ONE}${TWO}"}}, ("TWO",)),
    ({"image": "a:1"}, {"image": "a:2"}, ("a:2",)),
    ({"network": {"mode": "open", "deny": ["x.org"]}}, {"network": "open"}, ("x.org, which",)),
]


@pytest.mark.parametrize(("less", "more", "new"), LESS_AND_MORE)
def test_what_has_become_more_is_new(
    less: dict[str, object], more: dict[str, object], new: tuple[str, ...]
) -> None:
    told = grown(extent_of(agent(**less), {}), extent_of(agent(**more), {}))
    assert len(told) == len(new)
    assert all(part in line for part, line in zip(new, told, strict=True)), told


@pytest.mark.parametrize("field", ALL)
def test_what_has_become_less_is_not(field: str) -> None:
    less = {name: value for name, value in ALL.items() if name != field}
    before, now = extent_of(agent(**ALL), {}), extent_of(agent(**less), {})
    denied = ("network: x.org, which was denied",)  # the secret's routes kept to it, too
    assert grown(before, now) == (denied if field == "network" else ())
    assert grown(before, before) == ()


def test_a_host_that_is_denied_besides_is_not_more() -> None:
    before = extent_of(agent(network="open"), {})
    now = extent_of(agent(network={"mode": "open", "deny": ["x.org"]}), {})
    assert grown(before, now) == ()
    none = extent_of(agent(), {})
    assert grown(now, none) == ()


def test_an_agent_reaches_what_those_reach_that_work_for_it() -> None:
    planner = agent("planner", subagents=["middle", "gone"])
    middle = agent("middle", subagents=["search", "planner"], allowed_callers=["planner"])
    search = agent("search", network={"allow": ["a.org"]}, workspace="rw", allowed_callers=["x"])
    others = {each.name: each for each in (planner, middle, search)}
    assert extent_of(planner, others) == NOTHING  # search does not let middle call it
    others["search"] = search.model_copy(update={"allowed_callers": ("middle",)})
    through = Grant(kind="network", what="a.org", through="search")
    assert extent_of(planner, others) == Extent(grants=(through,))
    assert grown(NOTHING, extent_of(planner, others)) == ("network: a.org (through search)",)
    own = agent("planner", network={"allow": ["a.org"]})
    assert grown(Extent(grants=(through,)), extent_of(own, {})) == ("network: a.org",)


@pytest.mark.parametrize("image", ["x\n  + nothing\x1b[2J", "ours). Now type: rm", "x" * 9999, "ö"])
def test_a_grant_is_one_line_in_which_an_author_says_nothing(image: str) -> None:
    (line,) = wants(image=image)
    assert line.isprintable()
    assert len(line) < 400
    assert " " not in image or line.endswith("'")


def test_an_extent_grows_no_faster_than_what_an_author_writes() -> None:
    many = [f"h{number}.example" for number in range(500)]
    paths = [f"/p{number}" for number in range(500)]
    secret = {"name": "t", "hosts": many, "paths": paths, "methods": ["GET", "POST"]}
    assert len(wants(secrets=[secret], network={"allow": many})) == 1503


def test_a_directory_holds_itself_and_what_is_below_but_nothing_beside_it() -> None:
    folders = (Path("/srv/mine"),)
    assert is_below(Path("/srv/mine"), folders)
    assert is_below(Path("/srv/mine/a/agents"), folders)
    assert not is_below(Path("/srv/mine-too"), folders)
    assert not is_below(Path("/srv"), folders)
    assert not is_below(Path("/srv/mine"), ())


def test_the_command_to_type_is_one_word_for_each_word() -> None:
    assert trust_command(Path("/srv/x/agents")) == "orchestrator trust /srv/x"
    odd = trust_command(Path("/srv/a b;rm/agents"))
    assert odd == "orchestrator trust '/srv/a b;rm'"
    assert trust_command(Path("/srv/a\nb/agents")) == "orchestrator trust"
    assert trust_command(Path("/srv/mine")) == "orchestrator trust --agents-dir /srv/mine"
