"""What an agent could reach, and what of it is new: by value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog.agent_file import parse_agent
from orchestrator.domain.agent import AgentSpec, Network, Secret
from orchestrator.domain.tool_lock import TOOL_FIELDS, Pinned, ToolLock
from orchestrator.domain.tool_server import SecretHeader, ToolServer
from orchestrator.trust import (
    NOTHING,
    Extent,
    Grant,
    definitions_of,
    extent_of,
    grown,
    is_below,
    trust_command,
    without_read,
)


def agent(name: str = "a", /, **fields: object) -> AgentSpec:
    head = json.dumps({"name": name, "description": "Does it.", **fields})  # which is YAML
    path = Path(f"agents/{name}/agent.md")
    parsed = parse_agent(
        f"---\n{head}\n---\n", folder=name, path=path, read_beside=lambda _: (path, "")
    )
    assert not isinstance(parsed, tuple), parsed
    return parsed.agent


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
    extent = extent_of(usual, {})
    assert (extent.grants, extent.denied, grown(NOTHING, extent)) == ((), (), ())


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
    *("workspace", "permissions", "subagents", "allowed_callers", "server_uses"),
    *("approval", "approval_by"),
}
REACHING_SERVER = {
    *("command", "image", "env", "url", "auth", "secrets", "network", "runtime", "seccomp"),
}
INSIDE_SERVER = {
    *("name", "description", "files", "resources", "share", "idle_seconds", "start_seconds"),
    *("call_seconds", "result_kb"),
}
INSIDE = {
    *("name", "description", "prompt", "session", "memory", "warm", "timeout_ms", "model"),
    *("output_schema", "output_format", "runner", "models", "ask", "resources", "max_turns"),
    *("max_budget_usd", "retries", "files"),
}


def test_every_field_has_been_judged() -> None:
    """A field that is added here lets an agent reach nothing, or `extent_of` knows of it."""
    assert set(AgentSpec.model_fields) == REACHING | INSIDE
    assert set(ToolServer.model_fields) == REACHING_SERVER | INSIDE_SERVER


TICKETS = ToolServer(
    name="tickets",
    command=("serve", "${PROJECT}"),
    image="tickets:1",
    network=Network(mode="allow", allow=("tickets.example.org",), deny=("x.org",)),
    secrets=(Secret(name="ticket-token", expose="env"),),
)
REMOTE = ToolServer(
    name="remote", url="https://mcp.example.org/mcp", auth=SecretHeader(secret="key")
)
QUIET = ToolServer(name="quiet", command=("python3", "server.py"))
SERVERS = {server.name: server for server in (TICKETS, REMOTE, QUIET)}
USE = {
    "use": "tickets",
    "allow": ["get_*"],
    "deny": ["*_all"],
    "approve": {"get_x": "ask", "get_y": "auto"},
    "arguments": {"*": {"project": "acme"}},
}


def test_an_agent_reaches_what_its_servers_reach_by_the_tools_that_it_may_call() -> None:
    user = agent(mcp_servers=[USE, {"use": "remote", "allow": ["*"]}])
    assert [str(grant) for grant in extent_of(user, {}, SERVERS).grants] == [
        "secret: key to https://mcp.example.org/mcp (through server remote)",
        "server: https://mcp.example.org/mcp (through server remote)",
        "tools: * (through server remote)",
        "image: tickets:1 (through server tickets)",
        "network: tickets.example.org (through server tickets)",
        "secret: ticket-token enters the container (through server tickets)",
        "tools: get_* (through server tickets)",
        "variable: PROJECT (through server tickets)",
    ]
    quiet = agent(mcp_servers=[{"use": "quiet", "allow": ["*"]}])
    assert extent_of(quiet, {}, SERVERS) == NOTHING  # it computes, and reaches nothing
    above = agent("above", subagents=["worker"])
    worker = agent("worker", allowed_callers=["above"], mcp_servers=[USE])
    (image, *_) = extent_of(above, {"worker": worker}, SERVERS).grants
    assert str(image) == "image: tickets:1 (through worker, server tickets)"


@pytest.mark.parametrize(
    ("change", "new"),
    [
        ({"allow": ["get_*", "delete_*"]}, "tools: delete_*"),
        ({"deny": []}, "tools: *_all"),
        ({"approve": {}}, "tools: get_x without approval"),
        ({"approve": {"get_x": "auto"}}, "tools: get_x without approval"),
        ({"arguments": {}}, "tools: * with another 'project' than 'acme'"),
        ({"arguments": {"*": {"project": "evil"}}}, "tools: * with another 'project' than 'acme'"),
    ],
)
def test_a_use_that_holds_back_less_is_more(change: dict[str, object], new: str) -> None:
    before = extent_of(agent(mcp_servers=[USE]), {}, SERVERS)
    now = extent_of(agent(mcp_servers=[USE | change]), {}, SERVERS)
    (told,) = grown(before, now)
    assert told.startswith(new)
    assert grown(now, before) == () or "deny" not in change  # and the other way it is less
    assert grown(before, extent_of(agent(), {}, SERVERS)) == ()


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


OPEN: dict[str, object] = {"network": "open"}
SERVER = {"name": "s", "command": "s"}
SHELL = {"allow": ["Bash", "Read"]}
HELD: list[tuple[dict[str, object], dict[str, object], tuple[str, ...]]] = [
    ({"approval": {"Bash": "ask"}}, {}, ("'Bash' is no longer asked about",)),
    ({"approval": {"Bash": "deny"}}, {"approval": {"Bash": "ask"}}, ("no longer denied",)),
    (
        {"approval": "ask"},
        {"approval": {"*": "ask", "Bash": "auto"}},
        ("'Bash' is no longer asked about",),
    ),
    ({"approval": {"Bash(git push:*)": "ask"}}, {}, ("'Bash(git push:*)' is no longer asked",)),
    (
        {"approval": {"Bash": "ask"}, "approval_by": "user"},
        {"approval": {"Bash": "ask"}, "approval_by": "parent"},
        ("'Bash' is no longer left to a person",),
    ),
    ({"permissions": SHELL | {"deny": ["Bash(rm:*)"]}}, {}, ("'Bash(rm:*)' is no longer denied",)),
    (
        {"approval": {"mcp__s__drop": "ask"}, "mcp_servers": [SERVER]},
        {"mcp_servers": [SERVER]},
        ("'mcp__s__drop' is no longer asked about",),
    ),
    (
        {"approval": {"mcp__s__drop": "ask"}, "mcp_servers": [SERVER]},
        {"permissions": {"allow": ["mcp__s__get"]}, "mcp_servers": [SERVER]},
        (),
    ),
    ({"approval": {"mcp__s__drop": "ask"}, "mcp_servers": [SERVER]}, {}, ()),
    ({}, {"approval": {"Bash": "ask"}}, ()),
    ({"approval": {"Bash": "ask"}}, {"approval": {"Bash": "deny"}}, ()),
    ({"approval": {"Bash": "ask"}}, {"approval": "ask"}, ()),
    ({"approval": {"Bash": "ask"}}, {"permissions": {"allow": ["Read"]}}, ()),
    (
        {"approval": {"Bash(git push:*)": "ask"}},
        {"approval": {"Bash": "ask"}, "permissions": {"allow": ["Read"]}},
        (),
    ),
]


@pytest.mark.parametrize(("before", "now", "new"), HELD)
def test_what_is_no_longer_held_back_is_more(
    before: dict[str, object], now: dict[str, object], new: tuple[str, ...]
) -> None:
    was = extent_of(agent(**{"permissions": SHELL, **OPEN, **before}), {})
    told = grown(was, extent_of(agent(**{"permissions": SHELL, **OPEN, **now}), {}))
    assert len(told) == len(new)
    assert all(part in line for part, line in zip(new, told, strict=True)), told
    nothing = {"permissions": SHELL, **now}  # nothing to be had with it
    assert grown(was, extent_of(agent(**nothing), {})) == ()


def test_rules_of_an_agent_that_works_for_another_count_too() -> None:
    def family(**fields: object) -> dict[str, AgentSpec]:
        kept = {"permissions": SHELL, **OPEN}
        return {
            "a": agent(subagents=["b"]),
            "b": agent("b", allowed_callers=["a"], **kept, **fields),
        }

    before, now = family(approval={"Bash": "ask"}), family()
    told = grown(extent_of(before["a"], before), extent_of(now["a"], now))
    assert told == ("approval: 'Bash' is no longer asked about (through b)",)


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


def test_what_models_are_told_of_tools_is_more_until_it_was_read() -> None:
    def lock_of(**fields: Any) -> ToolLock:
        tool = Pinned.of({"name": "t", "inputSchema": {"type": "object"}, **fields}, TOOL_FIELDS)
        return ToolLock(server="s", protocol="p", tools=(tool,))

    use = {"use": "quiet", "allow": ["t"]}
    quiet = agent(mcp_servers=[use])
    lock, same = lock_of(description="Adds."), lock_of(description="Adds.")
    found = extent_of(quiet, {}, SERVERS, {"quiet": lock})
    (told,) = grown(NOTHING, found)
    assert told.startswith("definitions: 1 tool, as pinned, ")
    assert told.endswith(" (through server quiet)")
    assert grown(found, extent_of(quiet, {}, SERVERS, {"quiet": same})) == ()
    rebuilt = lock.model_copy(update={"image": "another", "server": "s 2"})
    assert grown(found, extent_of(quiet, {}, SERVERS, {"quiet": rebuilt})) == ()
    for other in (lock_of(description="Adds!"), lock_of(description="Adds.", title="x")):
        assert len(grown(found, extent_of(quiet, {}, SERVERS, {"quiet": other}))) == 1
    worker = agent(
        "worker", allowed_callers=["above"], mcp_servers=[{"use": "quiet", "allow": ["t"]}]
    )
    above = agent("above", subagents=["worker"])
    reached = extent_of(above, {"worker": worker}, SERVERS, {"quiet": lock})
    read = {"quiet": definitions_of(SERVERS["quiet"], lock).what}
    assert len(reached.grants) == 1
    assert without_read(reached, read) == NOTHING
    assert without_read(reached, {"quiet": "another"}) == reached
