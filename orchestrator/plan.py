"""AgentSpec + Task -> ContainerSpec + Launch; and the same of a ToolServer. Pure: the same input
gives the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator import output, surroundings
from orchestrator.domain import Frozen
from orchestrator.domain.agent import EDITING_TOOLS, AgentSpec, McpServer
from orchestrator.domain.container import (
    AGENT_FILES,
    HOME,
    MIB,
    MODEL_URL,
    PARENT_URL,
    TOOLS_URL,
    WORKSPACE,
    Bind,
    ContainerSpec,
    Cover,
    File,
    Launch,
    Limits,
    Mount,
    Tmpfs,
    User,
    Volume,
)
from orchestrator.domain.task import Task
from orchestrator.domain.tool_lock import Brokered, definition_tokens
from orchestrator.domain.tool_server import ToolServer
from orchestrator.domain.variables import expand, needed, variables
from orchestrator.errors import MountRefused
from orchestrator.runners.choice import RunnerWay, ways_of
from orchestrator.runners.contract import LaunchTerms
from orchestrator.runners.known import RUNNERS
from orchestrator.runners.launching import AGENT_PATH
from orchestrator.runners.rule_names import without_brokered_asks
from orchestrator.tool_rules import offered
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

PAGE_BYTES = 4096
"""What a file of memory-backed space takes up at least."""

TMP = "/tmp"  # noqa: S108 inside the container

DEFERRED_TOOLS = 20
DEFERRED_TOKENS = 2500
"""Of servers outside, above which the model is only told what tools there are called, and looks up
those that it wants: a hundred of them are 65 kB in each request, and 7.5 kB so."""

SERVER_FOLDER = f"{HOME}/server"
"""Where a server with files of its own starts."""


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
    agent_files: tuple[File, ...] = ()
    """Of the agent's folder, as agent.md names them."""


class Plan(Frozen):
    """Exactly what a run could touch."""

    agent: AgentSpec
    task: Task
    container: ContainerSpec
    launch: Launch
    way: RunnerWay
    """The runner that was chosen, and the model that it has."""
    timeout_seconds: float
    first_message: str
    agent_files: tuple[File, ...] = ()
    """To be in the container before the launch; root's, so that the agent only reads them."""

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
    way: RunnerWay | None = None,
    brokered: Sequence[Brokered] = (),
    memory: str = "",
    conversation: str = "",
    resume: bool = False,
) -> Plan:
    """What to make and what to run in it. MountRefused if the workspace cannot be as asked.

    `exposed` are the secrets that agent.md lets into the container, by their names; `way` is the
    runner that was chosen; `brokered` are the servers outside that it uses; `memory` is what the
    agent is told of earlier days, `conversation` the one to begin or to take up again.
    """
    way = way or usual_way(agent)
    timeout = min(agent.timeout_ms / 1000, task.timeout_seconds or float("inf"))
    values = exposed or {}
    env = {key: expand(value, environ) for key, value in agent.env.items()}
    env |= {s.variable_name: values[s.name] for s in agent.secrets if s.expose == "env"}
    terms = LaunchTerms(
        base_url=MODEL_URL,
        token=token,
        wire_format=way.wire_format,
        env=env,
        mcp_servers=tuple(_expanded(server, environ) for server in agent.mcp_servers),
        tool_urls={use.use: f"{TOOLS_URL}/{use.use}" for use in agent.server_uses},
        defer_tools=are_deferred(brokered),
        cwd=WORKSPACE,
        conversation=conversation,
        resume=resume,
        memory=memory,
        parent_url=PARENT_URL if agent.parent_tools else None,
        surroundings=surroundings.variables(agent, place.ca_certificates),
        files=surroundings.files(agent, place.ca_certificates),
        more_folders=(AGENT_FILES,) if agent.files else (),
    )
    launch = RUNNERS[way.runner].launch(_told(without_brokered_asks(agent)), terms)
    resources = agent.resources
    container = ContainerSpec(
        image=agent.image or place.image,
        user=_user(agent, task, place),
        mounts=_mounts(agent, task, place),
        tmpfs=tuple(
            Tmpfs(target=target, size_bytes=resources.scratch_bytes)
            for target in (TMP, *(() if agent.session.keep else (HOME,)))
        )
        + _files_tmpfs(place.agent_files),
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
        way=way,
        timeout_seconds=timeout,
        first_message=task.message,
        agent_files=place.agent_files,
    )


