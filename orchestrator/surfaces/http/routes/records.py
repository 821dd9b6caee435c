"""What is written down: sessions, decisions, costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from orchestrator.domain.audit import AuditAct
from orchestrator.errors import SessionRefused
from orchestrator.store.audit import AuditQuery
from orchestrator.store.session_rows import SessionKey
from orchestrator.surfaces.http.bodies import (
    AgentSession,
    AgentSessionList,
    CostBody,
    CostQuery,
    CostRow,
    DecisionBody,
    DecisionPage,
    DecisionQuery,
    SessionQuery,
    StoppedBody,
)
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.http.run_bodies import cursor_after, read_cursor

if TYPE_CHECKING:
    from orchestrator.store.session_rows import SessionRow


async def list_sessions(call: ApiCall) -> ApiReply:
    rows = await _sessions(call)
    items = tuple(
        AgentSession(
            agent=row.key.agent,
            caller=row.key.caller,
            name=row.key.name,
            **row.model_dump(include=set(AgentSession.model_fields)),
        )
        for row in rows
    )
    return ApiReply(AgentSessionList(items=items))


async def _sessions(call: ApiCall) -> list[SessionRow]:
    """Those of the project that who asks may see."""
    service, asker = call.parts.service, call.asker
    return [
        row
        for row in await service.sessions.list()
        if row.key.project == service.project and (asker.person or row.key.caller == asker.caller)
    ]


async def _session(call: ApiCall) -> SessionKey:
    """The session that the path names; HttpRefusal if there is none that one may see."""
    query: SessionQuery = call.query
    caller = call.asker.caller
    if query.caller not in ("", caller):
        if not call.asker.person:
            raise HttpRefusal(404, "not_found", "there is no such session of yours")
        caller = query.caller
    project, agent, name = call.parts.service.project, call.named("agent"), call.named("name")
    key = SessionKey(project=project, agent=agent, caller=caller, name=name)
    if key not in [row.key for row in await _sessions(call)]:
        raise HttpRefusal(404, "not_found", "there is no such session of yours")
    return key


async def stop_session(call: ApiCall) -> ApiReply:
    key = await _session(call)
    return ApiReply(StoppedBody(stopped=await call.parts.service.sessions.let_go(key)))


async def remove_session(call: ApiCall) -> ApiReply:
    key = await _session(call)
    if not await call.parts.service.sessions.remove(key):
        raise SessionRefused(f"session {key.text} is gone already")
    return ApiReply(status=204)


async def decisions(call: ApiCall) -> ApiReply:
    query: DecisionQuery = call.query
    service = call.parts.service
    if query.act and query.act not in get_args(AuditAct):
        raise HttpRefusal(400, "invalid_request", f"act is one of {', '.join(get_args(AuditAct))}")
    if query.run:
        await call.check_seen(query.run)
    before = read_cursor(query.cursor, int)
    found = await service.store.audit.find(
        AuditQuery(
            projects=(service.project,),
            # What was decided about a run concerns all that may see it.
            who="" if call.asker.person or query.run else call.asker.caller,
            act=query.act,
            run_id=query.run,
            unseen=call.asker.person,
            allowed=False if query.refused else None,
        ),
        before=None if before is None else int(before[0]),
        limit=query.limit + 1,
    )
    newest_first = found[::-1]
    items = newest_first[: query.limit]
    cursor = cursor_after(items[-1].number) if len(found) > query.limit else None
    fields = set(DecisionBody.model_fields)
    body = tuple(DecisionBody(**each.model_dump(include=fields)) for each in items)
    return ApiReply(DecisionPage(items=body, next_cursor=cursor))


async def cost(call: ApiCall) -> ApiReply:
    from orchestrator.surfaces.cli.records.cost import TOTAL, cost_rows, cost_sum

    query: CostQuery = call.query
    service, feed = call.parts.service, call.parts.feed
    spent = await service.store.reports.spending(
        projects=(service.project,), since=query.since or 0.0
    )
    if not call.asker.person:
        seen_by = await feed.audience(each.run_id for each in spent)
        spent = tuple(each for each in spent if call.asker.caller in seen_by[each.run_id])
    return ApiReply(
        CostBody(
            by=query.by,
            since=query.since,
            rows=tuple(CostRow.model_validate(row) for row in cost_rows(spent, query.by)),
            total=CostRow.model_validate(cost_sum(TOTAL, spent)),
        )
    )


RECORD_ENDPOINTS = (
    Endpoint(
        *("GET", "/v1/agent-sessions", list_sessions, "List sessions of agents"),
        {200: AgentSessionList},
    ),
    Endpoint(
        "DELETE",
        "/v1/agent-sessions/{agent}/{name}",
        remove_session,
        "Remove a session: its container, its files and its conversation",
        {204: None},
        (404, 409),
        query=SessionQuery,
    ),
    Endpoint(
        "POST",
        "/v1/agent-sessions/{agent}/{name}/stop",
        stop_session,
        "Stop a session's container; its files and its conversation stay",
        {200: StoppedBody},
        (404, 409),
        query=SessionQuery,
    ),
    Endpoint(
        *("GET", "/v1/audit", decisions, "List decisions: who was let or refused what"),
        {200: DecisionPage},
        (404,),
        query=DecisionQuery,
    ),
    Endpoint(*("GET", "/v1/cost", cost, "Sum up costs"), {200: CostBody}, query=CostQuery),
)
