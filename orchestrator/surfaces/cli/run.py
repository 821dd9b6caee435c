"""`orchestrator run`: one task for one agent. Progress on stderr, the answer on stdout."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    JsonOption,
    WorkspaceOption,
    settings_for,
)
from orchestrator.surfaces.text import costs, named, one_line, visible, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.domain.events import Event
    from orchestrator.domain.result import RunResult
    from orchestrator.domain.task import Task
    from orchestrator.settings import Settings
    from orchestrator.surfaces.event_lines import Show

EXIT_CODES = {"completed": 0, "failed": 1, "timed_out": 8, "cancelled": 9}
"""How a run ended -> what the command exits with."""

EXIT_SIGNAL = 128
"""And the number of the signal that ended it, as shells count."""


def run(
    agent: Annotated[str, typer.Argument(help="The agent, as its folder is called.")],
    prompt: Annotated[str, typer.Argument(help="The task; - reads it from stdin.")],
    *,
    context: Annotated[str, typer.Option(metavar="TEXT", help="What else it should know.")] = "",
    workspace: WorkspaceOption = None,
    session: Annotated[
        str,
        typer.Option(metavar="NAME", help="For an agent with sessions: which; `new` begins one."),
    ] = "",
    caller: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who asks (ORCHESTRATOR_CALLER; main).")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Less than the agent's own timeout.")
    ] = None,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run an agent on a task and print its answer; what happens meanwhile goes to stderr."""
    from orchestrator.app import own_caller

    settings = settings_for(agents_dir)
    task = _task(
        agent=agent,
        prompt=sys.stdin.read() if prompt == "-" else prompt,
        context=context,
        workspace=workspace and workspace.absolute(),
        session=session,
        caller=own_caller(settings, caller),
        timeout_seconds=timeout,
    )
    carry_out(settings, task, as_json=as_json)


def carry_out(settings: Settings, task: Task, *, as_json: bool) -> NoReturn:
    """Run a task, print what comes of it, and exit as it ended."""
    import anyio

    from orchestrator.surfaces.event_lines import shown_events

    with shown_events(waiting=f"{task.agent} is at work") as show:
        result, signal_number = anyio.run(_run, settings, task, show)
    if result is not None:
        _print_result(result, as_json=as_json)
    if signal_number:
        raise typer.Exit(EXIT_SIGNAL + signal_number)
    raise typer.Exit(EXIT_CODES[result.status] if result is not None else 1)


def _task(**fields: object) -> Task:
    from pydantic import ValidationError

    from orchestrator.domain.task import Task
    from orchestrator.errors import CallInvalid

    try:
        return Task.model_validate(fields)
    except ValidationError as exc:
        first = exc.errors()[0]
        name = str(first["loc"][0]).removesuffix("_seconds")
        said = first["msg"].removeprefix("Value error, ")
        raise CallInvalid(f"{name}: {said}") from exc


async def _run(settings: Settings, task: Task, show: Show) -> tuple[RunResult | None, int]:
    """The result, and the signal that cut the run short: its container is gone by then."""
    import anyio

    from orchestrator.app import open_tasks
    from orchestrator.errors import OrchestratorError
    from orchestrator.surfaces.cli.typed_answers import TypedAnswers

    began = time.time()
    caught = 0
    outcome: RunResult | OrchestratorError | None = None

    async def cancel_on_signal(scope: anyio.CancelScope) -> None:
        nonlocal caught
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                caught = number
                scope.cancel()
                return  # a second one ends us at once

    async with open_tasks(settings) as (service, runs), anyio.create_task_group() as tasks:
        answers = TypedAnswers(
            runs.book, task.run_id, lambda line: show(time.time() - began, "", line)
        )

        def tell(event: Event) -> None:
            show(event.at - began, event.kind, event.text)
            answers.hear(event)

        tasks.start_soon(cancel_on_signal, tasks.cancel_scope)
        tasks.start_soon(answers.read)
        try:
            outcome = await runs.run(task, tell)
        except OrchestratorError as exc:  # raised in here, it would arrive in a group
            outcome = exc
        finally:
            if caught:
                with anyio.CancelScope(shield=True):
                    kept = await service.store.run(task.run_id)
                    outcome = kept.result if kept else None
        tasks.cancel_scope.cancel()
    if isinstance(outcome, OrchestratorError):
        raise outcome
    return outcome, caught


def _print_result(result: RunResult, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.model_dump(mode="json")))
        return
    if result.status == "completed":
        text = (
            result.result
            if isinstance(result.result, str)
            else json.dumps(result.result, indent=2, ensure_ascii=False)
        )
        # A terminal obeys some characters; a file or a program gets the answer as it is.
        write(visible(text) if sys.stdout.isatty() else text, sys.stdout)
    else:
        for line in failure_lines(result):
            write(visible(line), sys.stderr)
    write(summary(result), sys.stderr)


def failure_lines(result: RunResult) -> list[str]:
    """What went wrong and what there is of an answer, for people."""
    message = "\n  ".join(visible(result.message).splitlines())
    lines = [f"error: {result.agent} {result.status} ({result.reason}): {message}"]
    lines += [f"  {one_line(error)}" for error in result.schema_errors]
    lines += [f"  MCP server {named(name)} was not there" for name in result.failed_mcp_servers]
    if result.partial_text:
        said = "\n  ".join(visible(result.partial_text).splitlines())
        lines.append(f"it had said last: {said}")
    return lines


def summary(result: RunResult) -> str:
    """How it went, in one line."""
    parts = [
        f"{result.status} in {result.duration_ms / 1000:.1f} s",
        f"{result.usage.requests} model requests, {costs(result)}",
        *_more(result),
        f"`orchestrator logs {result.run_id}` tells more",
    ]
    return "; ".join(parts)


def _more(result: RunResult) -> Iterator[str]:
    from orchestrator.surfaces.cli.changes import counted

    if result.denied_hosts:
        yield f"refused: {', '.join(map(named, result.denied_hosts))}"
    if result.denied_tools:
        yield f"denied: {', '.join(map(named, result.denied_tools))}"
    if result.failed_mcp_servers:
        yield f"MCP servers that were not there: {', '.join(map(named, result.failed_mcp_servers))}"
    if files := len(result.changed_files):
        yield f"{counted(files)} changed, `orchestrator apply {result.run_id}` applies it all"
    if result.session:
        yield f"session {result.session}"
    if result.session_note:
        yield result.session_note
