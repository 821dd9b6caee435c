"""`orchestrator plan`: exactly what a run of an agent would launch. Nothing is made or started."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from orchestrator.surfaces.cli.elsewhere.remote_reports import asked_there
from orchestrator.surfaces.cli.elsewhere.server_option import not_with_server
from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    JsonOption,
    RunnerConfigOption,
    RunnerOption,
    WorkspaceOption,
    settings_for,
)

if TYPE_CHECKING:
    from orchestrator.app import ShownPlan, ShownTrust
    from orchestrator.domain.agent import AgentSpec, Network, Secret
    from orchestrator.domain.container import ContainerSpec, File, Launch
    from orchestrator.domain.tool_lock import Brokered
    from orchestrator.plan import Plan

MODEL_SECRET = "stays in the orchestrator; the container gets a token for one run"  # noqa: S105

DAY = 86400

WHOM = {"parent": "may ask its caller", "user": "may ask the person behind its caller"}


OPERATORS = frozenset(("url", "command", "image", "network", "secrets"))
"""What is told of a server of tools to its operator alone."""

SHOWN_ALIKE = 4
"""Rows of one heading on the first screen; of more, so many but one, and how many there are."""


class Row(NamedTuple):
    """A line of the plan; a warning is one that its reader should not miss, a detail one that is
    the same for most agents, or of use to few readers.
    """

    heading: str
    text: str
    warning: bool = False
    detail: bool = False


def plan(
    agent: Annotated[str, typer.Argument(help="The agent, as its folder is called.")],
    *,
    workspace: WorkspaceOption = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="Also what fits no screen: command, environment, files."),
    ] = False,
    agents_dir: AgentsDirOption = None,
    runner: RunnerOption = None,
    runner_config: RunnerConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a run would launch: image, mounts, user, network, secrets, tools, limits."""
    import anyio

    from orchestrator.app import show_plan
    from orchestrator.settings import read_settings

    elsewhere = read_settings()
    if elsewhere.server:
        given = {"workspace": workspace, "agents_dir": agents_dir}
        not_with_server(elsewhere, **given, runner=runner, runner_config=runner_config)
        rows = "all" if all_ else "first"
        said = asked_there(elsewhere, lambda client: client.plan(agent, rows=rows))
        shown_rows = [Row(**row) for row in said.pop("rows")]
        print(json.dumps(said)) if as_json else _print_rows(shown_rows)
        return
    settings = settings_for(agents_dir, runner, runner_config)
    shown = anyio.run(show_plan, settings, agent, workspace and workspace.absolute())
    if as_json:
        print(json.dumps(plan_document(shown)))
    else:
        _print_rows(list(plan_rows(shown) if all_ else first_screen(shown)))


