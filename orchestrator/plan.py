"""AgentSpec + Task -> ContainerSpec + Launch. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator import output, surroundings
from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec, McpServer
from orchestrator.domain.container import (
    HOME,
    MODEL_URL,
    PARENT_URL,
    WORKSPACE,
    Bind,
    ContainerSpec,
    Cover,
    Launch,
    Limits,
    Mount,
    Tmpfs,
    User,
    Volume,
)
from orchestrator.domain.task import Task
from orchestrator.domain.variables import expand, needed, variables
from orchestrator.errors import MountRefused
from orchestrator.runners.claude import launch as claude_launch
from orchestrator.workspace.transfer import COLLECT_SECONDS

OUTLIVE_SECONDS = 60.0
"""What the container outlives the run's own deadline by: the warden's clock is the last resort."""

WAITING_SECONDS = 3600.0
"""What a spare's container may wait for a run besides."""

KEPT_SECONDS = 30 * 86400.0
"""The same for a container that stays between calls; it is stopped long before."""

STAND_IN_TOKEN = "<a token for one run>"  # noqa: S105 what is shown in its place
"""In a plan that no run has begun yet: each container gets a random token for the model."""

STAND_IN_CONVERSATION = "00000000-0000-0000-0000-000000000000"
"""The same for the id of a session's conversation, which the CLI wants to be a UUID."""

STAND_IN_RUN = "<the run's id>"

TMP = "/tmp"  # noqa: S108 inside the container


class Place(Frozen):
    """Facts about this machine that a plan needs; the planner looks them up."""

    image: str
    """What an agent runs in that names no image of its own."""
    workspace_owner: User | None = None
    """Who owns the workspace; None for root, or without a workspace."""
    workspace: Bind | None = None
    """The workspace as it was judged, if it is mounted; None if it is on another machine."""
    git_mounts: tuple[Bind, ...] = ()
    """What git needs of the workspace besides, and what of it no agent may write."""
    covers: tuple[Cover, ...] = ()
    """What of it no agent may reach."""
    write_within: Path | None = None
    """Where alone the agent may be shown a workspace to write; None is anywhere."""
    ca_certificates: str = ""
    """Certificates that this machine trusts besides the usual ones, as PEM text."""
    seccomp: str | None = None
    """The strict profile; None where the engine takes none of ours."""


class Plan(Frozen):
    """Exactly what a run could touch."""

    agent: AgentSpec
    task: Task
    container: ContainerSpec
    launch: Launch
    timeout_seconds: float
    first_message: str

    @property
    def copied_workspace(self) -> Path | None:
        """The caller's directory, if the agent gets a copy of it to be read back."""
        return self.task.workspace if self.agent.workspace.mode == "copy" else None

    @property
    def secrets_inside(self) -> tuple[str, ...]:
        """Variables of the orchestrator whose values enter the container, as agent.md says."""
        return tuple(sorted({name for name, _ in variables_inside(self.agent)}))


def plan(
    agent: AgentSpec,
    task: Task,
    place: Place,
    environ: Mapping[str, str],
    token: str,
    exposed: Mapping[str, str] | None = None,
    *,
    memory: str = "",
    conversation: str = "",
    resume: bool = False,
) -> Plan:
    """What to make and what to run in it. MountRefused if the workspace cannot be as asked.

    `exposed` are the secrets that agent.md lets into the container, by their names; `memory` is
    what the agent is told of earlier days, `conversation` the one to begin or to take up again.
    """
    timeout = min(agent.timeout_ms / 1000, task.timeout_seconds or float("inf"))
    values = exposed or {}
    env = {key: expand(value, environ) for key, value in agent.env.items()}
    env |= {s.variable_name: values[s.name] for s in agent.secrets if s.expose == "env"}
    launch = claude_launch.launch(
        _told(agent),
        base_url=MODEL_URL,
        token=token,
        env=env,
        mcp_servers=[_expanded(server, environ) for server in agent.mcp_servers],
        cwd=WORKSPACE,
        session_id=conversation if conversation and not resume else None,
        resume=conversation if resume else None,
        memory=memory,
        parent_url=PARENT_URL if agent.parent_tools else None,
        ask_rules=agent.ask_rules,
        approvals=bool(agent.ask_rules),
        surroundings=surroundings.variables(agent, place.ca_certificates),
        files=surroundings.files(agent, place.ca_certificates),
    )
    resources = agent.resources
    container = ContainerSpec(
        image=agent.image or place.image,
        user=_user(agent, task, place),
        mounts=_mounts(agent, task, place),
        tmpfs=tuple(
            Tmpfs(target=target, size_bytes=resources.scratch_bytes)
            for target in (TMP, *(() if agent.session.keep else (HOME,)))
        ),
        limits=Limits(
            memory_bytes=resources.memory_bytes,
            cpus=resources.cpus,
            pids=resources.pids,
            open_files=resources.open_files,
            shm_bytes=resources.shm_bytes,
        ),
        oci_runtime=agent.runtime,
        seccomp=place.seccomp if agent.seccomp == "strict" else None,
        lifetime_seconds=_lifetime(agent, timeout),
    )
    return Plan(
        agent=agent,
        task=task,
        container=container,
        launch=launch,
        timeout_seconds=timeout,
        first_message=task.message,
    )


