"""The command line: one group of commands per module, one place where errors become exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn

import typer

from orchestrator import __version__
from orchestrator.domain.window import WINDOW
from orchestrator.errors import OrchestratorError
from orchestrator.surfaces.cli.agents import agents_app
from orchestrator.surfaces.cli.audit import audit
from orchestrator.surfaces.cli.changes import apply, show
from orchestrator.surfaces.cli.plan import plan
from orchestrator.surfaces.cli.run import run
from orchestrator.surfaces.cli.runs import logs, runs_app
from orchestrator.surfaces.cli.serve import serve
from orchestrator.surfaces.cli.sessions import sessions_app
from orchestrator.surfaces.cli.setup.config import config
from orchestrator.surfaces.cli.setup.demo import demo
from orchestrator.surfaces.cli.setup.doctor import doctor
from orchestrator.surfaces.cli.setup.images import images_app
from orchestrator.surfaces.cli.setup.project import init, trust
from orchestrator.surfaces.cli.tasks import approve, cancel, pending, reject, reply, resume, wait
from orchestrator.surfaces.text import visible, write

EXIT_USAGE = 2
"""The command line cannot be understood."""

app = typer.Typer(
    name="orchestrator",
    help="Hand a task to an AI agent you don't fully trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: half the time
)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, show, logs, apply, pending, reply, approve, reject, cancel, wait, resume),
    *(plan, serve, init, trust, demo, config, doctor, audit),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(runs_app, name="runs")
app.add_typer(agents_app, name="agents")
app.add_typer(images_app, name="images")
app.add_typer(sessions_app, name="sessions")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0, 2 for a command line that is wrong, else the error's code."""
    args = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in args
    WINDOW.set("terminal")
    try:
        # With --json, what is wrong with the command line is told by us, and as JSON too.
        code = app(args=args, prog_name="orchestrator", standalone_mode=not as_json)
    except OrchestratorError as exc:
        _tell_and_exit(exc, as_json)
    except ExceptionGroup as group:  # of a server, which does several things at once
        error = _only_error(group)
        if error is None:
            raise
        _tell_and_exit(error, as_json)
    except typer.TyperException as exc:
        message = exc.format_message() if isinstance(exc, typer.BadParameter) else str(exc)
        print(json.dumps({"error": {"code": "usage", "message": message}}))
        sys.exit(EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _tell_and_exit(error: OrchestratorError, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps({"error": {"code": error.code, "message": str(error)}}))
    else:
        write(f"error: {visible(str(error))}", sys.stderr)
    sys.exit(error.exit_code)


def _only_error(group: BaseException) -> OrchestratorError | None:
    """The error in a group that holds nothing else."""
    while isinstance(group, ExceptionGroup) and len(group.exceptions) == 1:
        group = group.exceptions[0]
    return group if isinstance(group, OrchestratorError) else None


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"orchestrator {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """What can be said before any command."""
