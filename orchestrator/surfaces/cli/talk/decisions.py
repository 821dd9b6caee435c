"""`orchestrator pending`, `reply`, `approve` and `reject`: what runs ask, and what is said to it.

All of it goes through the store, so that it works from any terminal.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.surfaces.cli.options import (
    EveryProjectOption,
    JsonOption,
    NotifyOption,
    dumped,
    on_book,
    print_either,
    say_none,
)
from orchestrator.surfaces.cli.talk.asked import (
    NOTHING_WAITS,
    approval_lines,
    ask_lines,
    chosen_calls,
    chosen_question,
    input_line,
    no_call_waits,
    waiting_line,
    what_waits,
    when_it_goes_on,
)
from orchestrator.surfaces.text import named, print_lines, visible, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.domain.exchange import Approval
    from orchestrator.engine.tasks.task_book import TaskBook

EXIT_NOT_DECIDED = 1
"""The person looked, and did not say yes."""

CallsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN] [CALL...]",
        help="As `orchestrator pending` names them, or how their names begin; neither, if one "
        "call waits.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="All calls of RUN that wait now.")]


def pending(
    *,
    all_: EveryProjectOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what waits as it comes; decide with a key.")
    ] = False,
    notify: NotifyOption = False,
    hook: Annotated[
        bool, typer.Option("--hook", help="One line for a hook of Claude Code, if anything waits.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the questions of this project's runs that wait for an answer, and the tool calls that
    wait to be approved.
    """
    if watch:
        _watch(all_, notify, as_json or hook)
        return
    if notify:
        raise typer.BadParameter("--notify goes with --watch")
    waiting = on_book(lambda book, project: what_waits(book, None if all_ else project))
    if hook:
        if waiting.agents:
            line = waiting_line(len(waiting.questions), len(waiting.approvals))
            print(json.dumps({"systemMessage": line}))
        return
    if as_json:
        said = {"questions": dumped(waiting.questions), "approvals": dumped(waiting.approvals)}
        print(json.dumps(said))
        return
    if not waiting.agents:
        say_none(NOTHING_WAITS, all_=all_)
    print_lines(ask_lines(waiting))


def _watch(all_: bool, notify: bool, for_programs: bool) -> None:
    if for_programs or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("--watch needs a terminal, and goes without --json and --hook")
    import anyio

    from orchestrator.settings import read_settings, whole_environment
    from orchestrator.surfaces.cli.talk.alerts import Alerts
    from orchestrator.surfaces.cli.talk.watch_pending import decide_with_keys

    alerts = Alerts(notify, whole_environment())
    anyio.run(partial(decide_with_keys, read_settings(), all_=all_, alerts=alerts))


def reply(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN [MESSAGE]] ANSWER",
            help="What the agent is told; - reads it from stdin. Which question is meant: its run, "
            "and its name, or how they begin; neither, if only one waits.",
        ),
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Answer a question that a run has asked."""
    *where, answer = words
    if len(where) > 2:
        raise typer.BadParameter("put the answer in quotes: reply RUN MESSAGE 'THE ANSWER'")
    text = sys.stdin.read() if answer == "-" else answer

    async def answer_it(book: TaskBook, project: str) -> tuple[str, str, str]:
        run_id, names = await _run_of(book, project, where)
        if run_id and names:  # so that one that waits no more is told as what it is
            message_id = await _whole_name(book, run_id, names[0])
        else:
            waiting = await what_waits(book, None if run_id else project)
            question = chosen_question(waiting, run_id, "".join(names))
            run_id, message_id = question.run_id, question.message_id
        await book.reply(run_id, message_id, text, None)
        return run_id, message_id, await when_it_goes_on(book, run_id)

    run_id, message_id, later = on_book(answer_it)
    said = {"run_id": run_id, "message_id": message_id, "answer": text}
    print_either(as_json, said, later or f"{run_id} has its answer")


def approve(
    words: CallsArgument = None,
    *,
    all_: AllOption = False,
    given: Annotated[
        str, typer.Option("--input", metavar="JSON", help="What runs instead; for one call.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Allow tool calls that wait for it."""
    instead = _object(given) if given else None
    run_id, calls = _chosen(words or [], all_, asks_again=not as_json)
    if instead is not None and len(calls) != 1:
        raise typer.BadParameter("--input goes with exactly one CALL")
    edited = {calls[0]: instead} if instead is not None else {}
    _decide(as_json, run_id, approve=calls, approve_all=all_, inputs=edited)


