"""`orchestrator servers`: servers of tools outside of agents, and what they were pinned with."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.domain.words import counted
from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    JsonOption,
    print_either,
    settings_for,
)
from orchestrator.surfaces.cli.server_words import (
    definition_lines,
    diff_lines,
    hints,
    lock_size,
)
from orchestrator.surfaces.text import one_line, print_lines, shortened, table, write

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.catalog import Catalog, KnownServer
    from orchestrator.catalog.problems import Problem
    from orchestrator.domain.tool_lock import Pinned, ToolLock
    from orchestrator.domain.tool_server import ToolServer
    from orchestrator.settings import Settings

EXIT_BROKEN_SERVER = 3
"""A server cannot be used: the same as for any other mistake of an author."""

EXIT_DIFFERS = 1
"""A server is not as it was pinned."""

EXIT_NOT_PINNED = 1
"""The operator did not agree."""

TOOL_CHARS = 100
"""How much of a description a line of a list has room for."""

CLAUDE_CUTS = 2048
"""Characters of a description after which claude cuts it."""

servers_app = Commands("Servers of tools outside of agents.")

ServerArgument = Annotated[str, typer.Argument(metavar="SERVER", help="As its folder is called.")]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Agree to what it reaches, and to what it offers.")
]


@servers_app.command("list")
def list_(*, agents_dir: AgentsDirOption = None, as_json: JsonOption = False) -> None:
    """List the servers: where each runs, what it was pinned with, who uses it."""
    catalog = _catalog(settings_for(agents_dir))
    if as_json:
        print(
            json.dumps(
                {
                    "servers": [_document(known, catalog) for known in catalog.servers.values()],
                    "broken": [each.model_dump(mode="json") for each in catalog.broken_servers],
                }
            )
        )
        return
    rows = [
        (name, _where(known.server), _pinned(known), _users(name, catalog))
        for name, known in catalog.servers.items()
    ]
    rows += [
        (each.name, f"cannot be used: {each.problems[0].message}", "", "")
        for each in catalog.broken_servers
    ]
    print_lines(table(rows))
    if not rows:
        print("there are no servers yet; each is a folder in agents/servers with a server.yaml")


@servers_app.command()
def show(
    name: ServerArgument,
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="Also every word that models are shown.")
    ] = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one server: its settings, and every tool that it was pinned with."""
    catalog = _catalog(settings_for(agents_dir))
    known = catalog.server(name)
    if as_json:
        lock = None if known.lock is None else known.lock.model_dump(mode="json")
        print(json.dumps({**_document(known, catalog), "lock": lock}))
        return
    fields = known.server.model_dump(mode="json", exclude={"files"})
    rows = [(key, _written(value)) for key, value in fields.items() if value not in (None, [], {})]
    print_lines(table([*rows, ("used by", _users(name, catalog) or "no agent")]))
    if all_ and known.lock is not None:
        print_lines(["", *definition_lines(known.lock)])
    else:
        print_lines(["", *_lock_lines(known)])


@servers_app.command()
def check(*, agents_dir: AgentsDirOption = None, as_json: JsonOption = False) -> None:
    """Check every server.yaml and lock; exit code 3 for a mistake."""
    catalog = _catalog(settings_for(agents_dir))
    problems = [problem for broken in catalog.broken_servers for problem in broken.problems]
    problems += [problem for known in catalog.servers.values() for problem in known.problems]
    doubts = list(_doubts(catalog))
    if as_json:
        said = {"ok": not problems, "servers": list(catalog.servers)}
        found = {"problems": problems, "warnings": doubts}
        told = {key: [each.model_dump(mode="json") for each in found[key]] for key in found}
        print(json.dumps({**said, **told}))
    else:
        print_lines(map(str, problems))
        print_lines(f"{doubt} (a warning)" for doubt in doubts)
        count = len(catalog.servers) + len(catalog.broken_servers)
        good = counted(len(problems), "mistake") if problems else "all good"
        print(f"{counted(count, 'server')}, {good}")
    if problems:
        raise typer.Exit(EXIT_BROKEN_SERVER)


