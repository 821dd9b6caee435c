"""What an agent could reach, and what of it nobody has trusted yet. Pure.

A directory of agents may have come with a repository that a stranger wrote. Its agents run as long
as they want nothing but their model, our image and what the caller shows them; for everything else
a person says once that it may be had, and again when it has become more.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec, Secret
from orchestrator.domain.outside import OutsideRules
from orchestrator.domain.tool_lock import ToolLock
from orchestrator.domain.tool_server import OAuth, ToolServer
from orchestrator.domain.tool_use import ServerUse
from orchestrator.domain.variables import variables
from orchestrator.domain.words import counted
from orchestrator.outside_access import tool_patterns

EVERY_HOST = "every public host"

USUAL_FOLDER = "agents"
"""Of a project, where its agents are."""

GRANT_CHARS = 300
"""How much of one thing is shown; host names are shorter."""

_IMAGE_NAME = re.compile(r"[\w.:/@-]+", re.ASCII)

GrantKind = Literal[
    "network",
    "private",
    "web search",
    "secret",
    "variable",
    "image",
    "runtime",
    "system calls",
    "workspace",
    "server",
    "tools",
    "definitions",
]

LEADS_OUT = frozenset(("network", "private", "secret"))
"""What `network.deny` limits."""


class Grant(Frozen):
    """One thing that an agent could reach. It is trusted as it is written, or not at all: a name
    is not part of a wildcard, since a proxy of the operator's resolves names that are written out.
    """

    kind: GrantKind
    what: str
    through: str = ""
    """Who has it, if that is not the agent itself: an agent that it may run, or a server of tools
    that it uses."""

    def __str__(self) -> str:
        """A line for a person; what an author has written cannot say anything in it."""
        what = self.what[:GRANT_CHARS] + "…" * (len(self.what) > GRANT_CHARS)
        if self.kind == "image" and not _IMAGE_NAME.fullmatch(self.what):
            what = ascii(what)
        return f"{self.kind}: {what}" + (f" (through {self.through})" if self.through else "")


Hold = Literal["auto", "ask", "ask a person", "deny"]
"""What holds a tool back, the weakest first."""

HOLDS: tuple[Hold, ...] = get_args(Hold)

NO_LONGER: dict[Hold, str] = {
    "ask": "asked about",
    "ask a person": "left to a person",
    "deny": "denied",
}


class ToolRule(Frozen):
    """What an agent.md says of a tool, or of some of its calls."""

    rule: str
    hold: Hold
    through: str = ""

    @property
    def tool(self) -> str:
        return self.rule.partition("(")[0]


class Extent(Frozen):
    """All that an agent could reach beyond its model and what its caller shows it."""

    grants: tuple[Grant, ...] = ()
    denied: tuple[Grant, ...] = ()
    """Hosts that stay closed, and tools, whatever is granted."""
    tools: tuple[ToolRule, ...] = ()
    """What it may do by itself with what is granted, and what not."""


NOTHING = Extent()


class TrustedProject(Frozen):
    """What a person has trusted the agents of one directory with."""

    agents_dir: Path
    """Its real path."""
    inode: int
    """Of the directory that holds it: another one at the same path is another project."""
    made: str = ""
    """Which of all directories that had this number it is; "" where the filesystem does not tell,
    and for what was trusted before that was looked at."""
    own: str = ""
    """The same of agents_dir itself, where only another project would make it anew; "" where a
    checkout of another branch may."""
    at: float
    """When, in seconds since 1970."""
    agents: dict[str, Extent] = {}
    read: dict[str, str] = {}
    """By server: which of its locks a person has read when it was pinned here, as its grant says.
    """


def extent_of(
    agent: AgentSpec,
    others: Mapping[str, AgentSpec],
    servers: Mapping[str, ToolServer] | None = None,
    locks: Mapping[str, ToolLock] | None = None,
) -> Extent:
    """What an agent could reach by itself, through the servers of tools that it uses, and through
    the agents that it may run.
    """
    own = _own_extent(agent, servers or {}, locks or {})
    grants, denied, tools = set(own.grants), set(own.denied), [*own.tools]
    for other in _run_by(agent, others):
        theirs = _own_extent(other, servers or {}, locks or {})
        kept = (grant for grant in theirs.grants if grant.kind != "workspace")
        grants |= {_through(other.name, grant) for grant in kept}
        denied |= {_through(other.name, grant) for grant in theirs.denied}
        tools += [rule.model_copy(update={"through": other.name}) for rule in theirs.tools]
    return Extent(grants=_in_order(grants), denied=_in_order(denied), tools=tuple(tools))


def outside_extent(
    rules: OutsideRules,
    servers: Mapping[str, ToolServer],
    locks: Mapping[str, ToolLock] | None = None,
    *,
    own: bool,
) -> Extent:
    """What agents outside could reach through the servers that they may use. Whether these rules
    are the project's `own`: then what they allow is the project's wish as well.
    """
    grants: set[Grant] = set()
    denied: set[Grant] = set()
    definitions: set[Grant] = set()
    for name, server in servers.items():
        reached, through = tuple(_server_grants(server)), f"server {name}"
        used = {agent: tool_patterns(rules, agent, name) for agent in rules.agents}
        if any(used.values()) and (lock := (locks or {}).get(name)) is not None:
            definitions.add(definitions_of(server, lock))
        if not reached or not any(used.values()):
            continue
        grants |= {_through(through, grant) for grant in reached}
        denied |= {_through(through, grant) for grant in _denied(server)}
        for agent, patterns in used.items() if own else ():
            for to, texts in zip((grants, denied), patterns or ((), ()), strict=True):
                told = (Grant(kind="tools", what=f"{text}, as {agent}") for text in texts)
                to.update(_through(through, grant) for grant in told)
    for caller, agents in rules.callers.items() if own and grants else ():
        grants |= {Grant(kind="tools", what=f"as {each}, by caller {caller}") for each in agents}
    return Extent(grants=_in_order(grants | definitions), denied=_in_order(denied))


def definitions_of(server: ToolServer, lock: ToolLock) -> Grant:
    """That models are told what a lock says of a server's tools: words of its author, which came
    with the project and which a person has to have read.
    """
    words = f"{lock.words_digest} {server.description}"
    digest = hashlib.sha256(words.encode(errors="replace")).hexdigest()[:32]
    what = f"{counted(len(lock.tools), 'tool')}, as pinned, {digest}"
    return Grant(kind="definitions", what=what, through=f"server {server.name}")


def without_read(extent: Extent, read: Mapping[str, str]) -> Extent:
    """The same, without definitions that a person has read: by server, as a grant says it."""

    def is_read(grant: Grant) -> bool:
        server = grant.through.rpartition(", ")[2].removeprefix("server ")
        return grant.kind == "definitions" and read.get(server) == grant.what

    grants = tuple(grant for grant in extent.grants if not is_read(grant))
    return extent.model_copy(update={"grants": grants})


def grown(before: Extent, now: Extent) -> tuple[str, ...]:
    """What an agent could reach now and could not before, a line for each."""
    known, denied = frozenset(before.grants), frozenset(now.denied)
    out = {("network", grant.through) for grant in now.grants if grant.kind in LEADS_OUT}
    out |= {("tools", grant.through) for grant in now.grants if grant.kind == "tools"}
    more = [str(grant) for grant in now.grants if grant not in known]
    gone = [grant for grant in before.denied if grant not in denied]
    freed = [grant for grant in gone if (grant.kind, grant.through) in out]
    told = (*more, *(f"{grant}, which was denied" for grant in freed))
    reaches = any(grant.kind != "definitions" for grant in now.grants)
    return (*told, *(_let_go(before, now) if reaches else ()))


def _let_go(before: Extent, now: Extent) -> Iterator[str]:
    """Calls of tools that were held back, and can be made now with less ado."""
    rules = {(each.through, each.rule): each for each in now.tools}
    for was in before.tools:
        same = rules.get((was.through, was.rule))
        others = [it for it in now.tools if it.through == was.through and _is_of(was.tool, it.tool)]
        now_held = [same] if same is not None else others
        if any(HOLDS.index(each.hold) < HOLDS.index(was.hold) for each in now_held):
            whose = f" (through {was.through})" if was.through else ""
            rule = ascii(was.rule[:GRANT_CHARS])
            yield f"approval: {rule} is no longer {NO_LONGER[was.hold]}{whose}"


def is_below(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a path is one of these folders, or in one. All are real paths."""
    return any(path.is_relative_to(folder) for folder in folders)