def usual_way(agent: AgentSpec) -> RunnerWay:
    """What an agent runs on where the operator says nothing of runners, and lacks nothing."""
    return ways_of(agent, RUNNERS).candidates[0]


def doubts(agent: AgentSpec, task: Task) -> tuple[str, ...]:
    """What of a task is probably not meant, though it can be run."""
    said = []
    own = agent.timeout_ms / 1000
    if task.timeout_seconds is not None and task.timeout_seconds > own and task.depth == 0:
        said.append(
            f"{task.timeout_seconds:g} s were asked for, and the agent's own timeout counts, which "
            f"is {own:g} s; raise timeout_ms in its agent.md"
        )
    tools = {rule.partition("(")[0] for rule in agent.permissions.allow}
    edits = agent.workspace.mode in ("copy", "rw") and bool(tools & EDITING_TOOLS)
    if edits and task.workspace is None and not agent.session.keep:
        said.append(
            "no workspace was named: the agent works in an empty folder, and what it writes there "
            "goes with its container; name a directory with --workspace, or as `workspace` of the "
            "tool"
        )
    return tuple(said)


class ServerPlan(Frozen):
    """Exactly what a server of tools could touch."""

    container: ContainerSpec
    launch: Launch


def plan_server(
    server: ToolServer, place: Place, environ: Mapping[str, str], values: Mapping[str, str]
) -> ServerPlan:
    """What to make for a server, and what to run in it; `values` are its secrets, by their names.

    As locked as an agent's container, and with less in it: no workspace, no model, no caller.
    """
    resources = server.resources
    container = ContainerSpec(
        image=server.image or place.image,
        tmpfs=tuple(
            Tmpfs(target=target, size_bytes=resources.scratch_mb * MIB) for target in (TMP, HOME)
        ),
        limits=Limits(
            memory_bytes=resources.memory_mb * MIB,
            cpus=resources.cpus,
            pids=resources.pids,
            open_files=resources.open_files,
            shm_bytes=resources.shm_bytes,
        ),
        oci_runtime=server.runtime,
        seccomp=place.seccomp if server.seccomp == "strict" else None,
        lifetime_seconds=KEPT_SECONDS,
    )
    own = {"PATH": AGENT_PATH, "HOME": HOME, "LANG": "C.UTF-8", "TMPDIR": TMP}
    env = {key: expand(value, environ) for key, value in server.env.items()}
    env |= {s.variable_name: values[s.name] for s in server.secrets if s.expose == "env"}
    files = tuple(
        File(path=f"{SERVER_FOLDER}/{file.name}", content=file.text.encode(), mode=0o500)
        for file in server.files
    )
    launch = Launch(
        argv=tuple(expand(word, environ) for word in server.command),
        env={**own, **surroundings.variables(server, place.ca_certificates), **env},
        cwd=SERVER_FOLDER if files else HOME,
        files=(*surroundings.files(server, place.ca_certificates), *files),
    )
    return ServerPlan(container=container, launch=launch)


def are_deferred(brokered: Sequence[Brokered]) -> bool:
    """Whether tools of servers outside are so many that a model looks them up."""
    tools = [tool for each in brokered for tool in offered(each.use, each.lock)]
    return len(tools) > DEFERRED_TOOLS or sum(map(definition_tokens, tools)) > DEFERRED_TOKENS


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


def _files_tmpfs(files: tuple[File, ...]) -> tuple[Tmpfs, ...]:
    """Room for the agent's files. Whole pages, and some for their directories."""
    if not files:
        return ()
    pages = sum(-(-len(file.content) // PAGE_BYTES) + 2 for file in files)
    size = -(-pages * PAGE_BYTES // MIB) * MIB + MIB
    return (Tmpfs(target=AGENT_FILES, size_bytes=size, writable=False),)


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
