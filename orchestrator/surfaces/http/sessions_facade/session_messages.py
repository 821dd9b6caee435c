"""Messages of a session: begin a run, tell it something, go on with it; and what was said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from orchestrator.access import models_given, tools_given
from orchestrator.domain.result import FINAL
from orchestrator.domain.task import Wish
from orchestrator.errors import AskedBefore, CallInvalid, RunRefused
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.http.routes.runs import started
from orchestrator.surfaces.http.sessions_facade.open_session import open_session, session_template
from orchestrator.surfaces.http.sessions_facade.run_ids import our_run_id, run_uuid
from orchestrator.surfaces.http.sessions_facade.session_bodies import (
    BegunBody,
    HistoryBody,
    HistoryMessage,
    MessagesQuery,
    SessionMessage,
)
from orchestrator.surfaces.mcp.arguments import asked_task, wrong_arguments

if TYPE_CHECKING:
    from orchestrator.domain.agent import AgentSpec
    from orchestrator.domain.task import Task
    from orchestrator.store.numbered_events import KeptEvent
    from orchestrator.store.runs import RunRecord
    from orchestrator.store.threads import Thread

DEFAULT_STEPS = 64
"""Of a run whose message says nothing else; the agent's max_turns if that is less."""

SAID_KINDS = ("text", "tool_call", "tool_result", "steered")

HISTORY_EVENTS = 1000
"""That are read at once."""


async def send(call: ApiCall) -> ApiReply:
    """A message: what it does depends on its type, and on whether a run is under way."""
    wish: SessionMessage = call.body
    thread = await open_session(call)
    if wish.message.role != "user":
        raise HttpRefusal(400, "invalid_message_role", "message.role must be user")
    if not wish.message.text.strip():
        raise HttpRefusal(400, "invalid_request", "the message says nothing; write a text")
    store, once = call.parts.service.store, call.once
    if once is not None:
        kept = await store.request_keys.find(call.parts.service.project, once)
        if kept is not None:
            return _begun(kept.run_id, replayed=True)
    runs = await store.of_thread(thread.thread_id)
    newest = runs[-1] if runs else None
    active = newest if newest is not None and newest.status not in FINAL else None
    if wish.type == "message":
        if active is not None:
            if wish.run_id is not None and our_run_id(wish.run_id) != active.run_id:
                raise HttpRefusal(409, "run_mismatch", "another run is under way")
            raise HttpRefusal(
                *(409, "session_already_running"),
                "a run of this session is under way; wait until it has ended, cancel it, or tell "
                "it something with type: steering",
            )
        return await _begin(call, thread, wish, runs)
    if wish.run_id is None:
        raise HttpRefusal(409, "run_mismatch", f"{wish.type} needs the run_id that it is for")
    if newest is None or (active is None and wish.type == "steering"):
        raise HttpRefusal(409, "session_not_running", "no run of this session is under way")
    if our_run_id(wish.run_id) != newest.run_id:
        raise HttpRefusal(409, "run_mismatch", "run_id is not the newest run of this session")
    if active is None:
        return await _begin(call, thread, wish, runs)
    return await _tell(call, active, wish)


async def _tell(call: ApiCall, active: RunRecord, wish: SessionMessage) -> ApiReply:
    tasks, caller, run_id = call.parts.tasks, call.asker.sees_as, active.run_id
    if (await tasks.book.view(run_id, caller)).approvals:
        raise RunRefused("tool calls wait for a decision; decide them first")
    if not await tasks.tell(run_id, wish.message.text, caller):
        raise HttpRefusal(409, "session_not_running", "the run has ended at this moment")
    if call.once is not None:
        keys, project = call.parts.service.store.request_keys, call.parts.service.project
        await keys.keep(project, call.once, "", run_id)
    return _begun(run_id)


