"""Which session a request is about, what it is doing, and which agent its runs are of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.domain.result import FINAL
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.http.sessions_facade.run_ids import our_run_id, run_uuid
from orchestrator.surfaces.http.sessions_facade.session_bodies import (
    RunState,
    RunStatusBody,
    SessionBody,
    timestamp,
)

if TYPE_CHECKING:
    from orchestrator.domain.agent import AgentSpec
    from orchestrator.domain.result import RunStatus
    from orchestrator.store.runs import RunRecord
    from orchestrator.store.threads import Thread
    from orchestrator.surfaces.http.endpoint import ApiCall

NO_TEMPLATE = (
    "this server has no agent for sessions: its operator names one in ORCHESTRATOR_DYNAMIC_TEMPLATE"
)


async def open_session(call: ApiCall) -> Thread:
    """The session that the path names; HttpRefusal if it is none of this caller's."""
    store, project = call.parts.service.store, call.parts.service.project
    thread = await store.threads.find(call.named("session_id"), project, call.asker.caller)
    if thread is None:
        raise HttpRefusal(404, "not_found", "there is no such session of yours")
    return thread


def session_template(call: ApiCall) -> AgentSpec:
    """The agent that runs of sessions are made of, as those of dynamic_subagent_task are."""
    name = call.parts.settings.dynamic_template
    agent = call.parts.service.agents.current().agents.get(name) if name else None
    if agent is None or call.asker.caller not in agent.allowed_callers:
        raise HttpRefusal(403, "sessions_not_offered", NO_TEMPLATE)
    return agent


async def active_run(call: ApiCall, thread: Thread, named: str) -> RunRecord:
    """The run that is under way, if a command names it; a stale command must not reach another."""
    runs = await call.parts.service.store.of_thread(thread.thread_id, newest=True)
    if not runs or runs[0].status in FINAL:
        raise HttpRefusal(409, "session_not_running", "no run of this session is under way")
    if our_run_id(named) != runs[0].run_id:
        raise HttpRefusal(409, "run_mismatch", "another run of this session is under way")
    return runs[0]


async def session_body(call: ApiCall, thread: Thread) -> SessionBody:
    runs = await call.parts.service.store.of_thread(thread.thread_id, newest=True)
    state: RunState = run_state(runs[0].status) if runs else "idle"
    active = run_uuid(runs[0].run_id) if state in ("starting", "running") else None
    return SessionBody(
        id=thread.thread_id,
        title=thread.title,
        cwd=thread.cwd or None,
        parent_session_id=thread.parent or None,
        created_at=timestamp(thread.created),
        updated_at=timestamp(thread.updated),
        run_status=RunStatusBody(state=state, run_id=active),
    )


def run_state(status: RunStatus) -> RunState:
    """What a session is, by its newest run. Pure."""
    if status == "pending":
        return "starting"
    if status not in FINAL:
        return "running"
    return "failed" if status in ("failed", "timed_out") else "idle"