def plan_document(shown: ShownPlan) -> dict[str, object]:
    """The plan for programs."""
    plan = shown.plan
    agent, spec = plan.agent, plan.container
    return {
        "agent": agent.name,
        "allowed_callers": list(agent.allowed_callers),
        "trust": {
            "needed": shown.trust.reaches,
            "missing": list(shown.trust.wants),
            "command": shown.trust.command if shown.trust.wants else None,
        },
        "runners": [way.model_dump() for way in (plan.way, *shown.next_ways)],
        "passed_over": list(shown.passed_over),
        **_container_document(spec),
        "labels": dict(shown.labels),
        "network": {
            "interfaces": [],
            "through_the_wire": _services(agent),
            "egress": agent.network.model_dump(mode="json"),
        },
        "secrets": _secrets_document(agent, shown.unset),
        "workspace": agent.workspace.model_dump(mode="json"),
        "seccomp": agent.seccomp,
        "tools": {"allow": list(agent.permissions.allow), "deny": list(agent.deny_rules)},
        "approval": dict(agent.approval),
        "approval_by": agent.approval_by,
        "ask": agent.ask.model_dump(mode="json"),
        "subagents": list(agent.subagents),
        "mcp_servers": [
            {"name": server.name, "command": server.command, "args": list(server.args)}
            for server in agent.mcp_servers
        ],
        "servers": [
            {
                key: value
                for key, value in _server_document(each, agent).items()
                if not (shown.for_caller and key in OPERATORS)
            }
            for each in shown.brokered
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
        "agent_files": _files_document(plan.agent_files),
        **_launch_document(plan.launch),
        "stand_ins": _stand_ins(shown),
    }


def _container_document(spec: ContainerSpec) -> dict[str, object]:
    return {
        "image": spec.image,
        "user": spec.user.model_dump(),
        "mounts": [
            {
                "source": mount.source if mount.kind == "bind" else "a volume of its own",
                "target": mount.target,
                "access": "ro" if mount.kind == "bind" and mount.read_only else "rw",
            }
            for mount in spec.mounts
            if mount.kind != "cover"
        ],
        "covered": [
            {"target": mount.target, "what": mount.what}
            for mount in spec.mounts
            if mount.kind == "cover"
        ],
        "scratch": [{"target": t.target, "size_bytes": t.size_bytes} for t in spec.scratch],
        "runtime": spec.oci_runtime,
        "seccomp_sha256": None if spec.seccomp is None else _sha256(spec.seccomp.encode()),
        "lease_seconds": spec.lease_seconds,
        "lifetime_seconds": spec.lifetime_seconds,
    }


def _services(agent: AgentSpec) -> list[str]:
    """What the container reaches through its wire."""
    return [
        "model",
        *(["egress"] if agent.network.mode != "none" else []),
        *(["routes"] if any(secret.hosts for secret in agent.secrets) else []),
        *(["parent"] if agent.parent_tools else []),
        *(["tools"] if agent.server_uses else []),
    ]


def _secrets_document(agent: AgentSpec, unset: tuple[str, ...]) -> dict[str, object]:
    from orchestrator.plan import variables_inside

    return {
        "model": MODEL_SECRET,
        "added_outside": [
            secret.model_dump(mode="json", exclude={"expose", "variable"})
            for secret in agent.secrets
            if secret.hosts
        ],
        "enter_the_container": [
            *(
                {"variable": name, "as": place, "set": name not in unset}
                for name, place in variables_inside(agent)
            ),
            *(
                {"secret": secret.name, "as": f"its {secret.variable_name}"}
                for secret in agent.secrets
                if secret.expose
            ),
        ],
    }


def _launch_document(launch: Launch) -> dict[str, object]:
    return {
        "command": list(launch.argv),
        "cwd": launch.cwd,
        "environment": launch.env,
        "files": _files_document(launch.files),
        **({"opening": launch.opening} if launch.opening else {}),
    }


def _files_document(files: Sequence[File]) -> list[dict[str, object]]:
    return [
        {
            "path": file.path,
            "mode": f"{file.mode:04o}",
            "bytes": len(file.content),
            "sha256": _sha256(file.content),
        }
        for file in files
    ]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _stand_ins(shown: ShownPlan) -> dict[str, str]:
    """What stands in the plan where a run has a value of its own, or one that is not shown -> what
    that is. The digest of a file with one of them in it is not that of the run's file.
    """
    from orchestrator.plan import (
        STAND_IN_CONVERSATION,
        STAND_IN_RUN,
        STAND_IN_TOKEN,
        variables_inside,
    )

    found = {STAND_IN_TOKEN: "the token that opens the model to one container, which is random"}
    if shown.plan.agent.session.keep:
        found[STAND_IN_CONVERSATION] = "the id of a new session's conversation, which is random"
    if STAND_IN_RUN in shown.labels.values():
        found[STAND_IN_RUN] = "what the run is called, which is random"
    launch = shown.plan.launch
    texts = [*launch.env.values(), *(file.content.decode() for file in launch.files)]
    for name, _ in variables_inside(shown.plan.agent):
        if any(f"<{name}>" in text for text in texts):  # else a default stands there
            found[f"<{name}>"] = f"the value of {name}, which is not shown"
    return found


def first_screen(shown: ShownPlan) -> Iterator[Row]:
    """What matters of a plan, every warning included, and how to see the rest."""
    rows = list(plan_rows(shown, brief=True))
    for _, group in groupby(rows, key=lambda row: row.heading):
        mine = [row for row in group if row.warning or not row.detail]
        plain = [row for row in mine if not row.warning]
        hidden = plain[SHOWN_ALIKE - 1 :] if len(plain) > SHOWN_ALIKE else []
        yield from (row for row in mine if row not in hidden)
        if hidden:
            yield Row(mine[0].heading, f"and {len(hidden)} more")
    name = shown.plan.agent.name
    yield Row("more", f"command, environment, files: orchestrator plan {name} --all")


def plan_rows(shown: ShownPlan, *, brief: bool = False) -> Iterator[Row]:
    """The plan for people; in brief, what is of one kind in one row."""
    from orchestrator.domain.container import MODEL_URL
    from orchestrator.plan import variables_inside

    plan = shown.plan
    agent = plan.agent
    yield Row("agent", f"{agent.name}, for {', '.join(agent.allowed_callers) or 'no caller'}")
    ways = [f"{way.runner} with {way.model}" for way in (plan.way, *shown.next_ways)]
    yield Row("runner", ", then ".join(ways))
    if shown.no_credential:
        lacks = f"it does not run before there is a credential: set {shown.no_credential}"
        yield Row("runner", lacks, warning=True)
    for passed in shown.passed_over:
        yield Row("runner", f"not {passed}", warning=True)
    yield from _trust_rows(shown.trust, brief)
    yield from _container_rows(plan)
    yield Row("network", f"no interface; the model, at {MODEL_URL}")
    yield from _network_rows(agent.network, brief)
    yield Row("model secret", MODEL_SECRET, detail=True)
    yield from _secret_rows(agent.secrets, brief)
    for name, place in variables_inside(agent):
        missing = " (not set: a run would fail)" if name in shown.unset else ""
        yield Row("variable", f"{name} enters the container, as {place}{missing}", warning=True)
    yield from _tool_rows(agent)
    yield from _lacking_rows(shown)
    for each in shown.brokered:
        rows = list(_server_rows(each, agent))
        yield from rows[:-1] if shown.for_caller else rows  # the last tells what it is made of
    for file in plan.agent_files:
        text = f"{file.path}, of the agent's folder, to read ({len(file.content)} bytes)"
        yield Row("agent's files", text)
    yield from _kept_rows(agent, brief)
    yield from _limit_rows(plan, brief)
    yield Row("command", shlex.join(plan.launch.argv), detail=True)
    for name, value in plan.launch.env.items():
        yield Row("environment", f"{name}={value}", detail=True)
    for file in plan.launch.files:
        size = f"{file.mode:04o}, {len(file.content)} bytes"
        yield Row("file", f"{file.path} ({size})", detail=True)
    for value, what in _stand_ins(shown).items():
        if value in shown.labels.values():  # which only programs are told
            continue
        yield Row("stand-in", f"{value} is shown for {what}", detail=True)


def _trust_rows(trust: ShownTrust, brief: bool) -> Iterator[Row]:
    for want in _by_kind(trust.wants) if brief else trust.wants:
        yield Row("trust", f"not trusted yet with {want}", warning=True)
    if trust.wants:
        yield Row("trust", f"it does not run before you say: {trust.command}", warning=True)
    elif trust.reaches:
        yield Row("trust", "its project is trusted with what it could reach")
    else:
        yield Row("trust", "none needed: it reaches nothing besides its model")


def _container_rows(plan: Plan) -> Iterator[Row]:
    from orchestrator.domain.container import MIB, WORKSPACE

    spec = plan.container
    yield Row("image", spec.image)
    yield Row("user", f"{spec.user.uid}:{spec.user.gid}, without any capability", detail=True)
    for mount in spec.mounts:
        if mount.kind == "cover":
            text = f"{mount.target} is a {mount.what}, which the agent cannot reach"
            yield Row("covered", text, warning=True)
            continue
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
    scratch = ", ".join(f"{t.target} {t.size_bytes // MIB} MiB" for t in spec.scratch)
    text = f"{scratch}, gone with the container; all else is read-only"
    yield Row("scratch", text, detail=True)


def _tool_rows(agent: AgentSpec) -> Iterator[Row]:
    yield Row("tools allowed", ", ".join(agent.permissions.allow) or "none")
    denied = ", ".join(agent.deny_rules)
    yield Row("tools denied", denied or "none", detail=not denied)
    if agent.ask_rules:
        who = "only a person allows" if agent.approval_by == "user" else "the caller decides about"
        yield Row("approval", f"{who}: {', '.join(agent.ask_rules)}")
    if agent.ask.whom != "nobody":
        yield Row("asks", WHOM[agent.ask.whom])
    if agent.subagents:
        yield Row("subagents", f"may run {', '.join(agent.subagents)}", warning=True)
    for server in agent.mcp_servers:
        yield Row("MCP server", f"{server.name}: {shlex.join((server.command, *server.args))}")
    if not agent.mcp_servers and not agent.server_uses:
        yield Row("MCP servers", "none", detail=True)


def _lacking_rows(shown: ShownPlan) -> Iterator[Row]:
    """What the agent may use and a runner does not have; `agents check` tells it of runners that
    agent.md names, and not of the operator's.
    """
    from orchestrator.runners.known import RUNNERS
    from orchestrator.runners.rule_names import has_tool, rule_tool, server_names

    agent = shown.plan.agent
    wanted = dict.fromkeys(rule_tool(rule) for rule in agent.permissions.allow)
    for way in (shown.plan.way, *shown.next_ways):
        tools = RUNNERS[way.runner].tools
        lacking = [name for name in wanted if not has_tool(tools, name, server_names(agent))]
        if lacking:
            yield Row("tools allowed", f"{way.runner} has no {', '.join(lacking)}", warning=True)


def _server_document(each: Brokered, agent: AgentSpec) -> dict[str, object]:
    """A server outside that the agent uses: which tools, who approves, what it reaches."""
    from orchestrator.domain.tool_lock import definition_tokens
    from orchestrator.tool_rules import decide, offered, rules_about

    use, server = each.use, each.server
    tools = offered(use, each.lock)
    verdicts = {tool.name: decide(use, each.lock, tool.name) for tool in each.lock.tools}
    return {
        "name": server.name,
        "url": server.url,
        "command": list(server.command),
        "image": server.image,
        "tools": [tool["name"] for tool in tools],
        "tools_of": len(each.lock.tools),
        "tokens": sum(map(definition_tokens, tools)),
        "allow": list(use.allow),
        "deny": list(use.deny),
        "approve": dict(use.approve),
        "arguments": use.arguments,
        "agent_rules": {
            "deny": list(rules_about(use, each.lock, agent.deny_rules)),
            "ask": list(rules_about(use, each.lock, agent.ask_rules)),
        },
        "verdicts": {
            name: {"allowed": found.allowed, "asks": found.asks, "rule": found.rule}
            for name, found in verdicts.items()
        },
        "max_calls": use.max_calls,
        "share": server.share,
        "network": server.network.model_dump(mode="json"),
        "secrets": list(server.secret_names),
    }


def _server_rows(each: Brokered, agent: AgentSpec) -> Iterator[Row]:
    from orchestrator.tool_rules import decide, rules_about

    told, use, server = _server_document(each, agent), each.use, each.server
    tools, heading = told["tools"], f"server {each.name}"
    assert isinstance(tools, list)  # noqa: S101 made above
    never = f", never {', '.join(use.deny)}" if use.deny else ""
    yield Row(
        heading,
        f"{len(tools)} of {len(each.lock.tools)} tools, about {told['tokens']} tokens: "
        f"{', '.join(use.allow)}{never}; {use.max_calls} calls",
    )
    who = {"ask": "waits for approval", "deny": "is denied", "auto": "needs no approval"}
    held = [f"{pattern} {who[verdict]}" for pattern, verdict in use.approve.items()]
    held += [f"{at} always with {json.dumps(values)}" for at, values in use.arguments.items()]
    if held:
        yield Row(heading, "; ".join(held))
    for rules, what in ((agent.deny_rules, "denied"), (agent.ask_rules, "asked about")):
        if mine := ", ".join(rules_about(use, each.lock, rules)):
            yield Row(heading, f"{what} by agent.md's own rules, for every call: {mine}")
    for tool in each.lock.tools:
        found = decide(use, each.lock, tool.name)
        may = "waits for approval" if found.asks else "may be called" if found.allowed else "never"
        yield Row(heading, f"{tool.name}: {may} ({found.rule})", detail=True)
    where = server.url or f"a container of {server.image or 'our image'}, for one {server.share}"
    hosts = [*server.network.allow, *server.network.allow_private]
    hosts += ["every public host"] if server.network.mode == "open" else []
    hosts = [server.address[0], *hosts] if server.url is not None else hosts
    reach = f"may talk to {', '.join(hosts) or 'nobody'}"
    secrets = ", ".join(server.secret_names)
    has = f"; has the secret {secrets}, which the agent has not" if secrets else ""
    yield Row(heading, f"{where}; {reach}{has}", warning=bool(hosts))


def _limit_rows(plan: Plan, brief: bool) -> Iterator[Row]:
    from orchestrator.domain.container import MIB

    agent, spec = plan.agent, plan.container
    limits = spec.limits
    disk = f", {agent.resources.disk_mb} MiB of disk" if _has_volume(spec) else ""
    files = "" if brief else f", {limits.open_files} open files each"
    yield Row(
        "limits",
        f"{limits.memory_bytes // MIB} MiB of memory, {limits.cpus:g} processors, "
        f"{limits.pids} processes{files}{disk}",
    )
    strict = agent.seccomp == "strict"
    calls = (
        "our short list (doctor shows whether it is in force)"
        if strict
        else "the engine's own choice"
    )
    yield Row("system calls", calls, warning=not strict, detail=strict)
    if spec.oci_runtime is not None:
        yield Row("runtime", spec.oci_runtime)
    time = f"{plan.timeout_seconds:g} s, {agent.max_turns} turns"
    budget = "none" if agent.max_budget_usd is None else f"${agent.max_budget_usd:g}"
    if brief:
        yield Row("timeout", f"{time}; budget: {budget}")
    else:
        yield Row("timeout", time)
        yield Row("budget", budget)
    checked = "" if agent.output_schema is None else ", checked against a schema"
    yield Row("answer", f"{agent.output_format}{checked}, {agent.retries} retries")


def _by_kind(wants: Sequence[str]) -> Iterator[str]:
    """The same in fewer words: hosts together, and of each secret its name."""
    kinds: dict[str, dict[str, None]] = {}
    for want in wants:
        kind, _, what = want.partition(": ")
        name = what.split(" ", 1)[0] if kind == "secret" else what
        kinds.setdefault(kind, {})[name] = None
    return (f"{kind}: {', '.join(names)}" for kind, names in kinds.items())


def _network_rows(network: Network, brief: bool) -> Iterator[Row]:
    if network.mode == "none":
        return
    if network.mode == "open":
        yield Row("network", "every public host, on ports 80 and 443", warning=True)
    for host in _together(network.allow, brief):
        yield Row("network", f"{host}, by HTTP and HTTPS")
    for host in _together(network.allow_private, brief):
        yield Row("network", f"{host}, also at a private address", warning=True)
    for host in _together(network.deny, brief):
        yield Row("network", f"never {host}")
    most = f"{network.max_connections} connections at once, {network.max_mb} MiB"
    yield Row("network", most, detail=True)


def _together(names: Sequence[str], brief: bool) -> Sequence[str]:
    return [", ".join(names)] if brief and names else names


def _secret_rows(secrets: tuple[Secret, ...], brief: bool) -> Iterator[Row]:
    for secret in secrets:
        if secret.expose is not None:
            text = f"{secret.name} enters the container, as its {secret.variable_name}"
            yield Row("secret", text, warning=True)
        for host in secret.hosts:
            paths = ", ".join(secret.paths)
            if brief and len(secret.paths) > 1:
                paths = f"at {len(secret.paths)} paths"
            what = f"{', '.join(secret.methods)} {paths}"
            if secret.headers:
                what += f", with its {', '.join(secret.headers)}"
            yield Row("secret", f"{secret.name} is added outside, for {host}: {what}")


def _kept_rows(agent: AgentSpec, brief: bool) -> Iterator[Row]:
    if agent.session.keep:
        days = agent.session.expire_seconds / DAY
        what = "it is" if brief else "container, files and conversation are"
        text = f"{what} kept for {days:g} days after the last call"
        yield Row("session", text)
        if agent.memory != "none":
            rw = agent.memory == "rw"
            text = "memory.md beside agent.md" + (", and what it writes there is kept" * rw)
            yield Row("memory", text, warning=rw)
    if agent.warm:
        yield Row("spares", f"{agent.warm} wait, with the CLI started")


def _has_volume(spec: ContainerSpec) -> bool:
    return any(mount.kind == "volume" for mount in spec.mounts)


def _print_rows(rows: list[Row]) -> None:
    from orchestrator.surfaces.text import quoted, write

    width = max(len(row.heading) for row in rows)
    headings = [
        "" if at and rows[at - 1].heading == row.heading else row.heading
        for at, row in enumerate(rows)
    ]
    if not sys.stdout.isatty():
        for heading, row in zip(headings, rows, strict=True):
            write(f"{heading:<{width}}  {quoted(row.text)}", sys.stdout)
        return
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table.grid(Column(style="dim", no_wrap=True), Column(ratio=1), padding=(0, 2))
    for heading, row in zip(headings, rows, strict=True):
        table.add_row(heading, Text(quoted(row.text), "bold red" if row.warning else ""))
    Console(highlight=False).print(table)
