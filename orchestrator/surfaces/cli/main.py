"""The command line: one group of commands per module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from orchestrator import __version__
from orchestrator.surfaces.cli.agents import agents_app
from orchestrator.surfaces.cli.changes import apply, show
from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.completion import COMPLETE, complete, completion
from orchestrator.surfaces.cli.elsewhere.connect_command import connect_
from orchestrator.surfaces.cli.elsewhere.server_option import or_elsewhere
from orchestrator.surfaces.cli.failures import exit_with
from orchestrator.surfaces.cli.gateway import gateway
from orchestrator.surfaces.cli.plan import plan
from orchestrator.surfaces.cli.records.audit import audit
from orchestrator.surfaces.cli.records.cost import cost
from orchestrator.surfaces.cli.records.runs import logs, runs_app
from orchestrator.surfaces.cli.records.webhooks import webhooks_app
from orchestrator.surfaces.cli.run import run
from orchestrator.surfaces.cli.serve import serve
from orchestrator.surfaces.cli.servers import servers_app
from orchestrator.surfaces.cli.sessions import sessions_app
from orchestrator.surfaces.cli.setup.config import config
from orchestrator.surfaces.cli.setup.demo import demo
from orchestrator.surfaces.cli.setup.doctor import doctor
from orchestrator.surfaces.cli.setup.images import images_app
from orchestrator.surfaces.cli.setup.import_agents import import_
from orchestrator.surfaces.cli.setup.init import init
from orchestrator.surfaces.cli.setup.new_agent import new
from orchestrator.surfaces.cli.setup.pages import pages
from orchestrator.surfaces.cli.setup.trust import trust
from orchestrator.surfaces.cli.setup.uninstall import uninstall
from orchestrator.surfaces.cli.talk.dashboard import dashboard
from orchestrator.surfaces.cli.talk.decisions import approve, pending, reject, reply
from orchestrator.surfaces.cli.talk.tasks import cancel, resume, wait

PROGRAM = "orchestrator"

app = Commands("Hand a task to an AI agent you don't fully trust.", name=PROGRAM)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(serve, dashboard, gateway, init, new, trust, demo, config, doctor, uninstall),
)
THERE_TOO: tuple[Callable[..., None], ...] = (
    *(run, show, logs, apply, pending, reply, approve, reject, cancel, wait, resume),
    *(plan, cost, audit),
)
"""Commands that an orchestrator elsewhere can answer."""
for command in (*COMMANDS, *map(or_elsewhere, THERE_TOO), completion):
    app.command()(command)
app.command(COMPLETE, hidden=True)(complete)
app.command("connect")(connect_)
app.command("import")(import_)
app.command("help")(pages)
app.add_typer(runs_app, name="runs")
app.add_typer(agents_app, name="agents")
app.add_typer(images_app, name="images")
app.add_typer(servers_app, name="servers")
app.add_typer(sessions_app, name="sessions")
app.add_typer(webhooks_app, name="webhooks")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0, 2 for a command line that is wrong, else the error's code."""
    args = list(sys.argv[1:] if argv is None else argv)
    exit_with(lambda: _carried_out(args), as_json="--json" in args, is_process=argv is None)


@cache
def command_tree() -> Any:
    """All commands, as the library has them. Made once: it takes 20 ms."""
    return typer.main.get_command(app)


def _carried_out(args: list[str]) -> int:
    group = command_tree()
    try:
        with group.make_context(PROGRAM, args) as context:
            group.invoke(context)
    except typer.Exit as exc:
        sys.stdout.flush()
        return exc.exit_code
    sys.stdout.flush()  # here: at the end of the process it is too late to tell
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """Hand a task to an AI agent you don't fully trust."""
