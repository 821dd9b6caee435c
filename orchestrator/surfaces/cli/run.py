"""`orchestrator run`: one task for one agent. Progress on stderr, the answer on stdout."""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.domain.words import counted, ended_as, requirement
from orchestrator.surfaces.cli.elsewhere.server_option import not_with_server
from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    JsonOption,
    NotifyOption,
    RunnerConfigOption,
    RunnerOption,
    WorkspaceOption,
    settings_for,
)
from orchestrator.surfaces.text import costs, named, one_line, say, tried, visible, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.domain.events import Event
    from orchestrator.domain.result import RunResult
    from orchestrator.domain.task import Task
    from orchestrator.settings import Settings
    from orchestrator.surfaces.cli.talk.alerts import Alerts
    from orchestrator.surfaces.event_lines import Show

EXIT_CODES = {"completed": 0, "failed": 1, "timed_out": 8, "cancelled": 9}
"""How a run ended -> what the command exits with."""

UNKEPT = (
    "how {run} ended could not be written down, so later it is told as lost. Check free space and "
    "permissions of {folder}"
)

ALERTED = {"asked": "asks something", "approval_asked": "waits for your approval"}
"""Kinds of events that a person is told of who looks elsewhere."""

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
    notify: NotifyOption = False,
    agents_dir: AgentsDirOption = None,
    runner: RunnerOption = None,
    runner_config: RunnerConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run an agent on a task and print its answer; what happens meanwhile goes to stderr."""
    from orchestrator.settings import read_settings

    settings = read_settings()
    if settings.server:
        given = {"agents_dir": agents_dir, "runner": runner, "runner_config": runner_config}
        not_with_server(settings, caller=caller, **given)
        who = ""
    else:
        settings = settings_for(agents_dir, runner, runner_config)
        who = _caller(settings, caller, agent)
    task = _task(
        agent=agent,
        prompt=sys.stdin.read() if prompt == "-" else prompt,
        context=context,
        workspace=workspace and workspace.absolute(),
        session=session,
        caller=who,
        timeout_seconds=timeout,
    )
    if settings.server:
        from orchestrator.surfaces.cli.elsewhere.remote_runs import carry_out_there

        carry_out_there(settings, task, as_json=as_json, notify=notify)
    carry_out(settings, task, as_json=as_json, notify=notify)


def _caller(settings: Settings, named: str | None, agent: str) -> str:
    """Who asks; that it was nobody is in the audit before it is refused."""
    import anyio

    from orchestrator.access import own_caller
    from orchestrator.errors import CallerMissing
    from orchestrator.state import note_decision

    try:
        return own_caller(settings, named)
    except CallerMissing as exc:
        why = f"{exc.code}: {exc}"
        anyio.run(partial(note_decision, settings, "call", f"run {agent}", allowed=False, why=why))
        raise


def carry_out(settings: Settings, task: Task, *, as_json: bool, notify: bool = False) -> NoReturn:
    """Run a task, print what comes of it, and exit as it ended."""
    import anyio

    from orchestrator.errors import OperatorError
    from orchestrator.settings import whole_environment
    from orchestrator.surfaces.cli.talk.alerts import Alerts
    from orchestrator.surfaces.event_lines import shown_events

    alerts = Alerts(notify, whole_environment())
    with shown_events(waiting=f"{task.agent} is at work") as show:
        result, signal_number, kept = anyio.run(_run, settings, task, show, alerts)
    if result is not None and not signal_number:
        alerts.say(f"{task.agent} {ended_as(result.status, result.reason)}")
    if result is not None:
        print_result(result, as_json=as_json)
    if not kept:
        write(
            f"error: {visible(UNKEPT.format(run=task.run_id, folder=settings.state_dir))}",
            sys.stderr,
        )
        raise typer.Exit(OperatorError.exit_code)
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
        name = "PROMPT" if name == "prompt" else f"--{name}"
        raise CallInvalid(f"{name} {requirement(first['type'], first['msg'])}") from exc


async def _run(
    settings: Settings, task: Task, show: Show, alerts: Alerts
) -> tuple[RunResult | None, int, bool]:
    """The result, the signal that cut the run short (its container is gone by then), and whether
    the record of runs has it.
    """
    import anyio
    import anyio.to_thread

    from orchestrator.app import open_tasks
    from orchestrator.errors import OrchestratorError
    from orchestrator.surfaces.cli.talk.typed_answers import TypedAnswers

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
            if event.kind in ALERTED:
                say = partial(alerts.say, f"{task.agent} {ALERTED[event.kind]}")
                tasks.start_soon(anyio.to_thread.run_sync, say)

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
    return outcome, caught, not service.unkept


def print_result(result: RunResult, *, as_json: bool) -> None:
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
            say(visible(line), sys.stderr)
    say(summary(result), sys.stderr)


def failure_lines(result: RunResult) -> list[str]:
    """What went wrong and what there is of an answer, for people."""
    message = "\n  ".join(visible(result.message).splitlines())
    lines = [f"error: {result.agent} {ended_as(result.status, result.reason)}: {message}"]
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
        f"{counted(result.usage.requests, 'model request')}, {costs(result)}",
        *_more(result),
        f"`orchestrator logs {result.run_id}` tells more",
    ]
    return "; ".join(parts)


def _more(result: RunResult) -> Iterator[str]:
    if said := tried(result):
        yield said
    if result.denied_hosts:
        yield f"refused: {', '.join(map(named, result.denied_hosts))}"
    if result.denied_tools:
        yield f"denied: {', '.join(map(named, result.denied_tools))}"
    if result.failed_mcp_servers:
        yield f"MCP servers that were not there: {', '.join(map(named, result.failed_mcp_servers))}"
    if files := len(result.changed_files):
        changed = counted(files, "file")
        yield f"{changed} changed, `orchestrator apply {result.run_id}` applies it all"
    if result.session:
        yield f"session {result.session}"
    if result.session_note:
        yield result.session_note