async def _begin(
    call: ApiCall, thread: Thread, wish: SessionMessage, runs: tuple[RunRecord, ...]
) -> ApiReply:
    """One more run of a session; it knows what was said in those before."""
    template = session_template(call)
    model = _model(template, wish, thread)
    made = _wish(template, wish, thread, model)
    text, context = wish.message.text, _context(wish)
    task = await _goes_on(call, runs, text) or asked_task(
        *(thread.caller, template.name, text, "", thread.cwd)
    )
    known = [task.context, context] if task.context and context else [task.context or context]
    task = task.model_copy(
        update={
            "wish": made,
            "thread": thread.thread_id,
            "context": "\n\n".join(known),
            "once": call.once,
        }
    )
    await call.parts.service.check_known(task)
    try:
        run_id = await started(call, task)
    except AskedBefore as exc:
        return _begun(exc.run_id, replayed=True)
    named = {"model": model} if model else {}
    await call.parts.service.store.threads.change(thread, named)
    return _begun(run_id)


async def _goes_on(call: ApiCall, runs: tuple[RunRecord, ...], text: str) -> Task | None:
    """The task that goes on from the last run that one can go on from; None if there is none."""
    for record in reversed(runs):
        kept = record.result is not None and record.result.session
        if record.agent == session_template(call).name and (kept or record.status == "completed"):
            return await call.parts.tasks.book.follow_up(record.run_id, text, record.caller)
    return None


def _begun(run_id: str, *, replayed: bool = False) -> ApiReply:
    headers = {"Idempotency-Replayed": "true"} if replayed else {}
    return ApiReply(BegunBody(run_id=run_uuid(run_id)), headers=headers)


def _wish(template: AgentSpec, said: SessionMessage, thread: Thread, model: str) -> Wish:
    """The agent, made as small as a message says."""
    more = said.overrides
    steps = [each for each in (said.max_steps, more and more.max_turns) if each]
    approve = said.auto_approve if more is None or more.auto_approve is None else more.auto_approve
    unasked = approve if isinstance(approve, tuple) else ()
    fields = {
        "description": thread.title,
        "tools": said.allowed_tools or tools_given(template),
        "max_steps": min(steps, default=DEFAULT_STEPS),
        "sandboxed": approve in (True, "all"),
        "unasked": unasked,
        "model": model,
    }
    try:
        return Wish.model_validate(fields)
    except ValidationError as exc:
        raise CallInvalid(wrong_arguments(exc)) from exc


def _model(template: AgentSpec, said: SessionMessage, thread: Thread) -> str:
    named = (said.overrides and said.overrides.model) or said.model
    if named:
        return known_model(template, named)
    return thread.model if thread.model in models_given(template) else ""


def known_model(template: AgentSpec, named: str) -> str:
    """A model as it is called here; HttpRefusal of one that the agent may not have."""
    models = models_given(template)
    for name in (named, named.partition("/")[2]):
        if name in models:
            return name
    said = f"there is no model {named!r} for sessions; there are {', '.join(models)}"
    raise HttpRefusal(400, "invalid_model", said)


def _context(said: SessionMessage) -> str:
    parts = [f"{part.name}:\n{part.content}" for part in said.context or ()]
    prompt = said.overrides.system_prompt if said.overrides else None
    return "\n\n".join([*([prompt] if prompt and prompt.strip() else []), *parts])


async def history(call: ApiCall) -> ApiReply:
    query: MessagesQuery = call.query
    thread = await open_session(call)
    messages: list[HistoryMessage] = []
    line = call.parts.feed.line
    for run in await call.parts.service.store.of_thread(thread.thread_id):
        messages.append(HistoryMessage(role="user", content=run.prompt))
        after = 0
        while page := await line.of_run(run.run_id, after, HISTORY_EVENTS, kinds=SAID_KINDS):
            messages += map(_message, page)
            after = page[-1].number
    chosen = messages[query.offset : query.offset + query.limit]
    return ApiReply(HistoryBody(messages=tuple(chosen), total=len(messages)))


def _message(event: KeptEvent) -> HistoryMessage:
    data: dict[str, Any] = json.loads(event.data, parse_constant=str)
    if event.kind == "tool_call":
        part = {
            "type": "tool_call",
            "id": data.get("id", ""),
            "name": data.get("tool", ""),
            "arguments": data.get("input", {}),
        }
        return HistoryMessage(role="assistant", content=[part])
    if event.kind == "tool_result":
        part = {"type": "tool_result", "tool_call_id": data.get("id", ""), "content": event.text}
        return HistoryMessage(role="tool", content=[part])
    role = "user" if event.kind == "steered" else "assistant"
    return HistoryMessage.model_validate({"role": role, "content": event.text})
