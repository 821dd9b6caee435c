"""`orchestrator init`: what a project needs to hand out tasks, and what its clients need to know.

Nothing that exists is overwritten: agents stay as they are, and a client's file gets one entry more
with all else as it was. A file that cannot be read that way is left alone, and the lines to add are
printed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from orchestrator.surfaces.cli.options import JsonOption
from orchestrator.surfaces.text import print_lines, visible

if TYPE_CHECKING:
    from orchestrator.surfaces.cli.setup.client_entries import Client

EXIT_NOT_ALL = 1
"""Something was not done: a file has to be changed by hand."""

SCREEN_COLUMNS = 80

OWN_NAME = "orchestrator"
"""Of our command."""

MAX_FILE_BYTES = 4 * 1024 * 1024
"""Of a client's settings; nobody writes longer ones."""


class ClientChoice(StrEnum):
    """Whom we know how to tell; here and not with the entries, which take longer to load."""

    CLAUDE = "claude"
    CLAUDE_PLUGIN = "claude-plugin"
    CODEX = "codex"
    COPILOT = "copilot"
    GEMINI = "gemini"
    VSCODE = "vscode"
    CURSOR = "cursor"
    ZED = "zed"


HELLO_AGENT = """\
---
name: hello
description: Answers one question about the machine it runs on. An example to change.
permissions:
  allow: [Bash]
max_turns: 10
output_schema:
  type: object
  additionalProperties: false
  required: [answer, evidence]
  properties:
    answer: {type: string, minLength: 1}
    evidence: {type: string, description: The command that was run and what it printed.}
---

You answer a question about the machine you run on, which is a container without any network.
Run a command with Bash to find out, then answer. Do not guess.
"""

HELLO_SCRIPT = """\
# Plays the model when ORCHESTRATOR_SCRIPTED=1 is set: a run without a key.
steps:
  - tool: Bash
    input: {command: uname -srm}
  - text: >-
      {"answer": "I run on Linux.", "evidence": {last_tool_result_json}}
"""

FileOutcome = Literal["written", "added", "exists", "kept", "installed", "refused"]
"""Made anew; an entry was added; it is there already; another entry of that name is there; a client
has the plugin; it has to be done by hand."""

WOULD: Mapping[FileOutcome, str] = {
    "written": "would write",
    "added": "would add to",
    "installed": "would install",
}


class Wanted(NamedTuple):
    """A file that a project should have, or one that should have our entry."""

    path: Path
    content: str
    """What to write; for a file that is there already, with what was in it."""
    outcome: FileOutcome
    why: str = ""
    """It was refused, or kept."""
    lines: tuple[str, ...] = ()
    """What to add by hand."""
    client: str = ""


