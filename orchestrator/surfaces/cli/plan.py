"""`orchestrator plan`: exactly what a run of an agent could touch. Nothing is made or started."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    JsonOption,
    WorkspaceOption,
    settings_for,
)

if TYPE_CHECKING:
    from orchestrator.domain.agent import AgentSpec, Network, Secret
    from orchestrator.domain.container import ContainerSpec
    from orchestrator.plan import Plan
    from orchestrator.settings import Settings

NO_ENGINE = "the agent image (no engine answers)"
NOT_BUILT = "the agent image (not built yet; `orchestrator images build`)"

TOKEN = "<a token for one run>"  # noqa: S105 what is shown in its place
MODEL_SECRET = "stays in the orchestrator; the container gets a token for one run"  # noqa: S105

MIB = 1024 * 1024
WORKSPACE = "/workspace"
DAY = 86400

WHOM = {"parent": "may ask its caller", "user": "may ask the person behind its caller"}


class Row(NamedTuple):
    """A line of the plan; a warning is one that its reader should not miss."""

    heading: str
    text: str
    warning: bool = False


def plan(
    agent: Annotated[str, typer.Argument(help="The agent, as its folder is called.")],
    *,
    workspace: WorkspaceOption = None,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a run could touch: image, mounts, user, network, secrets, tools, limits."""
    from orchestrator.catalog import load_catalog
    from orchestrator.output import check_schema

    settings = settings_for(agents_dir)
    spec = load_catalog(settings.agents_dir, check_schema).agent(agent)
    planned, unset = _planned(settings, spec, workspace and workspace.absolute())
    if as_json:
        print(json.dumps(plan_document(planned, unset)))
    else:
        _print_rows(list(plan_rows(planned, unset)))


