"""The command line: one group of commands per module, one place where errors become exit codes."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from orchestrator import __version__
from orchestrator.domain.window import WINDOW
from orchestrator.surfaces.cli.agents import agents_app
from orchestrator.surfaces.cli.changes import apply, show
from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.completion import COMPLETE, complete, completion
from orchestrator.surfaces.cli.failures import EXIT_PIPE, LogLines, Outcome, mistake, outcome
from orchestrator.surfaces.cli.gateway import gateway
from orchestrator.surfaces.cli.plan import plan
from orchestrator.surfaces.cli.records.audit import audit
from orchestrator.surfaces.cli.records.cost import cost
from orchestrator.surfaces.cli.records.runs import logs, runs_app
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
from orchestrator.surfaces.cli.talk.decisions import approve, pending, reject, reply
from orchestrator.surfaces.cli.talk.tasks import cancel, resume, wait
from orchestrator.surfaces.text import say, visible, write

PROGRAM = "orchestrator"

app = Commands("Hand a task to an AI agent you don't fully trust.", name=PROGRAM)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, show, logs, apply, pending, reply, approve, reject, cancel, wait, resume),
    *(plan, cost, serve, gateway, init, new, trust, demo, config, doctor, audit, uninstall),
)
for command in (*COMMANDS, completion):
    app.command()(command)
app.command(COMPLETE, hidden=True)(complete)
app.command("import")(import_)
app.command("help")(pages)
app.add_typer(runs_app, name="runs")
app.add_typer(agents_app, name="agents")
app.add_typer(images_app, name="images")
app.add_typer(servers_app, name="servers")
app.add_typer(sessions_app, name="sessions")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0, 2 for a command line that is wrong, else the error's code."""
    args = list(sys.argv[1:] if argv is None else argv)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see orchestrator/__main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _mend_streams()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogLines())
    WINDOW.set("terminal")
    try:
        code = _carried_out(args)
    except BaseException as exc:
        if isinstance(exc, SystemExit):
            raise
        code = _told(exc, as_json="--json" in args)
    if argv is None:  # a Ctrl-C while Python ends would print where it was at that moment
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def command_tree() -> Any:
    """All commands, as the library has them."""
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


def _told(exc: BaseException, *, as_json: bool) -> int:
    """Say why a command did not come to its end; its exit code."""
    said = outcome(exc) or mistake(exc)
    try:
        _say(said, as_json=as_json)
        sys.stdout.flush()
    except OSError:
        said = said._replace(exit_code=said.exit_code or EXIT_PIPE)
        _drop_output()
    if said.exit_code == EXIT_PIPE:
        _drop_output()
    return said.exit_code


def _say(said: Outcome, *, as_json: bool) -> None:
    if said.message.startswith("Usage: "):  # a group of commands without a command
        write(said.message, sys.stderr)
    elif said.message and as_json:
        print(json.dumps({"error": {"code": said.code, "message": said.message}}))
    elif said.message:
        say(f"error: {visible(said.message)}", sys.stderr)


def _mend_streams() -> None:
    """What a stream's encoding cannot say is a ?, and one that is closed takes everything."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 as long as we run
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """The reader has gone: what is still to be written at the end of the process goes nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # no descriptor: nothing is left to be written
        return


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
