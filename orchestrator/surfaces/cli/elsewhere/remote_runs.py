"""`orchestrator run` and `resume` with `--server`: the run is there, the terminal is here."""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn, cast

import anyio
import anyio.to_thread
import typer

from orchestrator.domain.words import ended_as
from orchestrator.errors import OrchestratorError
from orchestrator.surfaces.cli.elsewhere.remote_book import RemoteBook
from orchestrator.surfaces.cli.elsewhere.server_option import open_server
from orchestrator.surfaces.cli.elsewhere.translated import event_of, result_of
from orchestrator.surfaces.cli.run import ALERTED, EXIT_CODES, EXIT_SIGNAL, print_result
from orchestrator.surfaces.cli.talk.typed_answers import TypedAnswers
from orchestrator.surfaces.connect.local_half import LocalHalf
from orchestrator.surfaces.text import visible, write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.client.api import OrchestratorClient
    from orchestrator.client.documents import RemoteRun
    from orchestrator.domain.task import Task
    from orchestrator.engine.tasks.task_book import TaskBook
    from orchestrator.settings import Settings
    from orchestrator.surfaces.cli.talk.alerts import Alerts
    from orchestrator.surfaces.event_lines import Show

CANCEL_THERE_SECONDS = 20.0
"""For a run to end after Ctrl-C."""


def carry_out_there(settings: Settings, task: Task, *, as_json: bool, notify: bool) -> NoReturn:
    """Run a task on the server that the settings name, print what comes of it, exit as it ended."""

    async def begin(client: OrchestratorClient) -> str:
        workspace = str(task.workspace) if task.workspace is not None else ""
        if workspace:
            sent = LocalHalf(settings, client.connection).sent({workspace}, _say)
            workspace = (await sent)[workspace]
        begun = await client.start(
            *(task.agent, task.prompt),
            context=task.context,
            workspace=workspace,
            session=task.session,
            timeout_seconds=task.timeout_seconds,
            say=_say,
        )
        return begun.run_id

    _carry_out(settings, begin, task.agent, as_json=as_json, notify=notify)


def resume_there(settings: Settings, run_id: str, said: str, *, now: bool, as_json: bool) -> str:
    """Tell an agent something; the run, if it is under way. A new one is carried out to its end."""

    async def tell() -> tuple[str, str, str]:
        async with open_server(settings) as client:
            meant = await RemoteBook(client).named(run_id, "")
            heard = await client.tell(meant, said, now=now)
            return meant, heard, (await client.get(heard)).agent

    meant, heard, agent = anyio.run(tell)
    if heard == meant:
        return meant

    async def there(_: OrchestratorClient) -> str:
        return heard

    return _carry_out(settings, there, agent, as_json=as_json, notify=False)


async def _say(line: str) -> None:
    write(visible(line), sys.stderr)


def _carry_out(
    settings: Settings,
    begin: Callable[[OrchestratorClient], Awaitable[str]],
    agent: str,
    *,
    as_json: bool,
    notify: bool,
) -> NoReturn:
    from orchestrator.settings import whole_environment
    from orchestrator.surfaces.cli.talk.alerts import Alerts
    from orchestrator.surfaces.event_lines import shown_events

    alerts = Alerts(notify, whole_environment())
    with shown_events(waiting=f"{agent} is at work") as show:
        run, signal_number = anyio.run(_follow, settings, begin, show, alerts)
    result = result_of(run) if run is not None else None
    if result is not None:
        if not signal_number:
            alerts.say(f"{agent} {ended_as(result.status, result.reason)}")
        print_result(result, as_json=as_json)
    if signal_number:
        raise typer.Exit(EXIT_SIGNAL + signal_number)
    raise typer.Exit(EXIT_CODES[result.status] if result is not None else 1)


async def _follow(
    settings: Settings,
    begin: Callable[[OrchestratorClient], Awaitable[str]],
    show: Show,
    alerts: Alerts,
) -> tuple[RemoteRun | None, int]:
    """The run when it has ended, and the signal that cut it short."""
    began, caught = time.time(), 0
    outcome: RemoteRun | OrchestratorError | None = None
    async with open_server(settings) as client:
        async with anyio.create_task_group() as group:

            async def cancel_on_signal() -> None:
                nonlocal caught
                with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    async for number in signals:
                        caught = number
                        group.cancel_scope.cancel()
                        return  # a second one ends us at once

            group.start_soon(cancel_on_signal)
            run_id = ""
            try:
                run_id = await begin(client)
                await _told(client, run_id, partial(_show_since, show, began), alerts, group)
                outcome = await client.get(run_id)
            except OrchestratorError as exc:  # raised in here, it would arrive in a group
                outcome = exc
            finally:
                if caught and run_id:
                    with anyio.move_on_after(CANCEL_THERE_SECONDS, shield=True):
                        outcome = await client.cancel(run_id, CANCEL_THERE_SECONDS)
            group.cancel_scope.cancel()
        if isinstance(outcome, OrchestratorError):
            raise outcome
        return outcome, caught


def _show_since(show: Show, began: float, at: float, kind: str, text: str) -> None:
    show(at - began, kind, text)


async def _told(
    client: OrchestratorClient,
    run_id: str,
    show: Callable[[float, str, str], None],
    alerts: Alerts,
    group: anyio.abc.TaskGroup,
) -> None:
    """Show what happens until the run has ended, and have what it asks answered here."""
    book = cast("TaskBook", RemoteBook(client))
    answers = TypedAnswers(book, run_id, lambda line: show(time.time(), "", line))
    group.start_soon(answers.read)
    async for each in client.events(run_id):
        event = event_of(each)
        show(event.at, event.kind, event.text)
        answers.hear(event)
        if event.kind in ALERTED:
            say = partial(alerts.say, f"{ALERTED[event.kind]}")
            group.start_soon(anyio.to_thread.run_sync, say)
