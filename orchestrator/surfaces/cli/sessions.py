"""`orchestrator sessions`: conversations that are kept, and their containers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.options import EveryProjectOption, JsonOption, print_either, say_none
from orchestrator.surfaces.cli.records.run_table import NO_PROJECT, project_name
from orchestrator.surfaces.text import print_lines, span, table, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.store.session_rows import SessionKey, SessionRow

sessions_app = Commands("Conversations that are kept, and their containers.")

SESSION_HEADINGS = ("SESSION", "STATE", "CALLS", "LAST USED", "EXPIRES")

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="AGENT, AGENT/CALLER or AGENT/CALLER/NAME.")
]


@sessions_app.command("list")
def list_(*, all_: EveryProjectOption = False, as_json: JsonOption = False) -> None:
    """List the sessions of this project, and those of none, the last used one first."""
    import anyio

    rows = anyio.run(_rows, all_)
    if as_json:
        print(json.dumps({"sessions": [row.model_dump(mode="json") for row in rows]}))
        return
    if not rows:
        say_none("no session has begun yet", all_=all_)
        return
    print_lines(sessions_table(rows, now=time.time(), projects=all_))


@sessions_app.command("show")
def show_session(session: SessionArgument, *, as_json: JsonOption = False) -> None:
    """Print one session: its state, its conversation, how long it stays."""
    import anyio

    row = _found(anyio.run(_rows), session)
    if as_json:
        print(json.dumps(row.model_dump(mode="json")))
        return
    fields = (
        ("session", row.key.text),
        ("project", visible(row.key.project) or NO_PROJECT),
        ("state", row.state),
        ("conversation", row.conversation or "(none yet)"),
        ("calls", str(row.runs)),
        ("last used", f"{span(time.time() - row.used)} ago"),
        ("expires", f"in {span(row.expires - time.time())}"),
    )
    print_lines(table(fields))


@sessions_app.command()
def stop(session: SessionArgument, *, as_json: JsonOption = False) -> None:
    """Stop a session's container; its files and its conversation stay."""
    import anyio

    key, done = anyio.run(_stop, session)
    text = f"{key} is stopped" if done else f"{key} was not running"
    print_either(as_json, {"session": key, "stopped": done}, text)


@sessions_app.command()
def rm(session: SessionArgument, *, as_json: JsonOption = False) -> None:
    """Remove a session: its container, its files and its conversation."""
    import anyio

    key = anyio.run(_remove, session)
    print_either(as_json, {"session": key, "removed": True}, f"{key} is removed")


@sessions_app.command()
def adopt(session: SessionArgument, *, as_json: JsonOption = False) -> None:
    """Have this project take over a session from before sessions belonged to projects."""
    import anyio

    from orchestrator.errors import SessionRefused

    key, done = anyio.run(_adopt, session)
    if not done:
        raise SessionRefused(
            f"{key} cannot be taken over: there is no such session without a project, or this "
            "project has one of that name (`orchestrator sessions list` shows them)"
        )
    print_either(as_json, {"session": key, "adopted": True}, f"{key} belongs to this project now")


def sessions_table(
    rows: Sequence[SessionRow], *, now: float, projects: bool = False
) -> Iterator[str]:
    """A heading and a line for each session; where those of several projects or of none are listed,
    with its project.
    """
    projects = projects or any(not row.key.project for row in rows)
    cells = (
        (
            row.key.text,
            *((project_name(row.key.project),) * projects),
            row.state,
            str(row.runs),
            f"{span(now - row.used)} ago",
            f"in {span(row.expires - now)}",
        )
        for row in rows
    )
    first, *rest = SESSION_HEADINGS
    return table([(first, *(("PROJECT",) * projects), *rest), *cells])


def _found(rows: Sequence[SessionRow], text: str) -> SessionRow:
    from orchestrator.errors import SessionRefused

    key = _key(text)
    for wanted in (key, key.model_copy(update={"project": ""})):  # of this project, or of none
        for row in rows:
            if row.key == wanted:
                return row
    known = ", ".join(row.key.text for row in rows if row.key.project in ("", key.project))
    known = known or "none"
    raise SessionRefused(f"there is no session {key.text!r}; known: {known}")


def _key(text: str) -> SessionKey:
    from orchestrator.settings import read_settings
    from orchestrator.store.session_rows import SessionKey

    agent, _, rest = text.partition("/")
    caller, _, name = rest.partition("/")
    settings = read_settings()
    return SessionKey(
        project=settings.project,
        agent=agent,
        caller=caller or settings.caller,
        name=name or "default",
    )


async def _rows(all_: bool = True) -> tuple[SessionRow, ...]:
    from orchestrator.settings import read_settings
    from orchestrator.state import living_sessions

    settings = read_settings()
    rows = await living_sessions(settings)
    return tuple(row for row in rows if all_ or row.key.project in ("", settings.project))


async def _stop(text: str) -> tuple[str, bool]:
    from orchestrator.app import open_orchestrator
    from orchestrator.settings import read_settings

    async with open_orchestrator(read_settings()) as service:
        key = _found(await service.sessions.list(), text).key
        return key.text, await service.sessions.let_go(key)


async def _remove(text: str) -> str:
    from orchestrator.app import open_orchestrator
    from orchestrator.settings import read_settings

    async with open_orchestrator(read_settings()) as service:
        rows = await service.sessions.list()
        key = _key(text)
        unclaimed = key.model_copy(update={"project": ""})
        known = {row.key for row in rows}
        chosen = unclaimed if key not in known and unclaimed in known else key
        if not await service.sessions.remove(chosen):  # a crash may leave a container and no row
            _found(rows, text)
        return key.text


async def _adopt(text: str) -> tuple[str, bool]:
    from orchestrator.settings import read_settings
    from orchestrator.state import adopt_session

    key = _key(text)
    return key.text, await adopt_session(read_settings(), key)
