"""May this agent have what it wants? One rule, asked whenever a container is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.outside import OutsideRules
from orchestrator.domain.tool_lock import ToolLock
from orchestrator.domain.tool_server import ToolServer
from orchestrator.errors import NotTrusted, OperatorError
from orchestrator.store.trust_book import TrustBook, which_project
from orchestrator.trust import (
    NOTHING,
    USUAL_FOLDER,
    Extent,
    definitions_of,
    extent_of,
    grown,
    is_below,
    outside_extent,
    server_extent,
    trust_command,
    without_read,
    without_writing,
)

if TYPE_CHECKING:
    from orchestrator.catalog import (  # which loads the reader of YAML, for `runs` too
        Catalog,
        KnownServer,
    )

AGENTS_OUTSIDE = "agents outside"
"""Their name among those of agents, which have no blank in theirs."""

WANTS_SHOWN = 6
"""How much of what an agent wants a refusal names."""


class ProjectTrust:
    """The trust in one directory of agents. Blocks: it looks at the disk."""

    def __init__(
        self,
        book: TrustBook,
        agents_dir: Path,
        always: Sequence[Path] = (),
        rules: Callable[[], OutsideRules | None] = lambda: None,
        rules_are_own: bool = False,
    ) -> None:
        """`rules` are those for agents outside, if there are any."""
        self.book = book
        self._read_rules = rules
        self._rules_are_own = rules_are_own
        self._named = agents_dir
        self.always = tuple(real for folder in always if (real := _real(folder)) is not None)
        """The operator's own: what is below them is trusted with everything."""

    @property
    def agents_dir(self) -> Path:
        """Where the agents are now: a link may lead elsewhere by then."""
        real = _real(self._named)
        if real is None:
            raise OperatorError(
                f"{self._named} is a link to a place that is not there; mend it, or remove it"
            )
        return real

    @property
    def project(self) -> Path:
        return self.agents_dir.parent

    @property
    def _shown(self) -> str:
        """On one line: a repository may have directories with any name."""
        path = str(self.project)
        return path if path.isprintable() else ascii(path)

    @property
    def is_set(self) -> bool:
        """Whether a setting of the operator's trusts all of it."""
        return is_below(self.agents_dir, self.always)

    def check(
        self, agent: AgentSpec, others: Catalog, workspace: Path | None = None
    ) -> Path | None:
        """NotTrusted if the agent wants what nobody has trusted it with. Else where alone it may
        write to a workspace, which may have become a link by the time it is mounted; None is
        anywhere.
        """
        wants = self.wants(agent, others, workspace)
        if not wants:
            return self.project if self._new(agent, extent_in(agent, others)) else None
        more = f"; and {len(wants) - WANTS_SHOWN} more" * (len(wants) > WANTS_SHOWN)
        raise NotTrusted(
            f"agent {agent.name!r} does not run: {self._shown} is not trusted with what it "
            f"wants ({'; '.join(wants[:WANTS_SHOWN])}{more}); a person looks at it and agrees "
            f"with: {trust_command(self.agents_dir)}"
        )

    def wants(
        self, agent: AgentSpec, others: Catalog, workspace: Path | None = None
    ) -> tuple[str, ...]:
        """What the agent could reach, and nobody has trusted it with; on this workspace."""
        return self._new(agent, self.extent(agent, others, workspace))

    def extent(self, agent: AgentSpec, others: Catalog, workspace: Path | None = None) -> Extent:
        """What the agent could reach on this workspace. Writing to the project itself is free, if
        it has its agents in agents/: a repository can also say that they are in `..`, and would
        have all that lies beside it for a project.
        """
        found = extent_in(agent, others)
        if workspace is None:
            return without_writing(found)
        usual, real = self.agents_dir.name == USUAL_FOLDER, _real(workspace)
        inside = usual and real is not None and is_below(real, (self.project,))
        return without_writing(found) if inside else found

    def check_server(self, server: ToolServer) -> None:
        """NotTrusted if a server could reach what no agent that uses it is trusted with."""
        wants = self.server_wants(server)
        if wants:
            raise NotTrusted(
                f"the server {server.name!r} is not started: {self._shown} is not trusted with "
                f"what it wants ({'; '.join(wants[:WANTS_SHOWN])}); if you agree to that, call "
                "this again with --yes, or trust an agent that uses it (`orchestrator trust`)"
            )

    def server_wants(self, server: ToolServer) -> tuple[str, ...]:
        """What a server could reach, and no agent that uses it is trusted with; a line each."""
        if self.is_set:
            return ()
        known = {grant for extent in self._trusted().values() for grant in extent.grants}
        return tuple(str(grant) for grant in server_extent(server) if grant not in known)

    def note_read(self, server: ToolServer, lock: ToolLock) -> None:
        """A person has read, here and now, what models are told of a server's tools."""
        grant = definitions_of(server, lock)
        kept = self._read()
        if kept.get(server.name) != grant.what:
            self._keep(self._trusted(), {**kept, server.name: grant.what})

    def has_read(self, server: ToolServer, lock: ToolLock) -> bool:
        """Whether that need not be asked of a person again."""
        return self.is_set or self._read().get(server.name) == definitions_of(server, lock).what

    def check_outside(self, known: KnownServer, rules: OutsideRules) -> None:
        """NotTrusted if agents outside would reach through a server, by these rules, what no
        person has trusted them with, or would be told of tools what no person has read.
        """
        if self.is_set:
            return
        server, trusted = known.server, self._trusted()
        granted = [grant for extent in trusted.values() for grant in extent.grants]
        before = trusted.get(AGENTS_OUTSIDE, NOTHING)
        before = before.model_copy(update={"grants": (*before.grants, *granted)})
        locks = {} if known.lock is None else {server.name: known.lock}
        now = outside_extent(rules, {server.name: server}, locks, own=self._rules_are_own)
        now = without_read(now, self._read())
        through = f"server {server.name}"
        denied = tuple(grant for grant in before.denied if grant.through == through)
        wants = grown(before.model_copy(update={"denied": denied}), now)
        if wants:
            raise NotTrusted(
                f"the server {server.name!r} is not for agents outside yet: "
                f"{self._shown} is not trusted with what they could do with it "
                f"({'; '.join(wants[:WANTS_SHOWN])}); a person looks at it and agrees with: "
                f"{trust_command(self.agents_dir)}"
            )

    def extents(self, catalog: Catalog) -> dict[str, Extent]:
        """What each agent could reach, and agents outside if there are rules for them."""
        found = {name: extent_in(agent, catalog) for name, agent in catalog.agents.items()}
        if self._rules is None:
            return found
        servers, locks = _servers_in(catalog)
        outside = outside_extent(self._rules, servers, locks, own=self._rules_are_own)
        return {**found, AGENTS_OUTSIDE: outside} if outside.grants else found

    @cached_property
    def _rules(self) -> OutsideRules | None:
        """Read once: what a person is shown is what is trusted."""
        return self._read_rules()

    def growth(self, catalog: Catalog) -> dict[str, tuple[str, ...]]:
        """What is to be trusted, by agent; those that want nothing new are not in it."""
        if self.is_set:
            return {}
        trusted, read = self._trusted(), self._read()
        found = {
            name: grown(trusted.get(name, NOTHING), without_read(extent, read))
            for name, extent in self.extents(catalog).items()
        }
        return {name: more for name, more in found.items() if more}

    def trust(self, catalog: Catalog) -> None:
        """Trust these agents with what they could reach as they are here, and with no more."""
        self._keep(self.extents(catalog))

    def trust_also(self, agent: AgentSpec, catalog: Catalog) -> None:
        """Trust one agent more with what it could reach; of the others nothing changes."""
        self._keep({**self._trusted(), agent.name: extent_in(agent, catalog)})

    def _keep(self, extents: Mapping[str, Extent], read: Mapping[str, str] | None = None) -> None:
        wanting = {name: extent for name, extent in extents.items() if extent.grants}
        kept = self._read() if read is None else read
        self.book.keep(which_project(self.agents_dir).trusted_with(wanting, kept))

    def _new(self, agent: AgentSpec, now: Extent) -> tuple[str, ...]:
        if not now.grants or self.is_set:
            return ()
        known = self._trusted().get(agent.name, NOTHING)
        return grown(known, without_read(now, self._read()))

    def _trusted(self) -> Mapping[str, Extent]:
        found = self.book.of(self.agents_dir)
        return {} if found is None else found.agents

    def _read(self) -> Mapping[str, str]:
        """By server: which definitions were read when it was pinned here."""
        found = self.book.of(self.agents_dir)
        return {} if found is None else found.read


def extent_in(agent: AgentSpec, catalog: Catalog) -> Extent:
    """What an agent could reach with the agents and the servers beside it."""
    return extent_of(agent, catalog.agents, *_servers_in(catalog))


def _servers_in(catalog: Catalog) -> tuple[dict[str, ToolServer], dict[str, ToolLock]]:
    known = catalog.servers
    locks = {name: each.lock for name, each in known.items() if each.lock is not None}
    return {name: each.server for name, each in known.items()}, locks


def _real(path: Path) -> Path | None:
    """Links resolved; None for a loop of links, or for one that has just been exchanged."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return None
