"""Agents: which there are, and what they may do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.domain.container import WORKSPACE
from orchestrator.errors import AgentNotFound
from orchestrator.surfaces.http.bodies import (
    AgentBody,
    AgentList,
    BrokenAgentBody,
    PlanBody,
    PlanQuery,
)
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.mcp.arguments import absolute, agents_for

if TYPE_CHECKING:
    from orchestrator.app import ShownPlan
    from orchestrator.domain.agent import AgentSpec
    from orchestrator.domain.container import Mount

SERVERS_PLACE = "a place of the server's"
"""Is told to callers instead of a path that they have not named."""


async def list_agents(call: ApiCall) -> ApiReply:
    catalog = call.parts.service.agents.current()
    broken: tuple[BrokenAgentBody, ...] = ()
    if call.asker.person:
        broken = tuple(
            BrokenAgentBody(name=each.name, problems=tuple(map(str, each.problems)))
            for each in catalog.broken
        )
    items = tuple(agent_body(call, agent) for agent in known_agents(call))
    return ApiReply(AgentList(items=items, broken=broken))


async def look(call: ApiCall) -> ApiReply:
    return ApiReply(agent_body(call, known_agent(call)))


async def plan(call: ApiCall) -> ApiReply:
    from orchestrator.app import show_plan
    from orchestrator.surfaces.cli.plan import first_screen, plan_document, plan_rows

    query: PlanQuery = call.query
    agent = known_agent(call)
    workspace = absolute(query.workspace) if query.workspace else None
    shown = await show_plan(call.parts.settings, agent.name, workspace)
    if not call.asker.person:
        shown = for_caller(shown, workspace)
    said = plan_document(shown)
    if query.rows:
        rows = plan_rows(shown) if query.rows == "all" else first_screen(shown)
        said["rows"] = [row._asdict() for row in rows]
    return ApiReply(PlanBody.model_validate(said))


def for_caller(shown: ShownPlan, workspace: Path | None) -> ShownPlan:
    """A plan without what callers are told nowhere else: places on this machine that they have not
    named themselves, and what servers of tools are made of. Pure.
    """

    def named(mount: Mount) -> Mount:
        theirs = workspace is not None and Path(getattr(mount, "source", "")) == workspace
        if mount.kind != "bind" or theirs:
            return mount
        inside = Path(mount.target).is_relative_to(WORKSPACE)
        target = mount.target if inside else SERVERS_PLACE  # where it is outside, too
        return mount.model_copy(update={"source": SERVERS_PLACE, "target": target})

    container = shown.plan.container
    mounts = tuple(map(named, container.mounts))
    container = container.model_copy(update={"mounts": mounts})
    return shown._replace(
        plan=shown.plan.model_copy(update={"container": container}),
        trust=shown.trust._replace(command="orchestrator trust"),
        for_caller=True,
    )


def known_agents(call: ApiCall) -> list[AgentSpec]:
    """Those that who asks may run; a person, all of them."""
    if call.asker.person:
        return list(call.parts.service.agents.current().agents.values())
    return agents_for(call.parts.service, call.asker.caller)


def known_agent(call: ApiCall) -> AgentSpec:
    """The one that the path names; AgentNotFound also for one that is another caller's."""
    name = call.named("name")
    for agent in known_agents(call):
        if agent.name == name:
            return agent
    raise AgentNotFound("there is no such agent; GET /v1/agents lists yours")


def agent_body(call: ApiCall, agent: AgentSpec) -> AgentBody:
    doubts = call.parts.service.agents.current().warnings.get(agent.name, ())
    return AgentBody(
        name=agent.name,
        description=agent.description,
        model=agent.model,
        runner=", ".join(agent.runner),
        session=agent.session.keep,
        workspace=agent.workspace.mode,
        timeout_ms=agent.timeout_ms,
        max_turns=agent.max_turns,
        max_budget_usd=agent.max_budget_usd,
        allowed_callers=agent.allowed_callers,
        tools=agent.permissions.allow,
        hosts=tuple(map(str, agent.network.allow)),
        secrets=tuple(secret.name for secret in agent.secrets),
        servers=tuple(use.use for use in agent.server_uses),
        approval_by=agent.approval_by,
        warnings=tuple(str(doubt) for doubt in doubts) if call.asker.person else (),
    )


AGENT_ENDPOINTS = (
    Endpoint(*("GET", "/v1/agents", list_agents, "List agents"), {200: AgentList}),
    Endpoint(*("GET", "/v1/agents/{name}", look, "Look at an agent"), {200: AgentBody}, (404,)),
    Endpoint(
        *("GET", "/v1/agents/{name}/plan", plan, "See what a run of an agent would launch"),
        {200: PlanBody},
        (404, 422),
        query=PlanQuery,
    ),
)
