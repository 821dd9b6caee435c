"""Options that several commands share, and what they lead to."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from orchestrator.surfaces.text import print_lines, say

if TYPE_CHECKING:
    from pydantic import BaseModel

    from orchestrator.engine.tasks.task_book import TaskBook
    from orchestrator.settings import Settings

T = TypeVar("T")

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="As `orchestrator runs` names it, or how that begins, or `last`."
    ),
]

EveryProjectOption = Annotated[
    bool, typer.Option("--all", help="Of every project, not only of the one this is called in.")
]
NotifyOption = Annotated[
    bool,
    typer.Option(
        "--notify", help="Notify me, or ring the bell, when something waits for me or has ended."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

AgentsDirOption = Annotated[
    Path | None,
    typer.Option(
        "--agents-dir",
        metavar="DIR",
        help="A folder for each agent (ORCHESTRATOR_AGENTS_DIR; the project's agents/).",
    ),
]

LogJsonOption = Annotated[
    bool,
    typer.Option(
        "--log-json",
        help="Log JSON, and of each run when it begins and ends (ORCHESTRATOR_LOG_JSON).",
    ),
]

RunnerOption = Annotated[
    str | None,
    typer.Option(
        "--runner",
        metavar="NAME",
        help="The agent CLI to try first, for agents that name none (ORCHESTRATOR_RUNNER).",
    ),
]

RunnerConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--runner-config",
        metavar="FILE",
        help="The agent CLIs to try, in which order and for which models.",
    ),
]

WorkspaceOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Show the agent this directory, as its agent.md says."),
]


def settings_for(
    agents_dir: Path | None, runner: str | None = None, runner_config: Path | None = None
) -> Settings:
    """The settings, with agents in a directory that is there."""
    from orchestrator.errors import AgentsDirMissing
    from orchestrator.settings import read_settings

    settings = read_settings(
        flags={
            "agents_dir": agents_dir and agents_dir.absolute(),
            "runner": runner,
            "runner_config": runner_config and runner_config.absolute(),
        }
    )
    if not settings.agents_dir.is_dir():
        raise AgentsDirMissing(_no_agents(settings.agents_dir))
    return settings


def _no_agents(agents_dir: Path) -> str:
    """There is no such directory, and what to do: agents above may be meant, in another repository
    or of another user, where no project is looked for.
    """
    from orchestrator.catalog import agents_of_others

    if agents_dir.exists():
        return f"{agents_dir} is not a directory; --agents-dir names the one with your agents"
    above = [folder / "agents" for folder in agents_dir.parent.parents]
    near = next((folder for folder in above if any(folder.glob("*/agent.md"))), None)
    if near is not None:
        return (
            f"there is no directory {agents_dir}, but there is one above: "
            f"cd {shlex.quote(str(near.parent))}, or --agents-dir {shlex.quote(str(near))}"
        )
    others = agents_of_others(agents_dir.parent)
    return (
        f"there is no directory {agents_dir}; `orchestrator init` makes one with an example, "
        "--agents-dir names another" + (f"; {others}" if others else "")
    )


def on_book(do: Callable[[TaskBook, str], Awaitable[T]]) -> T:
    """Do something with the tasks of all processes; it is given the project that this is, too."""
    import anyio

    from orchestrator.settings import read_settings
    from orchestrator.surfaces.cli.elsewhere.server_option import open_any_book

    async def work() -> T:
        settings = read_settings()
        async with open_any_book(settings) as book:
            return await do(book, settings.project)

    return anyio.run(work)


def say_none(said: str, *, all_: bool) -> None:
    """Say that a list is empty; of one project's, which project that is."""
    from orchestrator.settings import read_settings

    settings = read_settings()
    here = "" if all_ else f" in {settings.project}; --all looks at every project"
    if settings.server:
        here = f" at {settings.server}"
    print_lines((f"{said}{here}",))


def dumped(models: Sequence[BaseModel]) -> list[dict[str, object]]:
    """The same for programs."""
    return [model.model_dump(mode="json") for model in models]


def print_either(as_json: bool, document: dict[str, object], text: str) -> None:
    """What a command has done: for programs, or for people."""
    if as_json:
        print(json.dumps(document))
    else:
        say(text, sys.stdout)
