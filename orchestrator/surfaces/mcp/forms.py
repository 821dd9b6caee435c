"""What a person is asked in a client's forms: an agent's questions, and its tool calls; and what
becomes of the answers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import mcp.types as t
from pydantic import BaseModel, Field

from orchestrator.domain.exchange import Approval, Question
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.surfaces.mcp.answers.lines import shown_input
from orchestrator.surfaces.text import visible

if TYPE_CHECKING:
    from orchestrator.engine.tasks.tasks import Tasks


class PersonsAnswer(BaseModel):
    """The form of a question."""

    answer: str = Field(description="What the agent is told")


class PersonsDecision(BaseModel):
    """The form of a tool call that waits to be approved."""

    approve: bool = Field(description="Whether the agent may do it")
    why: str = Field("", description="What the agent is told if it may not")


def can_ask(capabilities: t.ClientCapabilities | None) -> bool:
    """Whether the client can show a form; {} is all that older ones say."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


PersonAsked = Question | Approval
"""What a person can be asked about."""

Response = PersonsAnswer | PersonsDecision


def form_key(asked: PersonAsked) -> str:
    """Never the same for two of a task: what a CLI calls a tool call is its own choice."""
    if isinstance(asked, Question):
        return asked.message_id
    return f"{asked.run_id}:{asked.call_id}"


def asked_by(view: TaskView) -> list[PersonAsked]:
    return [*view.questions, *view.approvals]


def form_of(asked: PersonAsked) -> t.ElicitRequest:
    return t.ElicitRequest(params=form_params(asked))


def form_params(asked: PersonAsked) -> t.ElicitRequestFormParams:
    schema = _fields(asked).model_json_schema()
    return t.ElicitRequestFormParams(message=_words(asked), requested_schema=schema)


def response_to(asked: PersonAsked, given: object) -> Response | None:
    """What a person has said; None leaves it to the caller's tools. ValidationError if it does not
    fit the form.

    A person who declines a question leaves it to them. One who declines a tool call has decided;
    one who only closed its form has not.
    """
    response = t.ElicitResult.model_validate(given)
    if response.action == "accept":
        return _fields(asked).model_validate(response.content or {})
    if response.action == "decline" and isinstance(asked, Approval):
        return PersonsDecision(approve=False)
    return None


async def deliver(tasks: Tasks, asked: PersonAsked, response: Response, caller: str) -> None:
    """Tell the run; RunRefused if it has been told otherwise meanwhile, or has ended."""
    if isinstance(asked, Question) and isinstance(response, PersonsAnswer):
        await tasks.book.reply(asked.run_id, asked.message_id, response.answer, caller)
    elif isinstance(asked, Approval) and isinstance(response, PersonsDecision):
        await tasks.book.decide(
            asked.run_id,
            caller,
            approve=[asked.call_id] if response.approve else [],
            reject=[] if response.approve else [asked.call_id],
            message=response.why,
            person=True,
        )


def _words(asked: PersonAsked) -> str:
    """An agent may write anything: a person should see who speaks."""
    who = f"A subagent (run {asked.run_id})"
    if isinstance(asked, Question):
        return (
            f"{who} asks:\n\n{visible(asked.question)}\n\n"
            f"Without an answer in time, it goes by this:\n\n{visible(asked.default_answer)}"
        )
    wanted = visible(json.dumps(shown_input(asked), ensure_ascii=False, indent=2))
    return f"{who} wants to use {visible(asked.tool)}:\n\n{wanted}"


def _fields(asked: PersonAsked) -> type[Response]:
    return PersonsAnswer if isinstance(asked, Question) else PersonsDecision
