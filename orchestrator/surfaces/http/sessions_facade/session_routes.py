"""Sessions: create, list, look, change, delete; decide, cancel, choose a model; what there is."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from starlette.responses import Response

from orchestrator.access import models_given
from orchestrator.domain.result import FINAL
from orchestrator.errors import RunRefused
from orchestrator.runners.choice import maker_of
from orchestrator.store.session_rows import SessionKey
from orchestrator.store.threads import Thread
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.http.routes.events import STREAM_TYPE, cursor_of
from orchestrator.surfaces.http.run_bodies import json_value
from orchestrator.surfaces.http.sessions_facade.open_session import (
    active_run,
    open_session,
    session_body,
    session_template,
)
from orchestrator.surfaces.http.sessions_facade.run_ids import run_uuid
from orchestrator.surfaces.http.sessions_facade.session_bodies import (
    AcceptedBody,
    BegunBody,
    CancelledBody,
    CancelWish,
    ConfigBody,
    DecisionWish,
    HistoryBody,
    ManyDecisions,
    MessagesQuery,
    ModelAccepted,
    ModelBody,
    ModelsBody,
    ModelWish,
    NewSession,
    OneDecision,
    PendingTools,
    ProposedCall,
    SessionBody,
    SessionChange,
    SessionDetail,
    SessionEventQuery,
    SessionMessage,
    SessionsBody,
    SessionsQuery,
)
from orchestrator.surfaces.http.sessions_facade.session_messages import history, known_model, send
from orchestrator.surfaces.http.sessions_facade.session_stream import SessionFrames
from orchestrator.surfaces.http.sessions_facade.told_events import QUESTION_TOOL
from orchestrator.surfaces.mcp.arguments import directory

if TYPE_CHECKING:
    from orchestrator.domain.agent import AgentSpec
    from orchestrator.engine.tasks.task_book import TaskView

UNANSWERED = "Your caller does not answer this. Decide for yourself."
"""What a question is answered with that is rejected."""


async def create(call: ApiCall) -> ApiReply:
    wish: NewSession = call.body
    session_template(call)
    if wish.cwd:
        directory(wish.cwd)
    service = call.parts.service
    threads, caller = service.store.threads, call.asker.caller
    parent = wish.parent_session_id or ""
    if parent and await threads.find(parent, service.project, caller) is None:
        raise HttpRefusal(404, "not_found", "parent_session_id is no session of yours")
    thread = Thread(
        thread_id="",
        project=service.project,
        caller=caller,
        parent=parent,
        title=wish.title,
        cwd=wish.cwd or "",
    )
    return ApiReply(await session_body(call, await threads.add(thread)), 201)


async def list_all(call: ApiCall) -> ApiReply:
    query: SessionsQuery = call.query
    service = call.parts.service
    if query.status.upper() == "DELETED":
        return ApiReply(SessionsBody(sessions=(), total=0))
    found, total = await service.store.threads.page(
        *(service.project, call.asker.caller),
        parent=query.parent_session_id,
        search=query.search,
        limit=query.limit,
        offset=query.offset,
    )
    bodies = [await session_body(call, thread) for thread in found]
    return ApiReply(SessionsBody(sessions=tuple(bodies), total=total))


async def look(call: ApiCall) -> ApiReply:
    thread = await open_session(call)
    return ApiReply(await _detail(call, thread))


async def change(call: ApiCall) -> ApiReply:
    wish: SessionChange = call.body
    thread = await open_session(call)
    if wish.title is not None:
        threads = call.parts.service.store.threads
        thread = await threads.change(thread, {"title": wish.title})
    return ApiReply(await _detail(call, thread))


async def _detail(call: ApiCall, thread: Thread) -> SessionDetail:
    return SessionDetail(session=await session_body(call, thread), config=_config(call))


async def delete(call: ApiCall) -> ApiReply:
    """Its run ends, what it kept goes, and then it: if its run takes longer to end, it can be asked
    for again. Once it is gone no run begins in it; one that has begun meanwhile goes too.
    """
    thread = await open_session(call)
    await _emptied(call, thread)
    await call.parts.service.store.threads.remove(thread)
    await _emptied(call, thread)
    return ApiReply(status=204)


async def _emptied(call: ApiCall, thread: Thread) -> None:
    service, tasks = call.parts.service, call.parts.tasks
    runs = await service.store.of_thread(thread.thread_id)
    for run in runs:
        if run.status not in FINAL:
            await tasks.cancel(run.run_id, call.asker.sees_as)
    kept = {(run.agent, run.session) for run in runs if run.session}
    for agent, name in kept:
        key = SessionKey(project=service.project, agent=agent, caller=thread.caller, name=name)
        await service.sessions.remove(key)


async def events(call: ApiCall) -> Response:
    query: SessionEventQuery = call.query
    thread = await open_session(call)
    if call.request.method == "HEAD":
        return Response(media_type=STREAM_TYPE)
    return SessionFrames(call, thread, cursor_of(call, query))


# Tools


async def pending(call: ApiCall) -> ApiReply:
    thread = await open_session(call)
    runs = await call.parts.service.store.of_thread(thread.thread_id, newest=True)
    if not runs or runs[0].status in FINAL:
        return ApiReply(PendingTools(run_id=None, tool_calls=()))
    view = await call.parts.tasks.book.view(runs[0].run_id, call.asker.sees_as)
    calls = [
        ProposedCall(id=each.call_id, name=each.tool, arguments=json_value(each.input))
        for each in view.approvals
    ]
    calls += [
        ProposedCall(
            id=each.message_id,
            name=QUESTION_TOOL,
            arguments={"question": each.question, "default_answer": each.default_answer},
        )
        for each in view.questions
    ]
    run_id = run_uuid(view.run_id) if calls else None
    return ApiReply(PendingTools(run_id=run_id, tool_calls=tuple(calls)))


async def decide_many(call: ApiCall) -> ApiReply:
    wish: ManyDecisions = call.body
    return await _decided(call, wish.run_id, wish.decisions)


async def decide_one(call: ApiCall) -> ApiReply:
    wish: OneDecision = call.body
    return await _decided(call, wish.run_id, {call.named("tool_call_id"): wish})


async def _decided(call: ApiCall, named: str, made: dict[str, DecisionWish]) -> ApiReply:
    thread = await open_session(call)
    if any(each.action == "custom_result" and each.content is None for each in made.values()):
        raise HttpRefusal(400, "invalid_request", "custom_result needs content")
    run = await active_run(call, thread, named)
    book, caller = call.parts.tasks.book, call.asker.sees_as
    view = await book.view(run.run_id, caller)
    await _decide_calls(call, view, made)
    for question in view.questions:
        wish = made.get(question.message_id)
        if wish is not None:
            answer = {"accept": question.default_answer, "reject": UNANSWERED}
            said = wish.content or answer.get(wish.action) or UNANSWERED
            await book.reply(question.run_id, question.message_id, said, caller)
    return ApiReply(AcceptedBody(run_id=run_uuid(run.run_id)))


async def _decide_calls(call: ApiCall, view: TaskView, made: dict[str, DecisionWish]) -> None:
    """Each by the run that asks: this one, or one that works for it."""
    whose = {each.call_id: each.run_id for each in view.approvals}
    asked = {each.message_id for each in view.questions}
    unknown = [name for name in made if name not in whose and name not in asked]
    if unknown:
        raise RunRefused(f"no tool call {unknown[0]!r} waits in this session")
    by_run: dict[str, list[str]] = defaultdict(list)
    for name in made.keys() & whose.keys():
        by_run[whose[name]].append(name)
    for run_id, names in by_run.items():
        approved = [name for name in names if made[name].action == "accept"]
        await call.parts.tasks.book.decide(
            run_id,
            call.asker.sees_as,
            approve=approved,
            reject=[name for name in names if name not in approved],
            messages={name: made[name].content or "" for name in names},
            person=call.asker.person,
        )


async def cancel(call: ApiCall) -> ApiReply:
    wish: CancelWish = call.body
    run = await active_run(call, await open_session(call), wish.run_id)
    await call.parts.tasks.cancel(run.run_id, call.asker.sees_as)
    return ApiReply(CancelledBody(run_id=run_uuid(run.run_id)))


async def choose_model(call: ApiCall) -> ApiReply:
    wish: ModelWish = call.body
    thread = await open_session(call)
    model = known_model(session_template(call), wish.model)
    run = await active_run(call, thread, wish.run_id)
    await call.parts.service.store.threads.change(thread, {"model": model})
    return ApiReply(ModelAccepted(run_id=run_uuid(run.run_id), model=wish.model))


# What there is


async def models(call: ApiCall) -> ApiReply:
    template = session_template(call)
    bodies = [
        ModelBody(id=name, name=name, provider=maker_of(name)) for name in models_given(template)
    ]
    return ApiReply(ModelsBody(models=tuple(bodies)))


async def config(call: ApiCall) -> ApiReply:
    return ApiReply(_config(call))


def _config(call: ApiCall) -> ConfigBody:
    try:
        template: AgentSpec = session_template(call)
    except HttpRefusal:
        return ConfigBody(default_model=None, auto_approve_mode="custom")
    name = models_given(template)[0]
    maker = maker_of(name)
    usual = f"{maker}/{name}" if maker else name
    return ConfigBody(default_model=usual, auto_approve_mode="custom")


_ONE = "/v1/sessions/{session_id}"

SESSION_ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/sessions", create, "Create a session"),
        {201: SessionBody},
        (403, 404, 422),
        body=NewSession,
    ),
    Endpoint(
        *("GET", "/v1/sessions", list_all, "List sessions"),
        {200: SessionsBody},
        query=SessionsQuery,
    ),
    Endpoint(*("GET", _ONE, look, "Look at a session"), {200: SessionDetail}, (404,)),
    Endpoint(
        *("PATCH", _ONE, change, "Give a session another title"),
        {200: SessionDetail},
        (404, 413, 415),
        body=SessionChange,
    ),
    Endpoint(
        *("DELETE", _ONE, delete, "Delete a session, and end its run"), {204: None}, (404, 409)
    ),
    Endpoint(
        *("POST", f"{_ONE}/messages", send, "Begin a run of a session, or tell it something"),
        {200: BegunBody},
        (403, 404, 409, 422, 503),
        body=SessionMessage,
        keyed=False,
    ),
    Endpoint(
        *("GET", f"{_ONE}/messages", history, "Read what was said in a session"),
        {200: HistoryBody},
        (404,),
        query=MessagesQuery,
    ),
    Endpoint(
        *("GET", f"{_ONE}/events", events, "Follow a session's events"),
        {200: STREAM_TYPE},
        (404,),
        query=SessionEventQuery,
    ),
    Endpoint(
        *("GET", f"{_ONE}/tools/pending", pending, "List tool calls that wait"),
        {200: PendingTools},
        (404,),
    ),
    *(
        Endpoint(
            *("POST", f"{_ONE}/tools/{name}", decide_many, "Decide tool calls"),
            {200: AcceptedBody},
            (404, 409),
            body=ManyDecisions,
        )
        for name in ("decisions", "resolve")
    ),
    Endpoint(
        *("POST", f"{_ONE}/tools/{{tool_call_id}}/decision", decide_one, "Decide one tool call"),
        {200: AcceptedBody},
        (404, 409),
        body=OneDecision,
    ),
    Endpoint(
        *("POST", f"{_ONE}/cancel", cancel, "End a session's run"),
        {200: CancelledBody},
        (404, 409),
        body=CancelWish,
    ),
    Endpoint(
        *("POST", f"{_ONE}/model", choose_model, "Choose the model of a session's next runs"),
        {200: ModelAccepted},
        (403, 404, 409),
        body=ModelWish,
    ),
    Endpoint(*("GET", "/v1/models", models, "List models"), {200: ModelsBody}, (403,)),
    Endpoint(*("GET", "/v1/config", config, "Tell what runs are begun with"), {200: ConfigBody}),
)
