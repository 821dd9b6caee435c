"""What a person is asked in a client's forms: an agent's questions, and its tool calls."""

from __future__ import annotations

import json

import mcp.types as t
from pydantic import BaseModel, Field

from orchestrator.domain.exchange import Approval, Question
from orchestrator.surfaces.mcp.answers import shown_input
from orchestrator.surfaces.text import visible


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


def question_form(question: Question) -> t.ElicitRequest:
    return _form(question_words(question), PersonsAnswer)


def approval_form(call: Approval) -> t.ElicitRequest:
    wanted = visible(json.dumps(shown_input(call), ensure_ascii=False, indent=2))
    said = f"A subagent (run {call.run_id}) wants to use {visible(call.tool)}:\n\n{wanted}"
    return _form(said, PersonsDecision)


def question_words(question: Question) -> str:
    """An agent may write anything: a person should see who speaks."""
    return (
        f"A subagent (run {question.run_id}) asks:\n\n{visible(question.question)}\n\n"
        f"Without an answer in time, it goes by this:\n\n{visible(question.default_answer)}"
    )


def _form(message: str, fields: type[BaseModel]) -> t.ElicitRequest:
    schema = fields.model_json_schema()
    params = t.ElicitRequestFormParams(message=message, requested_schema=schema)
    return t.ElicitRequest(params=params)