def variables_inside(agent: AgentSpec) -> tuple[tuple[str, str], ...]:
    """Variables of the orchestrator that enter the container, and as what."""
    return tuple((name, place) for place, text in agent.templates for name in variables(text))


def shown_variables(
    agent: AgentSpec, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What to fill in instead of values in a plan that is only shown, and which variables a run
    would miss. An empty value is no secret, and has a default stand in for it.
    """
    texts = [text for _, text in agent.templates]
    used = {name for text in texts for name in variables(text)}
    unset = {name for text in texts for name in needed(text) if name not in environ}
    shown = {name: f"<{name}>" if environ[name] else "" for name in used if name in environ}
    shown |= {name: f"<{name}, which is not set>" for name in unset}
    return shown, tuple(sorted(unset))


def _lifetime(agent: AgentSpec, timeout: float) -> float:
    if agent.session.keep:
        return KEPT_SECONDS
    waiting = WAITING_SECONDS if agent.warm else 0.0
    waiting += agent.ask.patience_seconds if agent.may_wait else 0.0
    waiting += COLLECT_SECONDS if agent.workspace.mode == "copy" else 0.0
    # Of the agent's time, not of the task's: a spare is made before a task asks for less.
    mine = agent.timeout_ms / 1000 if agent.warm else timeout
    return min(KEPT_SECONDS, mine + waiting + OUTLIVE_SECONDS)


def _told(agent: AgentSpec) -> AgentSpec:
    """The agent, with a prompt that also says what it can reach and how to answer."""
    parts = [agent.prompt, surroundings.briefing(agent)]
    if agent.output_format == "json":
        parts.append(output.instruction(agent.output_schema))
    return agent.model_copy(
        update={
            "prompt": "\n\n".join(filter(None, parts)).strip(),
            "permissions": agent.permissions.model_copy(update={"deny": agent.deny_rules}),
        }
    )


def _user(agent: AgentSpec, task: Task, place: Place) -> User:
    """The owner of the directory that the agent sees; of a copy, the agent itself."""
    if task.workspace is None or agent.workspace.mode == "copy":
        return User()
    return place.workspace_owner or User()


def _mounts(agent: AgentSpec, task: Task, place: Place) -> tuple[Mount, ...]:
    """The workspace, and of a session agent what has to be there the next time."""
    shown = _workspace(agent, task, place)
    if not agent.session.keep:
        return shown
    return (*(shown or (Volume(target=WORKSPACE),)), Volume(target=HOME))


def _workspace(agent: AgentSpec, task: Task, place: Place) -> tuple[Mount, ...]:
    mode = agent.workspace.mode
    if task.workspace is None:
        return ()
    if mode == "none":
        raise MountRefused(f"agent {agent.name!r} takes no workspace; call it without one")
    if mode == "copy":
        return (Volume(target=WORKSPACE),)
    if mode == "rw" and place.workspace_owner is None:
        raise MountRefused(
            f"{task.workspace} belongs to root, and an agent is never root, so it could not write "
            "there; give the directory to a user, or use `workspace: copy`"
        )
    within = str(place.write_within or "") if mode == "rw" else ""
    shown = place.workspace or Bind(source=str(task.workspace), read_only=mode == "ro")
    shown = shown.model_copy(update={"within": within})
    return (shown, *place.git_mounts, *place.covers)


def _expanded(server: McpServer, environ: Mapping[str, str]) -> McpServer:
    return server.model_copy(
        update={
            "args": tuple(expand(arg, environ) for arg in server.args),
            "env": {key: expand(value, environ) for key, value in server.env.items()},
        }
    )
