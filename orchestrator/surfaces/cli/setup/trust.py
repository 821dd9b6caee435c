"""`orchestrator trust` says that a project's agents may reach what they want."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.options import AgentsDirOption, JsonOption, settings_for
from orchestrator.surfaces.text import named, print_lines, table

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.engine.project_trust import ProjectTrust
    from orchestrator.settings import Settings

EXIT_NOT_AGREED = 1
"""The person looked, and said no."""


def trust(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="The project with agents/; this one, if not given."),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Trust it without asking.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List what is trusted.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust the project no more.")] = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the agents of a project could reach, and let them, if you agree."""
    if sum((yes, list_, revoke)) > 1:
        raise typer.BadParameter("take one of --yes, --list and --revoke")
    if directory is not None and agents_dir is not None:
        raise typer.BadParameter("name the project with DIR or with --agents-dir, not with both")
    if list_:
        _list_trusted(as_json)
    elif revoke:
        _revoke(directory, agents_dir, as_json)
    else:
        _trust(settings_for(_agents_dir_of(directory, agents_dir)), yes=yes, as_json=as_json)


def _trust(settings: Settings, *, yes: bool, as_json: bool) -> None:
    from orchestrator.catalog import load_catalog
    from orchestrator.output import check_schema
    from orchestrator.state import open_trust

    catalog = load_catalog(settings.agents_dir, check_schema)
    project = open_trust(settings)
    growth = project.growth(catalog)
    if as_json:
        if yes and growth:
            note_trust(settings, str(project.agents_dir), allowed=True)
            project.trust(catalog)
        print(json.dumps(trust_document(project, catalog, growth, trusted=yes or not growth)))
        return
    print_lines(trust_lines(project, catalog, growth))
    if not growth:
        return
    if not yes and not _agreed():
        note_trust(settings, str(project.agents_dir), allowed=False)
        print("nothing new is trusted")
        raise typer.Exit(EXIT_NOT_AGREED)
    note_trust(settings, str(project.agents_dir), allowed=True)
    project.trust(catalog)  # as they were read above, and have been shown
    print("trusted; you are asked again when one of them could reach more")


def note_trust(settings: Settings, agents_dir: str, *, allowed: bool) -> None:
    """Write into the audit that a project is trusted with more, or not, or no longer."""
    import anyio

    from orchestrator.state import note_decision

    anyio.run(partial(note_decision, settings, "trust", agents_dir, allowed=allowed))


def trust_document(
    project: ProjectTrust,
    catalog: Catalog,
    growth: Mapping[str, tuple[str, ...]],
    *,
    trusted: bool,
) -> dict[str, object]:
    """The same for programs. Without --yes nothing is trusted: it only tells."""
    reach = {name: extent.grants for name, extent in project.extents(catalog).items()}
    return {
        "project": str(project.project),
        "trusted": trusted,
        "by_setting": project.is_set,
        "agents": {name: list(map(str, grants)) for name, grants in reach.items()},
        "new": {name: list(more) for name, more in growth.items()},
        "broken": [broken.model_dump(mode="json") for broken in catalog.broken],
    }


def trust_lines(
    project: ProjectTrust,
    catalog: Catalog,
    growth: Mapping[str, tuple[str, ...]],
) -> Iterator[str]:
    """What each agent could reach; with + what the operator has not agreed to yet."""
    if catalog.agents:
        yield f"the agents of {project.project} could reach, beside their model:"
    else:
        yield f"{project.agents_dir} has no agent that can be used"
    for name, extent in project.extents(catalog).items():
        new = growth.get(name, ())
        known = [str(grant) for grant in extent.grants]
        yield f"  {name}" + ("" if known else ": nothing")
        yield from (f"    {line}" for line in known if line not in new)
        yield from (f"  + {line}" for line in new)
    if project.is_set:
        yield "all of it is trusted, by ORCHESTRATOR_TRUSTED or `trusted` in your config.yaml"
    elif growth:
        yield "what has a + is new: you have not trusted them with it"
        if any(line.startswith("definitions: ") for new in growth.values() for line in new):
            yield "definitions are what models are told: orchestrator servers show SERVER --all"
    elif catalog.agents:
        yield "nothing of it has to be trusted, or all of it is"
    if catalog.broken:
        names = ", ".join(named(broken.name) for broken in catalog.broken)
        yield f"with mistakes, so that they cannot be used, nor trusted: {names}"
        yield "  `orchestrator agents check` shows the mistakes; then call this again"


def _agreed() -> bool:
    """What a person says, who is there to be asked; OperatorError if nobody is."""
    from orchestrator.errors import OperatorError

    if not sys.stdin.isatty():
        raise OperatorError(
            "you cannot be asked here: there is no terminal; type the command at one, or add "
            "--yes if you know what these agents are"
        )
    return typer.confirm("Trust them with it?", default=False)


def _list_trusted(as_json: bool) -> None:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_trust

    trust = open_trust(read_settings())
    projects = trust.book.all()
    if as_json:
        rows = [project.model_dump(mode="json") for project in projects]
        print(json.dumps({"projects": rows, "by_setting": list(map(str, trust.always))}))
        return
    lines = [
        (
            named(str(project.agents_dir.parent), len(str(project.agents_dir))),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(project.at)),
            ", ".join(project.agents) or "none",
        )
        for project in projects
    ]
    lines += [(str(folder), "by setting", "all below it") for folder in trust.always]
    print_lines(table(lines))
    if not lines:
        print("no project is trusted")


def _revoke(directory: Path | None, agents_dir: Path | None, as_json: bool) -> None:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_trust

    agents = _agents_dir_of(directory, agents_dir)
    settings = read_settings(flags={"agents_dir": agents and agents.absolute()})
    trust = open_trust(settings)
    note_trust(settings, str(trust.agents_dir), allowed=False)
    was = trust.book.forget(trust.agents_dir)
    if as_json:
        said = {"project": str(trust.project), "was_trusted": was, "by_setting": trust.is_set}
        print(json.dumps(said))
        return
    print(f"{trust.project} is trusted no more" if was else f"{trust.project} was not trusted")
    if trust.is_set:
        print("but ORCHESTRATOR_TRUSTED, or `trusted` in your config.yaml, still trusts it")


def _agents_dir_of(directory: Path | None, agents_dir: Path | None) -> Path | None:
    return agents_dir if directory is None else directory / "agents"
