"""AgentSpec + Task -> ContainerSpec + Launch. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator import output
from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec, McpServer
from orchestrator.domain.container import (
    HOME,
    MIB,
    MODEL_URL,
    WORKSPACE,
    Bind,
    ContainerSpec,
    Launch,
    Limits,
    Tmpfs,
    User,
)
from orchestrator.domain.task import Task
from orchestrator.domain.variables import expand, variables
from orchestrator.errors import MountRefused
from orchestrator.runners import claude

SHM_BYTES = 64 * MIB

GRACE_SECONDS = 60.0
"""What the container outlives the run's own deadline by: the warden's clock is the last resort."""


class Place(Frozen):
    """Facts about this machine that a plan needs, looked up by whoever asks for one."""

    image: str
    """What an agent runs in that names no image of its own."""
    workspace_owner: User | None = None
    """Who owns the workspace; None for root, or without a workspace."""


class Plan(Frozen):
    """Exactly what a run could touch."""

    agent: AgentSpec
    task: Task
    container: ContainerSpec
    launch: Launch
    timeout_seconds: float
    first_message: str

    @property
    def secrets_inside(self) -> tuple[str, ...]:
        """Variables of the orchestrator whose values enter the container, as agent.md says."""
        texts = [*self.agent.env.values()]
        for server in self.agent.mcp_servers:
            texts += [*server.env.values(), *server.args]
        return tuple(sorted({name for text in texts for name in variables(text)}))


def plan(
    agent: AgentSpec, task: Task, place: Place, environ: Mapping[str, str], token: str
) -> Plan:
    """What to make and what to run in it. MountRefused if the workspace cannot be as asked."""
    timeout = min(agent.timeout_ms / 1000, task.timeout_seconds or float("inf"))
    workspace = _workspace(agent, task, place)
    launch = claude.launch(
        _told_the_format(agent),
        base_url=MODEL_URL,
        token=token,
        env={key: expand(value, environ) for key, value in agent.env.items()},
        mcp_servers=[_expanded(server, environ) for server in agent.mcp_servers],
        cwd=WORKSPACE,
    )
    resources = agent.resources
    container = ContainerSpec(
        image=agent.image or place.image,
        user=place.workspace_owner or User(),
        mounts=workspace,
        tmpfs=(
            Tmpfs(target="/tmp", size_bytes=resources.scratch_bytes),  # noqa: S108 inside
            Tmpfs(target=HOME, size_bytes=resources.scratch_bytes),
        ),
        limits=Limits(
            memory_bytes=resources.memory_bytes,
            cpus=resources.cpus,
            pids=resources.pids,
            open_files=resources.open_files,
            shm_bytes=min(SHM_BYTES, resources.scratch_bytes),
        ),
        lifetime_seconds=timeout + GRACE_SECONDS,
    )
    return Plan(
        agent=agent,
        task=task,
        container=container,
        launch=launch,
        timeout_seconds=timeout,
        first_message=task.message,
    )


def _told_the_format(agent: AgentSpec) -> AgentSpec:
    if agent.output_format == "text":
        return agent
    told = f"{agent.prompt}\n\n{output.instruction(agent.output_schema)}".strip()
    return agent.model_copy(update={"prompt": told})


def _workspace(agent: AgentSpec, task: Task, place: Place) -> tuple[Bind, ...]:
    if task.workspace is None:
        return ()
    if agent.workspace == "none":
        raise MountRefused(f"agent {agent.name!r} takes no workspace; call it without one")
    if agent.workspace == "rw" and place.workspace_owner is None:
        raise MountRefused(
            f"{task.workspace} belongs to root, and an agent is never root, so it could not write "
            "there; give the directory to a user, or use `workspace: ro`"
        )
    return (Bind(source=str(task.workspace), read_only=agent.workspace == "ro"),)


def _expanded(server: McpServer, environ: Mapping[str, str]) -> McpServer:
    return server.model_copy(
        update={
            "args": tuple(expand(arg, environ) for arg in server.args),
            "env": {key: expand(value, environ) for key, value in server.env.items()},
        }
    )
