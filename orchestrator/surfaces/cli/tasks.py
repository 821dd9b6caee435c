"""Runs that any process holds: see what they ask, answer, decide, wait, steer, cancel.

All of it goes through the store, so that it works from any terminal.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    EveryProjectOption,
    JsonOption,
    RunArgument,
    print_either,
    settings_for,
)
from orchestrator.surfaces.text import command, cut_json, named, print_lines, span, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.domain.exchange import Approval, Question
    from orchestrator.domain.task import Task
    from orchestrator.engine.tasks.task_book import TaskBook, TaskView, Until

EXIT_NOT_ENDED = 10
"""Waiting was over before the run: time ran out, or it waits for an answer or a decision."""

TERMINAL_INPUT_CHARS = 2000
"""Of a tool call's input; `pending --json` has all of it."""

RunsArgument = Annotated[list[str], typer.Argument(metavar="RUN", help="One run or several.")]
CallsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="CALL", help="As `orchestrator pending` names it.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All that wait at this moment.")]

T = TypeVar("T")


def pending(*, all_: EveryProjectOption = False, as_json: JsonOption = False) -> None:
    """List the questions of this project's runs that wait for an answer, and the tool calls that
    wait to be approved.
    """
    questions, approvals, agents = _on_book(lambda book: _asking(book, all_=all_))
    if as_json:
        print(json.dumps({"questions": _dumped(questions), "approvals": _dumped(approvals)}))
        return
    if not agents:
        print("nothing waits for an answer")
    print_lines(_ask_lines(questions, approvals, agents))


