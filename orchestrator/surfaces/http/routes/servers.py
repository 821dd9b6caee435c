"""Servers of tools outside of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import ServerNotFound
from orchestrator.surfaces.http.bodies import BrokenAgentBody, ServerBody, ServerList
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.routes.agents import known_agents

if TYPE_CHECKING:
    from orchestrator.catalog import KnownServer


async def list_servers(call: ApiCall) -> ApiReply:
    catalog = call.parts.service.agents.current()
    broken: tuple[BrokenAgentBody, ...] = ()
    if call.asker.person:
        broken = tuple(
            BrokenAgentBody(name=each.name, problems=tuple(map(str, each.problems)))
            for each in catalog.broken_servers
        )
    items = tuple(_body(call, known) for known in _known(call).values())
    return ApiReply(ServerList(items=items, broken=broken))


async def look(call: ApiCall) -> ApiReply:
    known = _known(call).get(call.named("name"))
    if known is None:
        raise ServerNotFound("there is no such server; GET /v1/servers lists yours")
    return ApiReply(_body(call, known))


def _known(call: ApiCall) -> dict[str, KnownServer]:
    """Those of agents that who asks may run; a person, all of them."""
    servers = call.parts.service.agents.current().servers
    if call.asker.person:
        return servers
    used = {use.use for agent in known_agents(call) for use in agent.server_uses}
    return {name: known for name, known in servers.items() if name in used}


def _body(call: ApiCall, known: KnownServer) -> ServerBody:
    """All of its settings for a person; for a caller what its agents can use of it."""
    name = known.server.name
    users = [agent for agent in known_agents(call) if name in {u.use for u in agent.server_uses}]
    tools = None if known.lock is None else len(known.lock.tools)
    about = {"name": name, "pinned_tools": tools, "used_by": tuple(each.name for each in users)}
    names = {"tools": list(known.tool_names or ())}
    if not call.asker.person:
        return ServerBody.model_validate({**about, **names})
    fields = known.server.model_dump(mode="json", exclude={"files"})
    return ServerBody.model_validate({**fields, **about, **names})


SERVER_LIST_ENDPOINTS = (
    Endpoint(*("GET", "/v1/servers", list_servers, "List servers of tools"), {200: ServerList}),
    Endpoint(
        *("GET", "/v1/servers/{name}", look, "Look at a server of tools"), {200: ServerBody}, (404,)
    ),
)
