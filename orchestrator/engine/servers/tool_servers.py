"""Servers of tools for runs: which an agent uses, who shares an instance, and what is noted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

import anyio

from orchestrator.catalog import Catalog
from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Launch
from orchestrator.domain.tool_lock import Brokered
from orchestrator.domain.tool_server import ToolServer
from orchestrator.domain.words import counted
from orchestrator.engine.live import LiveRun
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Record
from orchestrator.engine.servers.opening import ServerOpener
from orchestrator.engine.stage import Stage
from orchestrator.errors import (
    AgentInvalid,
    OrchestratorError,
    ServerNotPinned,
    SpawnFailed,
    WireLost,
)
from orchestrator.gateway.elsewhere import end_idle_workers
from orchestrator.gateway.tools.access import RunTools, ToolSeen
from orchestrator.gateway.tools.pool import ServerPool, Sharers
from orchestrator.tool_rules import held_to


def brokered_of(agent: AgentSpec, catalog: Catalog) -> tuple[Brokered, ...]:
    """The servers that an agent uses; an error that says what to do, if one cannot be used."""
    found = []
    for use in agent.server_uses:
        try:
            known = catalog.server(use.use)
        except OrchestratorError as exc:
            raise AgentInvalid(f"agent {agent.name!r} uses a server: {exc}") from exc
        if known.lock is None:
            why = "; ".join(map(str, known.problems)) or "no person has read what its tools are"
            raise ServerNotPinned(
                f"agent {agent.name!r} uses the server {use.use!r}, which cannot be used: {why}; "
                f"look at it with: orchestrator servers pin {use.use}"
            )
        held = held_to(use, known.lock, agent.deny_rules, agent.ask_rules)
        found.append(Brokered(use=held, server=known.server, lock=known.lock))
    return tuple(found)


class ToolServers:
    """All servers of tools that this process has started, for the runs of one project."""

    def __init__(self, opener: ServerOpener, project: str = "") -> None:
        self._project = project
        self.pool = ServerPool(opener.open)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.aclose()
        await end_idle_workers()

    def bind(self, stage: Stage, prepared: Prepared, live: LiveRun) -> None:
        """Open a container's servers to one run."""
        if not prepared.brokered:
            return
        record = live.record
        asks = prepared.agent.ask.whom != "nobody"
        scopes = {each.name: self._scope(each.server, prepared) for each in prepared.brokered}
        stage.reach.tools.bind(
            RunTools(
                run_id=prepared.task.run_id,
                pool=self.pool,
                scopes=scopes,
                on_tools=_OnTools(live),
                approve=live.desk.approve,
                ask=live.desk.ask if asks else None,
                cleaned=record.cleaned,
                spill=partial(_spill, stage.container),
                decided=record.decided,
                at_work=live.clock.at_work,
                know=_Known(record).know,
            )
        )

    @asynccontextmanager
    async def ended_with(self, prepared: Prepared) -> AsyncIterator[None]:
        """When the block ends, so do the instances that are this run's alone."""
        try:
            yield
        finally:
            if prepared.brokered:
                with anyio.CancelScope(shield=True):  # bounded
                    await self.pool.end(Sharers("run", prepared.task.run_id))

    def _scope(self, server: ToolServer, prepared: Prepared) -> Sharers:
        if server.share == "project":
            return Sharers("project", self._project)
        if server.share == "session" and prepared.agent.session.keep:
            return Sharers("session", prepared.session.text)
        return Sharers("run", prepared.task.run_id)


class _OnTools:
    """OnTools (gateway/tools/access.py): into the run's record."""

    def __init__(self, live: LiveRun) -> None:
        self._live = live

    def called(self, seen: ToolSeen) -> None:
        name = f"{seen.server}/{seen.tool}"
        record = self._live.record
        if seen.allowed:
            how = f": {seen.why}" if seen.why else ", with an error" if seen.is_error else ""
            record.note("server_call", f"{name}{how}", **seen.model_dump())
        else:
            record.note("server_denied", f"{name}: {seen.why}", **seen.model_dump())

    def drifted(self, server: str, changed: Sequence[str], new: Sequence[str]) -> None:
        said = [f"{', '.join(changed)}: not as pinned, and refused"] if changed else []
        # Not their names: no person has read them, and the caller's model reads this.
        said += [f"{counted(len(new), 'tool')} more, not offered"] if new else []
        said += [f"see: orchestrator servers diff {server}"] if said else ["all as pinned again"]
        text = f"server {server}: {'; '.join(said)}"
        data = {"server": server, "changed": list(changed), "new": len(new)}
        self._live.record.note("warning", text, **data)


class _Known:
    """Has a record hide what servers know; each of it once, since that takes milliseconds."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._secrets: set[str] = set()

    def know(self, secrets: Sequence[str]) -> None:
        new = [secret for secret in secrets if secret and secret not in self._secrets]
        if new:
            self._record.add_secrets(new)
            self._secrets.update(new)


async def _spill(container: Container, path: str, data: bytes) -> str:
    """Write a file into an agent's container, as the agent."""
    launch = Launch(argv=("dd", f"of={path}", "status=none"))
    try:
        done = await container.run(launch, data)
    except (SpawnFailed, WireLost) as exc:
        return str(exc)
    return "the disk may be full" if done.code else ""
