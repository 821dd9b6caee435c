"""`--server URL`, for each command that an orchestrator elsewhere can serve."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from orchestrator.settings import SERVER_FLAG

if TYPE_CHECKING:
    from orchestrator.client.api import OrchestratorClient
    from orchestrator.engine.tasks.task_book import TaskBook
    from orchestrator.settings import Settings

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Ask the orchestrator there (ORCHESTRATOR_SERVER; token: ORCHESTRATOR_TOKEN).",
    ),
]


def or_elsewhere(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--server`: while it runs, the settings name that server."""

    @wraps(command)
    def there(*args: Any, server: str | None = None, **options: Any) -> None:
        token = SERVER_FLAG.set(server or "")
        try:
            command(*args, **options)
        finally:
            SERVER_FLAG.reset(token)

    known = inspect.signature(command, eval_str=True)
    named = inspect.Parameter(
        "server", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ServerOption
    )
    parameters = (*known.parameters.values(), named)
    there.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    there.__annotations__ = {**command.__annotations__, "server": ServerOption}
    return there


def not_with_server(settings: Settings, **given: object) -> None:
    """BadParameter for options that only a run of this machine has."""
    wrong = [name for name, value in given.items() if value not in (None, "", False)]
    if settings.server and wrong:
        option = f"--{wrong[0].replace('_', '-')}"
        raise typer.BadParameter(f"{option} goes without --server: the server there decides that")


@asynccontextmanager
async def open_server(settings: Settings) -> AsyncIterator[OrchestratorClient]:
    """A client of the server that the settings name."""
    from orchestrator.client.api import OrchestratorClient
    from orchestrator.client.connection import connection_to

    connection = connection_to(settings)
    try:
        yield OrchestratorClient(connection)
    finally:
        await connection.aclose()


@asynccontextmanager
async def open_any_book(settings: Settings) -> AsyncIterator[TaskBook]:
    """The tasks of this machine, or of the server that the settings name."""
    from orchestrator.state import open_book

    if not settings.server:
        async with open_book(settings) as book:
            yield book
        return
    from orchestrator.surfaces.cli.elsewhere.remote_book import RemoteBook

    async with open_server(settings) as client:
        yield cast("TaskBook", RemoteBook(client))  # it has all that these commands ask of one