def _planned(
    settings: Settings, agent: AgentSpec, workspace: Path | None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with <NAME> for the value of each variable, and the variables that are not set."""
    from orchestrator.app import mount_policy, open_copies
    from orchestrator.domain.task import Task
    from orchestrator.engine.staging import workspace_owner
    from orchestrator.plan import Place, plan
    from orchestrator.settings import environment

    shown, unset = shown_variables(agent, frozenset(environment()))
    task = Task(agent=agent.name, prompt="(the task)", workspace=workspace)
    place = Place(
        image=agent.image or _image(settings),
        workspace_owner=workspace_owner(workspace),
        git_mounts=open_copies(settings).git_mounts(agent, task),
    )
    exposed = {secret.name: f"<{secret.name}>" for secret in agent.secrets}
    planned = plan(agent, task, place, shown, TOKEN, exposed)
    policy = mount_policy(settings, settings.engine_candidates[0])
    if planned.copied_workspace is not None:
        policy.directory(planned.copied_workspace)
    checked = policy.checked(planned.container)
    return planned.model_copy(update={"container": checked.spec}), unset


def shown_variables(
    agent: AgentSpec, names: frozenset[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What to fill in instead of values, and which variables a run would miss."""
    from orchestrator.domain.variables import expand, variables
    from orchestrator.errors import VariableMissing

    shown: dict[str, str] = {}
    unset: set[str] = set()
    for _, text in _texts_with_variables(agent):
        used = variables(text)
        shown |= {name: f"<{name}>" for name in used if name in names}
        try:
            expand(text, shown)
        except VariableMissing:
            missing = [name for name in used if name not in names]
            shown |= {name: f"<{name}, which is not set>" for name in missing}
            unset.update(missing)
    return shown, tuple(sorted(unset))


def plan_document(plan: Plan, unset: tuple[str, ...] = ()) -> dict[str, object]:
    """The plan for programs."""
    agent, spec = plan.agent, plan.container
    mounts = [mount.model_dump(mode="json") for mount in spec.mounts]
    return {
        "agent": agent.name,
        "allowed_callers": list(agent.allowed_callers),
        "image": spec.image,
        "user": spec.user.model_dump(),
        "mounts": [
            {
                "source": mount.get("source", "a volume of its own"),
                "target": mount["target"],
                "access": "ro" if mount.get("read_only") else "rw",
            }
            for mount in mounts
        ],
        "scratch": [{"target": t.target, "size_bytes": t.size_bytes} for t in spec.tmpfs],
        "network": {
            "interfaces": [],
            "through_the_wire": [
                "model",
                *(["egress"] if agent.network.mode != "none" else []),
                *(["routes"] if any(secret.hosts for secret in agent.secrets) else []),
            ],
            "egress": agent.network.model_dump(mode="json"),
        },
        "secrets": {
            "model": MODEL_SECRET,
            "added_outside": [
                secret.model_dump(mode="json", exclude={"expose", "variable"})
                for secret in agent.secrets
                if secret.hosts
            ],
            "enter_the_container": [
                *(
                    {"variable": name, "as": place, "set": name not in unset}
                    for name, place in _variables_inside(agent)
                ),
                *(
                    {"secret": secret.name, "as": f"its {secret.variable_name}"}
                    for secret in agent.secrets
                    if secret.expose
                ),
            ],
        },
        "workspace": agent.workspace.model_dump(mode="json"),
        "runtime": spec.oci_runtime,
        "seccomp": agent.seccomp,
        "tools": {"allow": list(agent.permissions.allow), "deny": list(agent.deny_rules)},
        "approval": dict(agent.approval),
        "ask": agent.ask.model_dump(mode="json"),
        "subagents": list(agent.subagents),
        "mcp_servers": [
            {"name": server.name, "command": server.command, "args": list(server.args)}
            for server in agent.mcp_servers
        ],
        "session": agent.session.model_dump(mode="json"),
        "memory": agent.memory if agent.session.keep else "none",
        "warm": agent.warm,
        "limits": {**spec.limits.model_dump(), "disk_bytes": agent.resources.disk_bytes},
        "timeout_seconds": plan.timeout_seconds,
        "max_turns": agent.max_turns,
        "max_budget_usd": agent.max_budget_usd,
        "retries": agent.retries,
        "output_format": agent.output_format,
        "command": list(plan.launch.argv),
        "cwd": plan.launch.cwd,
        "environment": plan.launch.env,
        "files": [{"path": file.path, "mode": f"{file.mode:04o}"} for file in plan.launch.files],
    }


def plan_rows(plan: Plan, unset: tuple[str, ...] = ()) -> Iterator[Row]:
    """The plan for people."""
    agent, spec = plan.agent, plan.container
    yield Row("agent", f"{agent.name}, for {', '.join(agent.allowed_callers) or 'nobody'}")
    yield Row("image", spec.image)
    yield Row("user", f"{spec.user.uid}:{spec.user.gid}, without any capability")
    for mount in spec.mounts:
        read_only = mount.kind == "bind" and mount.read_only
        if mount.kind == "volume" and mount.target == WORKSPACE and plan.copied_workspace:
            text = f"a copy of {plan.copied_workspace} -> {WORKSPACE}; what changes is handed back"
            yield Row("mount", text)
            continue
        source = mount.source if mount.kind == "bind" else "a volume of its own"
        access = "to read" if read_only else "to read and write"
        yield Row("mount", f"{source} -> {mount.target}, {access}", warning=not read_only)
    if not spec.mounts:
        yield Row("mount", "nothing of this machine")
    scratch = ", ".join(f"{t.target} {t.size_bytes // MIB} MiB" for t in spec.tmpfs)
    yield Row("scratch", f"{scratch}, gone with the container; all else is read-only")
    yield Row("network", f"no interface; the model, at {plan.launch.env['ANTHROPIC_BASE_URL']}")
    yield from _network_rows(agent.network)
    yield Row("model secret", MODEL_SECRET)
    yield from _secret_rows(agent.secrets)
    for name, place in _variables_inside(agent):
        missing = " (not set: a run would fail)" if name in unset else ""
        yield Row("variable", f"{name} enters the container, as {place}{missing}", warning=True)
    yield Row("tools allowed", ", ".join(agent.permissions.allow) or "none")
    yield Row("tools denied", ", ".join(agent.deny_rules) or "none besides")
    if agent.ask_rules:
        yield Row("approval", f"somebody's word is waited for: {', '.join(agent.ask_rules)}")
    if agent.ask.whom != "nobody":
        yield Row("asks", WHOM[agent.ask.whom])
    if agent.subagents:
        yield Row("subagents", f"may run {', '.join(agent.subagents)}", warning=True)
    for server in agent.mcp_servers:
        yield Row("MCP server", f"{server.name}: {shlex.join((server.command, *server.args))}")
    if not agent.mcp_servers:
        yield Row("MCP servers", "none")
    yield from _kept_rows(agent)
    limits = spec.limits
    disk = f", {agent.resources.disk_mb} MiB of disk" if _has_volume(spec) else ""
    yield Row(
        "limits",
        f"{limits.memory_bytes // MIB} MiB of memory, {limits.cpus:g} processors, "
        f"{limits.pids} processes, {limits.open_files} open files each{disk}",
    )
    strict = agent.seccomp == "strict"
    calls = "ours, where the engine takes it" if strict else "the engine's own choice"
    yield Row("system calls", calls, warning=not strict)
    if spec.oci_runtime is not None:
        yield Row("runtime", spec.oci_runtime)
    yield Row("timeout", f"{plan.timeout_seconds:g} s, {agent.max_turns} turns")
    budget = "none" if agent.max_budget_usd is None else f"${agent.max_budget_usd:g}"
    yield Row("budget", budget)
    checked = "" if agent.output_schema is None else ", checked against a schema"
    yield Row("answer", f"{agent.output_format}{checked}, {agent.retries} retries")
    yield Row("command", shlex.join(plan.launch.argv))
    for name, value in plan.launch.env.items():
        yield Row("environment", f"{name}={value}")
    for file in plan.launch.files:
        yield Row("file", f"{file.path} ({file.mode:04o}, {len(file.content)} bytes)")


def _network_rows(network: Network) -> Iterator[Row]:
    if network.mode == "none":
        return
    if network.mode == "open":
        yield Row("network", "every public host, on ports 80 and 443", warning=True)
    for host in network.allow:
        yield Row("network", f"{host}, by HTTP and HTTPS")
    for host in network.allow_private:
        yield Row("network", f"{host}, also at a private address", warning=True)
    for host in network.deny:
        yield Row("network", f"never {host}")
    yield Row("network", f"{network.max_connections} connections at once, {network.max_mb} MiB")


def _secret_rows(secrets: tuple[Secret, ...]) -> Iterator[Row]:
    for secret in secrets:
        if secret.expose is not None:
            text = f"{secret.name} enters the container, as its {secret.variable_name}"
            yield Row("secret", text, warning=True)
        for host in secret.hosts:
            what = f"{', '.join(secret.methods)} {', '.join(secret.paths)}"
            yield Row("secret", f"{secret.name} is added outside, for {host}: {what}")


def _kept_rows(agent: AgentSpec) -> Iterator[Row]:
    if agent.session.keep:
        days = agent.session.expire_seconds / DAY
        text = f"container, files and conversation are kept for {days:g} days after the last call"
        yield Row("session", text)
        if agent.memory != "none":
            rw = agent.memory == "rw"
            text = "memory.md beside agent.md" + (", and what it writes there is kept" * rw)
            yield Row("memory", text, warning=rw)
    if agent.warm:
        yield Row("spares", f"{agent.warm} wait, with the CLI started")


def _has_volume(spec: ContainerSpec) -> bool:
    return any(mount.kind == "volume" for mount in spec.mounts)


def _variables_inside(agent: AgentSpec) -> list[tuple[str, str]]:
    """Variables of the orchestrator that enter the container, and as what."""
    from orchestrator.domain.variables import variables

    return [
        (name, place) for place, text in _texts_with_variables(agent) for name in variables(text)
    ]


def _texts_with_variables(agent: AgentSpec) -> Iterator[tuple[str, str]]:
    for key, text in agent.env.items():
        yield f"its {key}", text
    for server in agent.mcp_servers:
        for key, text in server.env.items():
            yield f"{key} of its MCP server {server.name}", text
        for text in server.args:
            yield f"an argument of its MCP server {server.name}", text


def _image(settings: Settings) -> str:
    if settings.agent_image:
        return settings.agent_image
    from orchestrator.app import open_engine
    from orchestrator.containers.images.agent_image import find_agent_image
    from orchestrator.errors import EngineUnreachable, ImageMissing

    try:
        with open_engine(settings) as engine:
            return find_agent_image(engine, settings)
    except EngineUnreachable:
        return NO_ENGINE
    except ImageMissing:
        return NOT_BUILT


def _print_rows(rows: list[Row]) -> None:
    from orchestrator.surfaces.text import visible, write

    width = max(len(row.heading) for row in rows)
    headings = [
        "" if at and rows[at - 1].heading == row.heading else row.heading
        for at, row in enumerate(rows)
    ]
    if not sys.stdout.isatty():
        for heading, row in zip(headings, rows, strict=True):
            write(f"{heading:<{width}}  {visible(row.text)}", sys.stdout)
        return
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table.grid(Column(style="dim", no_wrap=True), Column(ratio=1), padding=(0, 2))
    for heading, row in zip(headings, rows, strict=True):
        table.add_row(heading, Text(visible(row.text), "bold red" if row.warning else ""))
    Console(highlight=False).print(table)