@servers_app.command()
def pin(
    name: ServerArgument,
    *,
    yes: YesOption = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a server, show every word that it tells models, and write that down, if you agree."""
    from orchestrator.catalog import write_lock
    from orchestrator.state import open_trust

    settings = settings_for(agents_dir)
    known = _catalog(settings).server(name)
    found = _looked_at(settings, known.server, yes=yes)
    lines = [*definition_lines(found, known.server.description)]
    if known.lock is not None:
        lines += ["", *diff_lines(known.lock, found)]
    if not as_json:
        _print_screens(lines, pause=not yes)
    trust = open_trust(settings)
    path, said = known.path.with_name("tools.lock.json"), "it is pinned with exactly that already"
    if known.lock != found or not trust.has_read(known.server, found):
        if not yes and not _confirmed("Pin it with these?"):
            print("nothing was written")
            raise typer.Exit(EXIT_NOT_PINNED)
        _note_read(settings, name)
        path = write_lock(known, found)
        trust.note_read(known.server, found)
        said = f"written to {path}"
    if as_json:
        print(json.dumps({"server": name, "lock": str(path), "tools": len(found.tools)}))
    else:
        print(f"{lock_size(found)}; {said}")


@servers_app.command()
def diff(
    name: ServerArgument,
    *,
    yes: YesOption = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a server and show what is not as it was pinned; exit code 1 if anything is."""
    settings = settings_for(agents_dir)
    known, lock = _pinned_server(settings, name)
    lines = list(diff_lines(lock, _looked_at(settings, known.server, yes=yes)))
    if as_json:
        print(json.dumps({"server": name, "same": not lines, "lines": lines}))
    else:
        print_lines(lines or [f"{name} is as it was pinned"])
    if lines:
        raise typer.Exit(EXIT_DIFFERS)


@servers_app.command()
def call(
    name: ServerArgument,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="One of its tools.")],
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="Its arguments.")] = "{}",
    *,
    yes: YesOption = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Call a tool yourself, of a server that is pinned; agent.md's rules are not asked."""
    import anyio

    from orchestrator.errors import CallInvalid

    settings = settings_for(agents_dir)
    known, _ = _pinned_server(settings, name)
    try:
        given = json.loads(arguments)
    except ValueError as exc:
        raise CallInvalid(f"the arguments are not JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise CallInvalid("the arguments must be a JSON object, such as '{\"id\": 1}'")
    _agree_to_start(settings, known.server, yes=yes)
    answer = anyio.run(_called, settings, known, tool, given)
    if as_json:
        print(json.dumps(answer))
        return
    blocks = answer.get("content")
    for block in blocks if isinstance(blocks, list) else ():
        text = block.get("text") if isinstance(block, dict) else None
        print_lines([text if isinstance(text, str) else json.dumps(block)])
    if answer.get("isError"):
        raise typer.Exit(EXIT_DIFFERS)


@servers_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .mcp.json, or client settings.")],
    *,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a server.yaml for each server that a client's file names; none is overwritten."""
    from orchestrator.catalog.foreign.mcp_json import import_servers
    from orchestrator.errors import CallInvalid
    from orchestrator.surfaces.cli.setup.written_files import write_file

    settings = settings_for(agents_dir)
    try:
        found = import_servers(file.read_text())
    except (OSError, UnicodeDecodeError) as exc:
        raise CallInvalid(f"{file} cannot be read: {exc}") from exc
    told: list[dict[str, object]] = []
    for server in found:
        path = settings.agents_dir / "servers" / server.name / "server.yaml"
        said = "written" if server.text else "not written"
        try:
            if server.text:
                write_file(path, server.text)
        except FileExistsError:
            said = "is there already, and stays"
        new = said == "written"
        told.append({"server": server.name, "written": new, "notes": list(server.notes)})
        if not as_json:
            print_lines([f"{path}: {said}"])
            print_lines(f"  {note}" for note in server.notes if new or not server.text)
    if as_json:
        print(json.dumps({"servers": told}))
    if not all(server.text for server in found):
        raise typer.Exit(EXIT_BROKEN_SERVER)


@servers_app.command()
def login(
    name: ServerArgument, *, agents_dir: AgentsDirOption = None, as_json: JsonOption = False
) -> None:
    """Log in to a server at a URL, in a browser; its tokens are kept, and renewed."""
    import anyio

    settings = settings_for(agents_dir)
    known = _catalog(settings).server(name)
    _agree_to_start(settings, known.server, yes=False)
    anyio.run(_logged_in, settings, known.server)
    print_either(as_json, {"server": name, "logged_in": True}, f"logged in to {name}")


async def _logged_in(settings: Settings, server: ToolServer) -> None:
    import anyio
    import anyio.to_thread

    from orchestrator.app import log_in_to_server

    def show(url: str) -> None:
        write("log in on this page:", sys.stderr)
        write(f"  {url}", sys.stderr)
        write("if the browser is on another machine, paste the address it ends at:", sys.stderr)

    async def pasted() -> str:
        if not sys.stdin.isatty():
            await anyio.sleep_forever()
        return await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)

    await log_in_to_server(settings, server, show, pasted)


async def _called(
    settings: Settings, known: KnownServer, tool: str, arguments: dict[str, Any]
) -> dict[str, object]:
    from orchestrator.app import call_server

    return await call_server(settings, known.server, known.lock, tool, arguments)


def _pinned_server(settings: Settings, name: str) -> tuple[KnownServer, ToolLock]:
    from orchestrator.errors import ServerNotPinned

    known = _catalog(settings).server(name)
    if known.lock is None:
        raise ServerNotPinned(f"{name} was never pinned; orchestrator servers pin {name}")
    return known, known.lock