def without_writing(extent: Extent) -> Extent:
    """The same, where no workspace outside the project is shown to write."""
    grants = tuple(grant for grant in extent.grants if grant.kind != "workspace")
    return extent.model_copy(update={"grants": grants})


def trust_command(agents_dir: Path) -> str:
    """What to type to look at the agents of this directory and trust them; in that directory, if
    its name could not be shown on one line.
    """
    if not str(agents_dir).isprintable():
        return "orchestrator trust"
    if agents_dir.name == USUAL_FOLDER:
        return shlex.join(("orchestrator", "trust", str(agents_dir.parent)))
    return shlex.join(("orchestrator", "trust", "--agents-dir", str(agents_dir)))


def _own_extent(
    agent: AgentSpec, servers: Mapping[str, ToolServer], locks: Mapping[str, ToolLock]
) -> Extent:
    """What it could reach without other agents."""
    grants, denied = list(_grants(agent)), list(_denied(agent))
    for use in agent.server_uses:
        server, lock = servers.get(use.use), locks.get(use.use)
        if server is not None and lock is not None:
            grants.append(definitions_of(server, lock))
        reached = () if server is None else tuple(_server_grants(server))
        if server is None or not reached:  # it only computes, in a container without a network
            continue
        name = f"server {use.use}"
        tools = (*reached, *(Grant(kind="tools", what=pattern) for pattern in use.allow))
        grants += [_through(name, grant) for grant in tools]
        denied += [_through(name, grant) for grant in (*_denied(server), *_held_back(use))]
    return Extent(grants=tuple(grants), denied=tuple(denied), tools=tuple(_tools(agent)))