def reject(
    words: CallsArgument = None,
    *,
    all_: AllOption = False,
    why: Annotated[str, typer.Option(metavar="TEXT", help="What the agent is told.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Refuse tool calls that wait to be allowed."""
    run_id, calls = _chosen(words or [], all_, asks_again=False)
    _decide(as_json, run_id, reject=calls, reject_all=all_, message=why)


def _chosen(words: Sequence[str], all_: bool, *, asks_again: bool) -> tuple[str, list[str]]:
    """The run, and the calls of it that are meant; those with --all are left to the book.

    Where the operator has named no call, the one that waits may not be the one that was read: at a
    terminal it is shown, and asked about.
    """
    if all_ and len(words) != 1:
        raise typer.BadParameter("--all goes with a RUN and no CALL; name the calls, or say --all")

    async def choose(book: TaskBook, project: str) -> tuple[str, list[str], Approval | None]:
        run_id, names = await _run_of(book, project, words)
        if all_:
            return run_id, [], None
        waiting = await what_waits(book, None if run_id else project)
        calls = chosen_calls(waiting, run_id, names)
        only = None if names else calls[0]
        return calls[0].run_id, [each.call_id for each in calls], only

    run_id, calls, unnamed = on_book(choose)
    if unnamed is not None and asks_again and sys.stdin.isatty() and sys.stderr.isatty():
        for line in list(approval_lines(unnamed, "the agent", 0.0))[:-1]:
            write(visible(line), sys.stderr)
        if not typer.confirm("Allow it?", err=True):
            write("nothing is decided", sys.stderr)
            raise typer.Exit(EXIT_NOT_DECIDED)
    return run_id, calls


async def _run_of(book: TaskBook, project: str, words: Sequence[str]) -> tuple[str, list[str]]:
    """The run that the first word names, if it names one, and the words after it."""
    from orchestrator.errors import RunNotFound

    if not words:
        return "", []
    try:
        return await book.named(words[0], project), list(words[1:])
    except RunNotFound:
        waiting = await what_waits(book, project)
        names = [each.message_id for each in waiting.questions]
        names += [each.call_id for each in waiting.approvals]
        if not any(name.startswith(words[0]) for name in names):
            raise
        return "", list(words)


async def _whole_name(book: TaskBook, run_id: str, beginning: str) -> str:
    """The open question of a run whose name begins so; else the word as it is."""
    view = await book.view(run_id)
    names = [each.message_id for each in view.questions]
    fitting = [name for name in names if name.startswith(beginning)]
    return fitting[0] if len(fitting) == 1 else beginning


def _decide(as_json: bool, run_id: str, **words: Any) -> None:
    async def decide(book: TaskBook, project: str) -> tuple[tuple[Approval, ...], str]:  # noqa: ARG001 the book knows the run
        decided = await book.decide(run_id, None, **words)
        if not decided:
            return (), no_call_waits(await what_waits(book, None), run_id)
        return decided, await when_it_goes_on(book, run_id)

    decided, later = on_book(decide)
    if as_json:
        print(json.dumps({"run_id": run_id, "approvals": dumped(decided)}))
        return
    print_lines(
        f"{each.decision}  {named(each.call_id)}  {named(each.tool)} "
        f"{input_line(each.new_input or each.input)}"
        for each in decided
    )
    if later:
        print_lines((later,))


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise typer.BadParameter(f"--input is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise typer.BadParameter("--input must be a JSON object, as the tool takes it")
    return value