def _looked_at(settings: Settings, server: ToolServer, *, yes: bool) -> ToolLock:
    """What a server offers now, if a person agrees to start it."""
    import anyio

    from orchestrator.app import look_at_server

    _agree_to_start(settings, server, yes=yes)
    return anyio.run(look_at_server, settings, server)


def _note_read(settings: Settings, name: str) -> None:
    import anyio

    from orchestrator.state import note_decision

    subject = f"what the server {name} tells models"
    anyio.run(partial(note_decision, settings, "trust", subject, allowed=True, why="pinned"))


def _print_screens(lines: Sequence[str], *, pause: bool) -> None:
    """Print lines, a screen at a time where a person reads them at a terminal."""
    if not (pause and sys.stdin.isatty() and sys.stdout.isatty()):
        print_lines(lines)
        return
    width, height = shutil.get_terminal_size()
    used = 0
    for line in lines:
        takes = max(1, -(-len(line) // width))
        if used and used + takes >= height:
            typer.prompt("Enter shows more", default="", show_default=False, prompt_suffix=" ")
            used = 0
        print_lines([line])
        used += takes


def _catalog(settings: Settings) -> Catalog:
    # Here and above, not at the top: `--help` need not wait for yaml.
    from orchestrator.state import open_agents

    return open_agents(settings).current()


def _agree_to_start(settings: Settings, server: ToolServer, *, yes: bool) -> None:
    """NotTrusted if the server could reach what nobody has agreed to; on a terminal, ask."""
    from orchestrator.state import open_trust

    trust = open_trust(settings)
    wants = () if yes else trust.server_wants(server)
    if not wants:
        return
    if sys.stdin.isatty():
        print_lines([f"{server.name} could reach:", *(f"  {want}" for want in wants)])
        if _confirmed("Start it?"):
            return
    trust.check_server(server)


def _confirmed(question: str) -> bool:
    from orchestrator.errors import OperatorError

    if not sys.stdin.isatty():
        raise OperatorError("no terminal is there to agree on; look at it, and add --yes")
    return typer.confirm(question, default=False)


# What is shown


def _document(known: KnownServer, catalog: Catalog) -> dict[str, object]:
    fields = known.server.model_dump(mode="json", exclude={"files"})
    users = [name for name in catalog.agents if known.server.name in _uses(name, catalog)]
    tools = None if known.lock is None else len(known.lock.tools)
    problems = [problem.model_dump(mode="json") for problem in known.problems]
    return {**fields, "pinned_tools": tools, "used_by": users, "problems": problems}


def _where(server: ToolServer) -> str:
    return server.url or f"{server.image or 'our image'}: {' '.join(server.command)}"


def _pinned(known: KnownServer) -> str:
    if known.problems:
        return "its lock cannot be used"
    return "not pinned" if known.lock is None else lock_size(known.lock)


def _uses(agent: str, catalog: Catalog) -> list[str]:
    return [use.use for use in catalog.agents[agent].server_uses]


def _users(server: str, catalog: Catalog) -> str:
    return ", ".join(name for name in catalog.agents if server in _uses(name, catalog))


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lock_lines(known: KnownServer) -> Iterator[str]:
    if known.lock is None:
        yield from map(str, known.problems)
        yield f"not pinned: orchestrator servers pin {known.server.name}"
        return
    yield f"{known.lock.server}, MCP {known.lock.protocol}, {lock_size(known.lock)}"
    rows = [
        (tool.name, f"{tool.tokens} tokens", hints(tool), _description(tool))
        for tool in known.lock.tools
    ]
    yield from table(rows)
    yield f"every word that models are shown: orchestrator servers show {known.server.name} --all"


def _description(item: Pinned) -> str:
    text = str(item.definition.get("description") or item.definition.get("title") or "")
    return shortened(one_line(text), TOOL_CHARS)


def _doubts(catalog: Catalog) -> Iterator[Problem]:
    from orchestrator.catalog.foreign.secret_values import secret_parts
    from orchestrator.catalog.problems import Problem

    for known in catalog.servers.values():
        for part in secret_parts(known.server.url or ""):
            message = f"holds {part}, which looks like a secret; files of a project hold none"
            yield Problem(path=known.path, line=1, field="url", message=message)
        path = known.path.with_name("tools.lock.json")
        for tool in () if known.lock is None else known.lock.tools:
            size = len(str(tool.definition.get("description", "")))
            told = f"mcp__{known.server.name}__{tool.name}"
            if size > CLAUDE_CUTS:
                message = f"has {size} characters of description, and claude shows {CLAUDE_CUTS}"
                yield Problem(path=path, line=1, field=tool.name, message=message)
            if len(told) > 64:
                message = f"is called {told} by models, which some APIs find too long"
                yield Problem(path=path, line=1, field=tool.name, message=message)
