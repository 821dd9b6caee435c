"""What waits for a word: found, chosen by what the operator types, and told in lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.domain.words import counted
from orchestrator.surfaces.text import command, cut_json, named, span, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.domain.exchange import Approval, Question
    from orchestrator.engine.tasks.task_book import TaskBook

TERMINAL_INPUT_CHARS = 2000
"""Of a tool call's input; `pending --json` has all of it."""

COMMANDS_SHOWN = 3
"""How many commands are named where another one was typed than what waits needs."""

NOTHING_WAITS = "nothing waits for you"


class WhatWaits(NamedTuple):
    """The questions that wait for an answer, and the tool calls that wait to be approved."""

    questions: tuple[Question, ...]
    approvals: tuple[Approval, ...]
    agents: dict[str, str]
    """Whose they are, by the ids of their runs."""


async def what_waits(book: TaskBook, project: str | None) -> WhatWaits:
    """All that waits in a project, or in every one."""
    questions, approvals = await book.asking()
    run_ids = {each.run_id for each in questions} | {each.run_id for each in approvals}
    views = [await book.view(run_id) for run_id in run_ids]
    # A run from before there were projects could be this one's.
    shown = (view for view in views if project is None or view.project in ("", project))
    agents = {view.run_id: view.agent for view in shown}
    return WhatWaits(
        tuple(each for each in questions if each.run_id in agents),
        tuple(each for each in approvals if each.run_id in agents),
        agents,
    )


def chosen_question(waiting: WhatWaits, run_id: str, message: str) -> Question:
    """The question that is meant: by the beginning of its id, or the only one; CallInvalid if it
    could be another.
    """
    from orchestrator.errors import CallInvalid, RunRefused

    open_ones = [each for each in waiting.questions if not run_id or each.run_id == run_id]
    fitting = [each for each in open_ones if each.message_id.startswith(message)]
    exact = [each for each in fitting if each.message_id == message]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    if not fitting:
        raise RunRefused(_no_such("question", run_id, message) + _instead(waiting, run_id))
    several = ", ".join(f"{each.run_id} {each.message_id}" for each in fitting)
    raise CallInvalid(f"several questions wait: {several}; name one: reply RUN MESSAGE ANSWER")


def chosen_calls(waiting: WhatWaits, run_id: str, names: Sequence[str]) -> tuple[Approval, ...]:
    """The tool calls that are meant, all of one run: by the beginnings of their ids, or the only
    one; CallInvalid if it could be another.
    """
    from orchestrator.errors import CallInvalid

    open_ones = [each for each in waiting.approvals if not run_id or each.run_id == run_id]
    chosen = [_chosen_call(waiting, open_ones, run_id, name) for name in names or ("",)]
    if len({each.run_id for each in chosen}) > 1:
        raise CallInvalid("these calls are of several runs; decide about one run at a time")
    return tuple(chosen)


def _chosen_call(
    waiting: WhatWaits, open_ones: Sequence[Approval], run_id: str, name: str
) -> Approval:
    from orchestrator.errors import CallInvalid, RunRefused

    fitting = [each for each in open_ones if each.call_id.startswith(name)]
    exact = [each for each in fitting if each.call_id == name]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    if not fitting:
        raise RunRefused(_no_such("tool call", run_id, name) + _instead(waiting, run_id))
    several = ", ".join(f"{each.run_id} {each.call_id}" for each in fitting)
    raise CallInvalid(
        f"several tool calls wait: {several}; name the calls, or say --all after their run"
    )


def no_call_waits(waiting: WhatWaits, run_id: str) -> str:
    """A line for people: a run has no tool call to be decided, and what it has instead."""
    return _no_such("tool call", run_id, "") + _instead(waiting, run_id)


def _no_such(what: str, run_id: str, name: str) -> str:
    return f"{run_id or 'this project'} has no {what} {name}".rstrip() + " that waits for you"


def _instead(waiting: WhatWaits, run_id: str) -> str:
    """What does wait, of a run or of all, with the command for each."""
    commands = [
        *(
            command("reply", each.run_id, each.message_id, "ANSWER")
            for each in waiting.questions
            if run_id in ("", each.run_id)
        ),
        *(
            command("approve", each.run_id, each.call_id)
            for each in waiting.approvals
            if run_id in ("", each.run_id)
        ),
    ]
    if not commands:
        return "; `orchestrator pending --all` looks at every project" * (not run_id)
    more = len(commands) - COMMANDS_SHOWN
    shown = ", ".join(f"`{each}`" for each in commands[:COMMANDS_SHOWN])
    return f"; this waits: {shown}" + f" and {more} more (`orchestrator pending`)" * (more > 0)


def waiting_line(questions: int, calls: int) -> str:
    """How much waits, in one line."""
    parts = [(questions, "question"), (calls, "tool call")]
    said = " and ".join(counted(many, what) for many, what in parts if many)
    verb = "waits" if questions + calls == 1 else "wait"
    return f"{said} of your subagents {verb} for you: `orchestrator pending` shows them"


def ask_lines(waiting: WhatWaits) -> Iterator[str]:
    """All that waits, with the commands that decide it."""
    for question in waiting.questions:
        yield from question_lines(question, waiting.agents[question.run_id], time.time())
    for approval in waiting.approvals:
        yield from approval_lines(approval, waiting.agents[approval.run_id], time.time())


async def when_it_goes_on(book: TaskBook, run_id: str) -> str:
    """A line for people, if no process has the run or would take it up; otherwise ""."""
    if await book.goes_on_by_itself(run_id):
        return ""
    project = (await book.record(run_id)).project
    return (
        f"no orchestrator runs {run_id} now: it goes on when `orchestrator serve` next starts in "
        f"{visible(project)}"
    )


def question_lines(question: Question, agent: str, now: float) -> Iterator[str]:
    """A question, and the command that answers it."""
    left = left_text(question.deadline, now, "answers itself")
    yield f"{question.run_id}: {agent} asks ({question.message_id}; {left})"
    yield from indented(question.question)
    if question.deadline:
        yield "  without an answer, it goes by this:"
        yield from indented(question.default_answer)
    yield f"  {command('reply', question.run_id, question.message_id, 'ANSWER')}"


def approval_lines(approval: Approval, agent: str, now: float) -> Iterator[str]:
    """A tool call, and the commands that decide it."""
    left = left_text(approval.deadline, now, "rejected")
    tool, call = named(approval.tool), approval.call_id
    yield f"{approval.run_id}: {agent} wants to use {tool} ({named(call)}; {left})"
    yield from indented(input_line(approval.input))
    yield f"  {command('approve', approval.run_id, call)}    or reject"


def left_text(deadline: float, now: float, what: str) -> str:
    """What happens without a word, and when; no time runs for a run that no process has."""
    if not deadline:
        return "waits: its orchestrator was killed"
    return f"{what} in {span(deadline - now)}"


def input_line(given: object, chars: object = 0) -> str:
    """A tool call's input, which says so if it is not all there.

    `chars` is how many characters it has as JSON, where what is given may have been cut before.
    """
    beginning, more = cut_json(given, TERMINAL_INPUT_CHARS)
    more = max(more, (chars if isinstance(chars, int) else 0) - len(beginning))
    return f"{beginning}… and {more} characters more (pending --json)" if more else beginning


def indented(text: str) -> Iterator[str]:
    """Text of an agent's among lines of ours."""
    return (f"    {line}" for line in visible(text).splitlines())
