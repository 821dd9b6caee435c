"""What passes between a run and its caller: what waits, answers, decisions, words."""

from __future__ import annotations

from orchestrator.errors import RunRefused
from orchestrator.surfaces.http.bodies import (
    CallDecisions,
    GivenAnswer,
    HeardBy,
    Inbox,
    Run,
    ToldText,
)
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.http.run_bodies import run_body, waiting_call, waiting_question


async def inbox(call: ApiCall) -> ApiReply:
    feed, asker = call.parts.feed, call.asker
    newest = await feed.line.newest()
    questions, approvals = await call.parts.tasks.book.asking()
    asking = {*(each.run_id for each in questions), *(each.run_id for each in approvals)}
    seen_by = await feed.audience(asking)
    kin = {
        run_id: found
        for run_id in asking
        if (asker.person or asker.caller in seen_by[run_id])
        and (found := feed.kin(run_id)) is not None
    }
    items = [waiting_question(each, kin[each.run_id]) for each in questions if each.run_id in kin]
    items += [
        waiting_call(each, kin[each.run_id], person=asker.person)
        for each in approvals
        if each.run_id in kin
    ]
    items.sort(key=lambda item: item.asked)
    return ApiReply(Inbox(items=tuple(items), newest_event_id=newest))


async def answer(call: ApiCall) -> ApiReply:
    given: GivenAnswer = call.body
    await call.check_seen(call.run_id)
    book, caller = call.parts.tasks.book, call.asker.sees_as
    await book.reply(call.run_id, call.named("message_id"), given.answer, caller)
    return ApiReply(await run_body(call, call.run_id))


async def decide(call: ApiCall) -> ApiReply:
    given: CallDecisions = call.body
    await call.check_seen(call.run_id)
    made = given.decisions
    wrong = [name for name, each in made.items() if each.action == "reject" and each.input]
    if wrong:
        raise HttpRefusal(
            400, "invalid_request", f"{wrong[0]!r} is rejected, so no input runs instead"
        )
    approved = [name for name, each in made.items() if each.action == "approve"]
    await call.parts.tasks.book.decide(
        call.run_id,
        call.asker.sees_as,
        approve=approved,
        reject=[name for name in made if name not in approved],
        inputs={name: dict(each.input) for name, each in made.items() if each.input is not None},
        messages={name: each.why for name, each in made.items() if each.why},
        person=call.asker.person,
    )
    return ApiReply(await run_body(call, call.run_id))


async def tell(call: ApiCall) -> ApiReply:
    told: ToldText = call.body
    await call.check_seen(call.run_id)
    tasks, caller = call.parts.tasks, call.asker.sees_as
    if (await tasks.book.view(call.run_id, caller)).approvals:
        raise RunRefused(f"run {call.run_id} waits for tool calls to be decided; decide them first")
    heard = await tasks.say(call.run_id, told.text, caller, now=told.now)
    return ApiReply(HeardBy(run_id=heard), 202, {"Location": f"/v1/runs/{heard}"})


TALK_ENDPOINTS = (
    Endpoint(*("GET", "/v1/inbox", inbox, "List what waits for a word"), {200: Inbox}),
    Endpoint(
        *("POST", "/v1/runs/{run_id}/questions/{message_id}", answer, "Answer a question"),
        {200: Run},
        (404, 409),
        body=GivenAnswer,
    ),
    Endpoint(
        *("POST", "/v1/runs/{run_id}/approvals", decide, "Allow or refuse tool calls"),
        {200: Run},
        (404, 409),
        body=CallDecisions,
    ),
    Endpoint(
        *("POST", "/v1/runs/{run_id}/input", tell, "Tell an agent something"),
        {202: HeardBy},
        (403, 404, 409, 422, 503),
        body=ToldText,
    ),
)
