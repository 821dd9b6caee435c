"""Options that several commands share, and what they lead to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.settings import Settings

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="As `orchestrator runs` names it.")]

EveryProjectOption = Annotated[
    bool, typer.Option("--all", help="Of every project, not only of the one this is called in.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

AgentsDirOption = Annotated[
    Path | None,
    typer.Option(
        "--agents-dir",
        metavar="DIR",
        help="A folder for each agent (ORCHESTRATOR_AGENTS_DIR; ./agents).",
    ),
]

WorkspaceOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Show the agent this directory, as its agent.md says."),
]


def settings_for(agents_dir: Path | None) -> Settings:
    """The settings, with agents in a directory that is there."""
    from orchestrator.errors import AgentsDirMissing
    from orchestrator.settings import read_settings

    settings = read_settings(flags={"agents_dir": agents_dir and agents_dir.absolute()})
    if not settings.agents_dir.is_dir():
        raise AgentsDirMissing(
            f"there is no directory {settings.agents_dir}; `orchestrator init` makes one with an "
            "example, --agents-dir names another"
        )
    return settings


def print_either(as_json: bool, document: dict[str, object], text: str) -> None:
    """What a command has done: for programs, or for people."""
    print(json.dumps(document) if as_json else text)
