"""`orchestrator sessions`: conversations that are kept, and their containers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.options import JsonOption, print_either
from orchestrator.surfaces.text import print_lines, span, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.store.session_rows import SessionKey, SessionRow

sessions_app = typer.Typer(
    help="Conversations that are kept, and their containers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SESSION_HEADINGS = ("SESSION", "STATE", "CALLS", "LAST USED", "EXPIRES")

SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="AGENT, AGENT/CALLER or AGENT/CALLER/NAME.")
]


@sessions_app.command("list")
def list_(*, as_json: JsonOption = False) -> None:
    """List the sessions, the last used one first."""
    import anyio

    rows = anyio.run(_rows)
    if as_json:
        print(json.dumps({"sessions": [row.model_dump(mode="json") for row in rows]}))
        return
    if not rows:
        print("no session has begun yet")
        return
    print_lines(sessions_table(rows, now=time.time()))


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

    key, done = anyio.run(_remove, session)
    text = f"{key} is removed" if done else f"there was no session {key}"
    print_either(as_json, {"session": key, "removed": done}, text)


def sessions_table(rows: Sequence[SessionRow], *, now: float) -> Iterator[str]:
    """A heading and a line for each session."""
    cells = (
        (
            row.key.text,
            row.state,
            str(row.runs),
            f"{span(now - row.used)} ago",
            f"in {span(row.expires - now)}",
        )
        for row in rows
    )
    return table([SESSION_HEADINGS, *cells])


def _found(rows: Sequence[SessionRow], text: str) -> SessionRow:
    from orchestrator.errors import SessionRefused

    key = _key(text)
    for row in rows:
        if row.key == key:
            return row
    known = ", ".join(row.key.text for row in rows) or "none"
    raise SessionRefused(f"there is no session {key.text!r}; known: {known}")


def _key(text: str) -> SessionKey:
    from orchestrator.settings import read_settings
    from orchestrator.store.session_rows import SessionKey

    agent, _, rest = text.partition("/")
    caller, _, name = rest.partition("/")
    return SessionKey(agent=agent, caller=caller or read_settings().caller, name=name or "default")


async def _rows() -> tuple[SessionRow, ...]:
    from orchestrator.settings import read_settings
    from orchestrator.state import living_sessions

    return await living_sessions(read_settings())


async def _stop(text: str) -> tuple[str, bool]:
    from orchestrator.app import open_orchestrator
    from orchestrator.settings import read_settings

    async with open_orchestrator(read_settings()) as service:
        key = _found(await service.sessions.list(), text).key
        return key.text, await service.sessions.let_go(key)


async def _remove(text: str) -> tuple[str, bool]:
    from orchestrator.app import open_orchestrator
    from orchestrator.settings import read_settings

    key = _key(text)
    async with open_orchestrator(read_settings()) as service:
        return key.text, await service.sessions.remove(key)