def _through(name: str, grant: Grant) -> Grant:
    further = f", {grant.through}" if grant.through else ""
    return grant.model_copy(update={"through": name + further})


def server_extent(server: ToolServer) -> tuple[Grant, ...]:
    """What a server could reach, as it stands in the extent of an agent that uses it."""
    return tuple(_through(f"server {server.name}", grant) for grant in _server_grants(server))


def _server_grants(server: ToolServer) -> Iterator[Grant]:
    yield from _grants_of_any(server)
    if server.url is None:
        return
    yield Grant(kind="server", what=server.url)
    for name in server.secret_names:
        yield Grant(kind="secret", what=f"{name} to {server.url}")
    if isinstance(server.auth, OAuth):
        yield Grant(kind="secret", what=f"tokens of your login to {server.url}")


def _held_back(use: ServerUse) -> Iterator[Grant]:
    """What of a server's tools an agent cannot do: without that line it could do more."""
    for pattern in use.deny:
        yield Grant(kind="tools", what=pattern)
    for pattern, verdict in use.approve.items():
        if verdict != "auto":
            yield Grant(kind="tools", what=f"{pattern} without approval")
    for pattern, values in use.arguments.items():
        for argument, value in values.items():
            other = f"{pattern} with another {argument!a} than {value!a}"
            yield Grant(kind="tools", what=other)


def _grants(agent: AgentSpec) -> Iterator[Grant]:
    yield from _grants_of_any(agent)
    if agent.searches_web:
        yield Grant(kind="web search", what="by the model API, which sends what is searched for")
    if agent.workspace.mode == "rw":
        yield Grant(kind="workspace", what="written to, also outside the project")


def _grants_of_any(agent: AgentSpec | ToolServer) -> Iterator[Grant]:
    """What a container could reach, whoever is in it."""
    network = agent.network
    if network.mode == "open":
        yield Grant(kind="network", what=EVERY_HOST)
    for host in network.allow:
        yield Grant(kind="network", what=host)
    for host in network.allow_private:
        yield Grant(kind="private", what=host)
    for secret in agent.secrets:
        yield from (Grant(kind="secret", what=use) for use in _uses(secret))
    for name in (name for _, text in agent.templates for name in variables(text)):
        yield Grant(kind="variable", what=name)
    if agent.image is not None:
        yield Grant(kind="image", what=agent.image)
    if agent.runtime is not None:
        yield Grant(kind="runtime", what=agent.runtime)
    if agent.seccomp != "strict":
        yield Grant(kind="system calls", what="the engine's own choice")


def _uses(secret: Secret) -> Iterator[str]:
    """Where it goes: to each of its hosts, by each of its methods, at each of its paths. Not one
    line for each combination: an author could write millions of them.
    """
    if secret.expose is not None:
        yield f"{secret.name} enters the container"
        return
    user = f" of {secret.username}" if secret.scheme == "basic" else ""
    yield f"{secret.name} as {secret.header}, {secret.scheme}{user}"
    for word, values in (("to", secret.hosts), ("by", secret.methods), ("at", secret.paths)):
        yield from (f"{secret.name} {word} {value}" for value in values)
    yield from (f"{secret.name} with the header {name}" for name in secret.headers)


def _tools(agent: AgentSpec) -> Iterator[ToolRule]:
    """Each rule with what holds it back; of two for the same, the stronger one."""
    ask: Hold = "ask a person" if agent.approval_by == "user" else "ask"
    holds: dict[str, Hold] = dict.fromkeys(agent.permissions.allow, "auto")
    for rule in (f"mcp__{server.name}" for server in agent.mcp_servers):
        if not any(_is_of(named.partition("(")[0], rule) for named in agent.permissions.allow):
            holds[rule] = "auto"  # a server of which no tool is named is allowed as a whole
    holds |= dict.fromkeys(agent.ask_rules, ask)
    holds |= dict.fromkeys(agent.deny_rules, "deny")
    return (ToolRule(rule=rule, hold=hold) for rule, hold in holds.items())


def _is_of(tool: str, rule: str) -> bool:
    """Whether a tool is the one of a rule, or one of its MCP server's."""
    return tool == rule or tool.startswith(f"{rule}__")


def _denied(agent: AgentSpec | ToolServer) -> Iterator[Grant]:
    return (Grant(kind="network", what=host) for host in agent.network.deny)


def _run_by(agent: AgentSpec, others: Mapping[str, AgentSpec]) -> Iterator[AgentSpec]:
    """The agents that work for it: those that it may run, those that they may, and so on."""
    seen, ahead = {agent.name}, [agent]
    while ahead:
        parent = ahead.pop()
        for name in parent.subagents:
            other = others.get(name)
            if other is not None and name not in seen and parent.name in other.allowed_callers:
                seen.add(name)
                ahead.append(other)
                yield other


def _in_order(grants: Iterable[Grant]) -> tuple[Grant, ...]:
    return tuple(sorted(grants, key=lambda grant: (grant.through, grant.kind, grant.what)))
