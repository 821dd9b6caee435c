"""What an agent could reach, and what of it nobody has trusted yet. Pure.

A directory of agents may have come with a repository that a stranger wrote. Its agents run as long
as they want nothing but their model, our image and what the caller shows them; for everything else
a person says once that it may be had, and again when it has become more.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec, Secret
from orchestrator.domain.variables import variables

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
    """The agent that has it, if that is one which this agent may run."""

    def __str__(self) -> str:
        """A line for a person; what an author has written cannot say anything in it."""
        what = self.what[:GRANT_CHARS] + "…" * (len(self.what) > GRANT_CHARS)
        if self.kind == "image" and not _IMAGE_NAME.fullmatch(self.what):
            what = ascii(what)
        return f"{self.kind}: {what}" + (f" (through {self.through})" if self.through else "")


class Extent(Frozen):
    """All that an agent could reach beyond its model and what its caller shows it."""

    grants: tuple[Grant, ...] = ()
    denied: tuple[Grant, ...] = ()
    """Hosts that stay closed, whatever is granted."""


NOTHING = Extent()


class TrustedProject(Frozen):
    """What a person has trusted the agents of one directory with."""

    agents_dir: Path
    """Its real path."""
    inode: int
    """Of the directory that holds it: another one at the same path is another project."""
    at: float
    """When, in seconds since 1970."""
    agents: dict[str, Extent] = {}


def extent_of(agent: AgentSpec, others: Mapping[str, AgentSpec]) -> Extent:
    """What an agent could reach by itself, and through the agents that it may run."""
    grants, denied = set(_grants(agent)), set(_denied(agent))
    for other in _run_by(agent, others):
        through = {"through": other.name}
        theirs = [grant for grant in _grants(other) if grant.kind != "workspace"]
        grants |= {grant.model_copy(update=through) for grant in theirs}
        denied |= {grant.model_copy(update=through) for grant in _denied(other)}
    return Extent(grants=_in_order(grants), denied=_in_order(denied))


def grown(before: Extent, now: Extent) -> tuple[str, ...]:
    """What an agent could reach now and could not before, a line for each."""
    known, denied = frozenset(before.grants), frozenset(now.denied)
    out = {grant.through for grant in now.grants if grant.kind in LEADS_OUT}
    more = [str(grant) for grant in now.grants if grant not in known]
    freed = [grant for grant in before.denied if grant not in denied and grant.through in out]
    return (*more, *(f"{grant}, which was denied" for grant in freed))


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


def _grants(agent: AgentSpec) -> Iterator[Grant]:
    network = agent.network
    if network.mode == "open":
        yield Grant(kind="network", what=EVERY_HOST)
    for host in network.allow:
        yield Grant(kind="network", what=host)
    for host in network.allow_private:
        yield Grant(kind="private", what=host)
    if agent.searches_web:
        yield Grant(kind="web search", what="by the model API, which sends what is searched for")
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
    if agent.workspace.mode == "rw":
        yield Grant(kind="workspace", what="written to, also outside the project")


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


def _denied(agent: AgentSpec) -> Iterator[Grant]:
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