def init(
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The project; here, if not given.")
    ] = None,
    *,
    client: Annotated[
        list[ClientChoice] | None,
        typer.Option("--client", help="Tell this one of the server; can be given several times."),
    ] = None,
    server: Annotated[
        str,
        typer.Option(metavar="URL", help="Have them use the orchestrator there, by `connect`."),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write agents/ with an example, and tell clients of the server; nothing is overwritten."""
    from orchestrator.settings import project_root
    from orchestrator.surfaces.cli.setup.client_entries import KNOWN_CLIENTS, connecting_to

    project = (directory or Path()).resolve()
    command = own_command()
    names = tuple(dict.fromkeys(each.value for each in client or (ClientChoice.CLAUDE,)))
    files = {name: KNOWN_CLIENTS[name] for name in names if name in KNOWN_CLIENTS}
    if server:
        from orchestrator.client.connection import checked_url

        url = checked_url(server, has_token=True)
        if ClientChoice.CLAUDE_PLUGIN.value in names:
            raise typer.BadParameter("--server goes with clients' files, not with claude-plugin")
        files = {name: connecting_to(each, url) for name, each in files.items()}
    above = project_root(project, Path.home())
    example = () if server else example_files(project)
    wanted = [
        *example,
        *(client_file(project, command, name, each) for name, each in files.items()),
    ]
    if not dry_run:
        for each in wanted:
            _write(each)
    if ClientChoice.CLAUDE_PLUGIN.value in names:
        wanted.append(_plugin(dry_run=dry_run))
    told = _told(names, files, {each.client: each.outcome for each in wanted})
    if as_json:
        print(json.dumps(_document(wanted, told, dry_run=dry_run)))
    else:
        print_lines(_lines(wanted, dry_run=dry_run))
        if above != project:
            print_lines((f"this is a project of its own, inside of the project {above}",))
        asks = told.values()
        has_example = bool(example)
        print_lines(_next_steps(project, command, asks, example=has_example, server=server))
    if any(each.outcome == "refused" for each in wanted):
        raise typer.Exit(EXIT_NOT_ALL)


def example_files(project: Path) -> tuple[Wanted, ...]:
    """An agent to begin with, where there is none yet."""
    hello = project / "agents" / "hello"
    if not hello.exists() and any(project.glob("agents/*/agent.md")):
        return ()
    files = {hello / "agent.md": HELLO_AGENT, hello / "script.yaml": HELLO_SCRIPT}
    return tuple(
        Wanted(path, content, "exists" if os.path.lexists(path) else "written")
        for path, content in files.items()
    )


def client_file(project: Path, command: str, name: str, client: Client) -> Wanted:
    """What becomes of a client's file."""
    from orchestrator.surfaces.cli.setup import merging

    path = project / client.file
    entry = client.entry(command, project / "agents")
    lines = tuple(merging.lines_of(client.kind, client.path, entry))
    find, add = (
        (merging.toml_entry, merging.toml_with)
        if client.kind == "toml"
        else (merging.json_entry, merging.json_with)
    )
    try:
        before = _read(path)
        if before is None:
            return Wanted(path, "\n".join((*lines, "")), "written", client=name)
        there = find(before, client.path)
        if there == entry:
            return Wanted(path, before, "exists", client=name)
        if there is not None:
            why = f"it has another entry {'.'.join(client.path)}; ours would be"
            return Wanted(path, before, "kept", why, lines, name)
        return Wanted(path, add(before, client.path, entry), "added", client=name)
    except merging.CannotMerge as exc:
        return Wanted(path, "", "refused", f"{exc}; add this yourself", lines, name)


def _plugin(*, dry_run: bool) -> Wanted:
    from orchestrator.surfaces.cli.setup import plugin

    found = plugin.Installed(done=True) if dry_run else plugin.install()
    return Wanted(
        plugin.PLUGIN_DIR,
        "",
        "installed" if found.done else "refused",
        found.why,
        () if found.done else (plugin.line_to_type(),),
        ClientChoice.CLAUDE_PLUGIN.value,
    )


def _told(
    names: Sequence[str], files: Mapping[str, Client], outcomes: Mapping[str, FileOutcome]
) -> dict[str, tuple[str, str]]:
    """Of each client, where it finds us, and what a person has to know of it."""
    from orchestrator.surfaces.cli.setup import plugin

    told = {}
    for name in names:
        client = files.get(name)
        title, asks = (client.title, client.asks) if client else (plugin.TITLE, plugin.ASKS)
        file = client.file if client else "the plugin"
        match outcomes[name]:
            case "refused":
                told[name] = (f"{title} does not know the server yet: do what stands above", asks)
            case "kept":
                told[name] = (f"{title} uses the entry that was in {file} before", asks)
            case _:
                here = " when it is started here" * bool(client)
                told[name] = (f"{title} finds {file}{here}", asks)
    return told


def _read(path: Path) -> str | None:
    """A client's file; None if there is none. CannotMerge for what is not ours to change."""
    from orchestrator.surfaces.cli.setup.merging import CannotMerge

    if path.resolve() != path:
        raise CannotMerge(f"it is a link, or lies behind one, to {path.resolve()}")
    try:
        if path.stat().st_size > MAX_FILE_BYTES or not path.is_file():
            raise CannotMerge("it is no file, or one that is too long")
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise CannotMerge(f"it cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise CannotMerge("it is no UTF-8") from exc


def _lines(wanted: Sequence[Wanted], *, dry_run: bool) -> Iterator[str]:
    would = WOULD if dry_run else {}
    seen: set[Path] = set()
    for each in wanted:
        if each.path in seen:  # two clients read the same file
            continue
        seen.add(each.path)
        yield f"{would.get(each.outcome, each.outcome):8} {each.path}"
        if each.why:
            yield f"         {visible(each.why)}:"
            yield from (f"           {line}" for line in each.lines)


def _document(
    wanted: Sequence[Wanted], told: Mapping[str, tuple[str, str]], *, dry_run: bool
) -> dict[str, object]:
    files = [
        {
            "path": str(each.path),
            "outcome": each.outcome,
            **({"client": each.client} if each.client else {}),
            **({"why": each.why, "lines": list(each.lines)} if each.why else {}),
        }
        for each in wanted
    ]
    asks = {name: " ".join(asks.split()) for name, (_, asks) in told.items()}
    return {"dry_run": dry_run, "files": files, "clients": asks}


def _next_steps(
    project: Path, command: str, told: Iterable[tuple[str, str]], *, example: bool, server: str
) -> Iterator[str]:
    """What to do now, and what each client will ask."""
    yield ""
    if example:
        yield "Try it (with ORCHESTRATOR_SCRIPTED=1 a script plays the model, without a key):"
        if project != Path.cwd():
            yield f"  cd {shlex.quote(str(project))}"
        yield f"  {shlex.quote(command)} run hello 'Which kernel is this?'"
    if command != OWN_NAME:
        yield f"`{OWN_NAME}` is not on your PATH, so files for clients name it by its place here."
        yield "Before you share them, install it (`orchestrator help install`)."
    for where, asks in told:
        yield f"{where}:"
        yield from textwrap.wrap(
            asks,
            SCREEN_COLUMNS,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    if server:
        yield f"Start clients with ORCHESTRATOR_TOKEN set to a token of the server at {server}"
        yield "(or ORCHESTRATOR_TOKEN_FILE); `orchestrator help connect` tells more."
        return
    yield "Write agents/NAME/agent.md, and see with `orchestrator agents check` and"
    yield "`orchestrator plan NAME` what it may do. One that is to reach hosts, secrets or"
    yield "the like runs once you have agreed to that with `orchestrator trust`."


def own_command() -> str:
    """How others start us: by name if that finds us, else by path."""
    beside = Path(sys.executable).parent / OWN_NAME
    found = shutil.which(OWN_NAME)
    if found and (not beside.exists() or Path(found).resolve() == beside.resolve()):
        return OWN_NAME
    return str(beside) if beside.exists() else str(Path(sys.argv[0]).resolve())


def _write(wanted: Wanted) -> None:
    from orchestrator.errors import OperatorError

    try:
        if wanted.outcome == "written" and not wanted.path.exists():
            wanted.path.parent.mkdir(parents=True, exist_ok=True)
            with wanted.path.open("x", encoding="utf-8", newline="") as file:  # never over another
                file.write(wanted.content)
        elif wanted.outcome == "added":
            _replace(wanted.path, wanted.content)
    except OSError as exc:
        raise OperatorError(f"{wanted.path} cannot be written: {exc.strerror}") from exc


def _replace(path: Path, content: str) -> None:
    """All of a file at once: a client that reads it meanwhile sees the old one or the new one."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="", dir=path.parent, delete=False
    ) as file:
        scratch = Path(file.name)
        try:
            file.write(content)
            file.close()
            scratch.chmod(path.stat().st_mode & 0o7777)
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
