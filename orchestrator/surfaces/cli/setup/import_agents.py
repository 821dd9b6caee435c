"""`orchestrator import`: an agent.md of each agent file that was written for another program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from orchestrator.surfaces.cli.options import JsonOption
from orchestrator.surfaces.cli.setup.written_files import agent_path, write_file
from orchestrator.surfaces.text import print_lines

if TYPE_CHECKING:
    from orchestrator.catalog import Note, Problem
    from orchestrator.catalog.foreign.reading import ForeignAgent

EXIT_NOT_WRITTEN = 1
"""An agent of that name is there already."""
EXIT_UNREADABLE = 3
"""A file cannot be used: the same as for any other mistake of an agent's author."""

ImportState = Literal["written", "would be written", "unchanged", "exists"]


class Imported(NamedTuple):
    """What has become of one file."""

    file: Path
    read: ForeignAgent
    path: Path
    text: str
    state: ImportState


class ImportedAll(NamedTuple):
    """What has become of all of them."""

    agents: list[Imported]
    broken: list[Problem]
    passed_over: list[Note]


def import_(
    source: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="An agent file, or a directory of them."),
    ],
    *,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where agents go (ORCHESTRATOR_AGENTS_DIR; ./agents)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an agent.md.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write an agent.md of each agent file of Claude Code, Copilot, OpenHands or of a persona."""
    from orchestrator.settings import read_settings

    agents_dir = to.absolute() if to else read_settings().agents_dir.absolute()
    done = _import_all(source, agents_dir, force=force, dry_run=dry_run)
    if as_json:
        print(json.dumps(_document(done)))
    else:
        print_lines(_lines(done, texts=dry_run and source.is_file()))
    if done.broken:
        raise typer.Exit(EXIT_UNREADABLE)
    if any(each.state == "exists" for each in done.agents):
        raise typer.Exit(EXIT_NOT_WRITTEN)


def _import_all(source: Path, agents_dir: Path, *, force: bool, dry_run: bool) -> ImportedAll:
    from orchestrator.catalog.folder import read_other_file
    from orchestrator.catalog.foreign.reading import ForeignAgent, ForeignMistake

    files, notes = _files(source)
    done = ImportedAll([], [], notes)
    taken: dict[str, Path] = {}
    for file in files:
        read = read_other_file(file.absolute())
        if isinstance(read, ForeignMistake):
            done.broken.extend(read.problems)
        elif not isinstance(read, ForeignAgent):
            done.passed_over.extend([read.note] if read.note else [])
        elif refused := _refused(read.agent.name, taken):
            done.passed_over.append(_passed_over(file, refused))
        else:
            taken[read.agent.name] = file
            done.agents.append(_import(file, read, agents_dir, force=force, dry_run=dry_run))
    return done


def _refused(name: str, taken: Mapping[str, Path]) -> str:
    """Why no agent of this name is written; nothing, if one can be."""
    from orchestrator.catalog.listing import NO_AGENTS

    if name in NO_AGENTS:
        return f"is not imported: no agent can be called {name}; rename it"
    return f"is not imported: {taken[name]} is called {name} too" if name in taken else ""


def _passed_over(file: Path, message: str) -> Note:
    from orchestrator.catalog import Note

    return Note(path=file, line=1, field="name", message=message, kind="passed over")


def _files(source: Path) -> tuple[list[Path], list[Note]]:
    from orchestrator.catalog.listing import AGENT_FILE, AgentPlaces, agents_of_others
    from orchestrator.errors import OperatorError

    if source.name == AGENT_FILE:
        raise OperatorError(f"{source} is an agent.md already; copy its folder into agents/")
    if source.suffix in (".md", ".yaml") and not source.is_dir():
        return [source], []
    if not source.is_dir():
        wanted = "agent files end in .md or .yaml" if source.exists() else "there is no such file"
        raise OperatorError(f"{source} cannot be imported: {wanted}")
    places = AgentPlaces(source)
    if not places.files:
        others = agents_of_others(source)
        raise OperatorError(
            f"{source} holds no agent files of other programs"
            + (f"; {others}" if others else ", which end in .md, or in .yaml")
        )
    return places.files, places.notes


def _import(
    file: Path, read: ForeignAgent, agents_dir: Path, *, force: bool, dry_run: bool
) -> Imported:
    path = agent_path(agents_dir, read.agent.name)
    text = _text(file, read, path)
    there = _there(path)
    if there == text:
        state: ImportState = "unchanged"
    elif there is not None and not force:
        state = "exists"
    elif dry_run:
        state = "would be written"
    else:
        write_file(path, text, over=there is not None)
        state = "written"
    return Imported(file, read, path, text, state)


def _text(file: Path, read: ForeignAgent, path: Path) -> str:
    from orchestrator.catalog import ParsedAgent, parse_agent
    from orchestrator.catalog.writing import agent_text
    from orchestrator.errors import AgentInvalid

    text = agent_text(read.agent, _comments(file, read))
    parsed = parse_agent(
        text, folder=read.agent.name, path=path, read_beside=lambda name: (path.with_name(name), "")
    )
    if isinstance(parsed, ParsedAgent) and parsed.agent == read.agent:
        return text
    problems = () if isinstance(parsed, ParsedAgent) else parsed
    told = "; ".join(f"{each.field} {each.message}" for each in problems) or "it would say less"
    raise AgentInvalid(f"{file} cannot be written as an agent.md: {told}")


def _comments(file: Path, read: ForeignAgent) -> Iterator[str]:
    """Whence it came, and what is to be decided: what it had there, and how to have it here."""
    yield f"Imported from {file.name}, which was written for {read.dialect.program}."
    for note in read.notes:
        if note.instead:
            field = f"{note.field}: " if note.field else ""
            yield f"{field}{note.message}. To have it otherwise:"
            yield from (f"    {line}" for line in note.instead.splitlines())


def _there(path: Path) -> str | None:
    """What stands there; None if nothing does."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return ""


def _lines(done: ImportedAll, *, texts: bool) -> Iterator[str]:
    for each in done.agents:
        over = "; --force writes over it" if each.state == "exists" else ""
        yield f"{each.state}  {each.path}, of {each.file}{over}"
        yield f"  {'honoured':<11}  {', '.join(each.read.honoured) or 'nothing'}"
        for note in each.read.notes:
            field = f"{note.field}: " if note.field else ""
            yield f"  {note.kind:<11}  {field}{note.message.removeprefix('left out: ')}"
        if texts:
            yield from ("", *each.text.splitlines(), "")
    yield from (f"passed over  {note}" for note in done.passed_over)
    yield from (f"cannot be used  {problem}" for problem in done.broken)
    count = sum(each.state == "written" for each in done.agents)
    told = f"{count} agent{'' if count == 1 else 's'} written"
    yield "nothing is written" if not count else f"{told}; see: orchestrator agents check"


def _document(done: ImportedAll) -> dict[str, object]:
    return {
        "ok": not done.broken and all(each.state != "exists" for each in done.agents),
        "agents": [
            {
                "name": each.read.agent.name,
                "file": str(each.file),
                "path": str(each.path),
                "state": each.state,
                "written_for": each.read.dialect.name,
                "honoured": list(each.read.honoured),
                "notes": [note.model_dump(mode="json") for note in each.read.notes],
                "text": each.text,
            }
            for each in done.agents
        ],
        "passed_over": [note.model_dump(mode="json") for note in done.passed_over],
        "broken": [problem.model_dump(mode="json") for problem in done.broken],
    }
