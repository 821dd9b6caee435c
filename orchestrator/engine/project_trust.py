"""May this agent have what it wants? One rule, asked whenever a container is planned."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.domain.agent import AgentSpec
from orchestrator.errors import NotTrusted, OperatorError
from orchestrator.store.trust_book import TrustBook, inode
from orchestrator.trust import (
    NOTHING,
    USUAL_FOLDER,
    Extent,
    TrustedProject,
    extent_of,
    grown,
    is_below,
    trust_command,
    without_writing,
)

WANTS_SHOWN = 6
"""How much of what an agent wants a refusal names."""

Agents = Mapping[str, AgentSpec]


class ProjectTrust:
    """The trust in one directory of agents. Blocks: it looks at the disk."""

    def __init__(self, book: TrustBook, agents_dir: Path, always: Sequence[Path] = ()) -> None:
        self.book = book
        self._named = agents_dir
        self.always = tuple(real for folder in always if (real := _real(folder)) is not None)
        """The operator's own: what is below them is trusted with everything."""

    @property
    def agents_dir(self) -> Path:
        """Where the agents are now: a link may lead elsewhere by then."""
        real = _real(self._named)
        if real is None:
            raise OperatorError(f"{self._named} leads nowhere, by a link; mend or remove that")
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

    def check(self, agent: AgentSpec, others: Agents, workspace: Path | None = None) -> Path | None:
        """NotTrusted if the agent wants what nobody has trusted it with. Else where alone it may
        write to a workspace, which may have become a link by the time it is mounted; None is
        anywhere.
        """
        wants = self.wants(agent, others, workspace)
        if not wants:
            return self.project if self._new(agent, extent_of(agent, others)) else None
        more = f"; and {len(wants) - WANTS_SHOWN} more" * (len(wants) > WANTS_SHOWN)
        raise NotTrusted(
            f"agent {agent.name!r} does not run: nobody has trusted {self._shown} with what it "
            f"wants ({'; '.join(wants[:WANTS_SHOWN])}{more}); a person looks at it and agrees "
            f"with: {trust_command(self.agents_dir)}"
        )

    def wants(
        self, agent: AgentSpec, others: Agents, workspace: Path | None = None
    ) -> tuple[str, ...]:
        """What the agent could reach, and nobody has trusted it with; on this workspace."""
        return self._new(agent, self.extent(agent, others, workspace))

    def extent(self, agent: AgentSpec, others: Agents, workspace: Path | None = None) -> Extent:
        """What the agent could reach on this workspace. Writing to the project itself is free, if
        it has its agents in agents/: a repository can also say that they are in `..`, and would
        have all that lies beside it for a project.
        """
        found = extent_of(agent, others)
        if workspace is None:
            return without_writing(found)
        usual, real = self.agents_dir.name == USUAL_FOLDER, _real(workspace)
        inside = usual and real is not None and is_below(real, (self.project,))
        return without_writing(found) if inside else found

    def growth(self, agents: Agents) -> dict[str, tuple[str, ...]]:
        """What is to be trusted, by agent; those that want nothing new are not in it."""
        if self.is_set:
            return {}
        trusted = self._trusted()
        found = {
            name: grown(trusted.get(name, NOTHING), extent_of(agent, agents))
            for name, agent in agents.items()
        }
        return {name: more for name, more in found.items() if more}

    def trust(self, agents: Agents) -> None:
        """Trust these agents with what they could reach as they are here, and with no more."""
        extents = {name: extent_of(agent, agents) for name, agent in agents.items()}
        project = TrustedProject(
            agents_dir=self.agents_dir,
            inode=inode(self.agents_dir),
            at=time.time(),
            agents={name: extent for name, extent in extents.items() if extent != NOTHING},
        )
        self.book.keep(project)

    def _new(self, agent: AgentSpec, now: Extent) -> tuple[str, ...]:
        if not now.grants or self.is_set:
            return ()
        return grown(self._trusted().get(agent.name, NOTHING), now)

    def _trusted(self) -> Mapping[str, Extent]:
        found = self.book.of(self.agents_dir)
        return {} if found is None else found.agents


def _real(path: Path) -> Path | None:
    """Links resolved; None for a loop of links, or for one that has just been exchanged."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return None