def reply(
    run_id: RunArgument,
    message_id: Annotated[
        str,
        typer.Argument(metavar="MESSAGE", help="The question, as `orchestrator pending` names it."),
    ],
    answer: Annotated[str, typer.Argument(help="What the agent is told; - reads it from stdin.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Answer a question that a run has asked."""
    text = sys.stdin.read() if answer == "-" else answer

    async def answer_it(book: TaskBook) -> str:
        await book.reply(run_id, message_id, text, None)
        return await _when_it_goes_on(book, run_id)

    later = _on_book(answer_it)
    said = {"run_id": run_id, "message_id": message_id, "answer": text}
    print_either(as_json, said, later or f"{run_id} has its answer")


def approve(
    run_id: RunArgument,
    calls: CallsArgument = None,
    *,
    all_: AllOption = False,
    given: Annotated[
        str, typer.Option("--input", metavar="JSON", help="What runs instead; for one call.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Allow tool calls that wait for it."""
    named = _named(run_id, calls, all_)
    edited = {named[0]: _object(given)} if given and len(named) == 1 else {}
    if given and not edited:
        raise typer.BadParameter("--input goes with exactly one CALL")
    decided, later = _on_book(
        lambda book: _decide(book, run_id, approve=named, approve_all=all_, inputs=edited)
    )
    _tell_decided(as_json, run_id, decided, later)


def reject(
    run_id: RunArgument,
    calls: CallsArgument = None,
    *,
    all_: AllOption = False,
    why: Annotated[str, typer.Option(metavar="TEXT", help="What the agent is told.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Refuse tool calls that wait to be allowed."""
    named = _named(run_id, calls, all_)
    decided, later = _on_book(
        lambda book: _decide(book, run_id, reject=named, reject_all=all_, message=why)
    )
    _tell_decided(as_json, run_id, decided, later)


def cancel(run_id: RunArgument, *, as_json: JsonOption = False) -> None:
    """End a run, wherever it runs; its container is gone by then."""
    view = _on_book(lambda book: book.cancel(run_id, None, seconds=math.inf))
    document = view.model_dump(mode="json")
    print_either(as_json, document, _ended_line(view))


def wait(
    run_ids: RunsArgument,
    *,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Not longer than this.")
    ] = None,
    any_: Annotated[bool, typer.Option("--any", help="Until one of them has ended.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Wait until runs have ended, or one of them asks something."""
    from orchestrator.surfaces.cli.runs import EXIT_INTERRUPTED

    seconds = math.inf if timeout is None else timeout
    until: Until = "any" if any_ else "all"
    try:
        views = _on_book(lambda book: book.wait(run_ids, None, seconds=seconds, until=until))
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        print(json.dumps({"runs": _dumped(views)}))
    else:
        print_lines(_ended_line(view) for view in views)
        for view in views:
            agents = {view.run_id: view.agent}
            print_lines(_ask_lines(view.questions, view.approvals, agents))
    raise typer.Exit(exit_code(views, any_=any_))


def resume(
    run_id: RunArgument,
    text: Annotated[str, typer.Argument(help="What the agent is told; - reads it from stdin.")],
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Stop what it is doing; else it reads it after that.")
    ] = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell an agent something: in the middle of its work, or after it, in its session."""
    from orchestrator.surfaces.cli.run import carry_out

    said = sys.stdin.read() if text == "-" else text
    follow_up = _on_book(lambda book: _tell(book, run_id, said, now))
    if follow_up is None:
        when = "is interrupted, and told" if now else "is told after the step that it is at"
        line = f"{run_id} {when}; `orchestrator wait {run_id}` waits for it"
        print_either(as_json, {"run_id": run_id, "told": said}, line)
        return
    carry_out(settings_for(agents_dir), follow_up, as_json=as_json)


def exit_code(views: Sequence[TaskView], *, any_: bool) -> int:
    """As the runs ended; the first one that did not end well decides. Pure."""
    from orchestrator.surfaces.cli.run import EXIT_CODES

    codes = [EXIT_CODES.get(view.status, EXIT_NOT_ENDED) for view in views]
    if any_:
        ended = [code for code in codes if code != EXIT_NOT_ENDED]
        return max(ended) if ended else EXIT_NOT_ENDED
    return next((code for code in codes if code), 0)


def _on_book(do: Callable[[TaskBook], Awaitable[T]]) -> T:
    import anyio

    from orchestrator.settings import read_settings
    from orchestrator.state import open_book

    async def work() -> T:
        async with open_book(read_settings()) as book:
            return await do(book)

    return anyio.run(work)


async def _decide(book: TaskBook, run_id: str, **words: Any) -> tuple[tuple[Approval, ...], str]:
    """What was decided; and when the run goes on, if that is not now."""
    return await book.decide(run_id, None, **words), await _when_it_goes_on(book, run_id)


async def _when_it_goes_on(book: TaskBook, run_id: str) -> str:
    """A line for people, if no process has the run or would take it up; otherwise ""."""
    if await book.goes_on_by_itself(run_id):
        return ""
    project = (await book.record(run_id)).project
    return (
        f"no orchestrator runs {run_id} now: it goes on when `orchestrator serve` next starts in "
        f"{visible(project)}"
    )


async def _asking(
    book: TaskBook, *, all_: bool
) -> tuple[tuple[Question, ...], tuple[Approval, ...], dict[str, str]]:
    from orchestrator.settings import read_settings

    project = None if all_ else read_settings().project
    questions, approvals = await book.asking()
    run_ids = {each.run_id for each in questions} | {each.run_id for each in approvals}
    views = [await book.view(run_id) for run_id in run_ids]
    # A run from before there were projects could be this one's.
    shown = (view for view in views if project is None or view.project in ("", project))
    agents = {view.run_id: view.agent for view in shown}
    return (
        tuple(each for each in questions if each.run_id in agents),
        tuple(each for each in approvals if each.run_id in agents),
        agents,
    )


async def _tell(book: TaskBook, run_id: str, text: str, now: bool) -> Task | None:
    """None if the agent hears it; else the task that goes on after the run's end."""
    if await book.tell(run_id, text, None, now=now):
        return None
    return await book.follow_up(run_id, text, None)


def question_lines(question: Question, agent: str, now: float) -> Iterator[str]:
    """A question, and the command that answers it."""
    left = _left(question.deadline, now, "answers itself")
    yield f"{question.run_id}: {agent} asks ({question.message_id}; {left})"
    yield from _indented(question.question)
    if question.deadline:
        yield "  without an answer, it goes by this:"
        yield from _indented(question.default_answer)
    yield f"  {command('reply', question.run_id, question.message_id, 'ANSWER')}"


def approval_lines(approval: Approval, agent: str, now: float) -> Iterator[str]:
    """A tool call, and the commands that decide it."""
    left = _left(approval.deadline, now, "rejected")
    tool, call = named(approval.tool), approval.call_id
    yield f"{approval.run_id}: {agent} wants to use {tool} ({named(call)}; {left})"
    yield from _indented(input_line(approval.input))
    yield f"  {command('approve', approval.run_id, call)}    or reject"


def _left(deadline: float, now: float, what: str) -> str:
    """What happens without a word, and when; nobody counts it for a run that no process has."""
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


def _indented(text: str) -> Iterator[str]:
    return (f"    {line}" for line in visible(text).splitlines())


def _named(run_id: str, calls: Sequence[str] | None, all_: bool) -> list[str]:
    """The calls that the operator names: the one that waits may not be the one that was read."""
    if bool(calls) == all_:
        raise typer.BadParameter(
            f"name the calls, or say --all; `orchestrator pending` shows what {run_id} waits for"
        )
    return list(calls or ())


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"--input is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise typer.BadParameter("--input must be a JSON object, as the tool takes it")
    return value


def _tell_decided(as_json: bool, run_id: str, decided: Sequence[Approval], later: str) -> None:
    if as_json:
        print(json.dumps({"run_id": run_id, "approvals": _dumped(decided)}))
        return
    if not decided:
        print(f"no tool call of {run_id} waits to be approved")
    print_lines(
        f"{each.decision}  {named(each.call_id)}  {named(each.tool)} "
        f"{input_line(each.new_input or each.input)}"
        for each in decided
    )
    if later and decided:
        print(later)


def _ask_lines(
    questions: Sequence[Question], approvals: Sequence[Approval], agents: dict[str, str]
) -> Iterator[str]:
    for question in questions:
        yield from question_lines(question, agents[question.run_id], time.time())
    for approval in approvals:
        yield from approval_lines(approval, agents[approval.run_id], time.time())


def _ended_line(view: TaskView) -> str:
    reason = f" ({view.reason})" if view.reason not in ("", "ok") else ""
    took = f" in {view.ended - view.created:.1f} s" if view.ended else ""
    more = f"; `orchestrator show {view.run_id}` tells more" if view.ended else ""
    return f"{view.run_id}: {view.agent} {view.status}{reason}{took}{more}"


def _dumped(
    models: Sequence[Question] | Sequence[Approval] | Sequence[TaskView],
) -> list[dict[str, object]]:
    return [model.model_dump(mode="json") for model in models]
