"""Whatever ends a command early -> what is said of it, and the exit code. No traceback is. Also the
process of a command: its signals and streams. Loads no library of command lines: `serve` has none.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from orchestrator.domain.window import WINDOW
from orchestrator.errors import OperatorError, OrchestratorError
from orchestrator.surfaces.text import say, visible, write

if TYPE_CHECKING:
    from orchestrator.settings import Settings

EXIT_USAGE = 2
"""The command line cannot be understood."""

EXIT_MISTAKE = 70
"""A mistake of the orchestrator's own, as sysexits.h has it."""

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count."""

EXIT_PIPE = 141
"""The reader of what a command prints has gone, as `head` does; likewise."""

KEPT_REPORTS = 20
"""Of mistakes of the orchestrator's own, on the disk."""


class Outcome(NamedTuple):
    """How a command ends that did not come to its own end."""

    exit_code: int
    code: str = ""
    """For programs."""
    message: str = ""
    """Empty if there is nothing to say."""


def exit_with(command: Callable[[], int], *, as_json: bool, is_process: bool) -> NoReturn:
    """Carry out a command, which has an exit code, and exit; if it is all that this process is for,
    with nothing said by Python.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see orchestrator/__main__.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _mend_streams()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogLines())
    WINDOW.set("terminal")
    try:
        code = command()
    except BaseException as exc:
        if isinstance(exc, SystemExit):
            raise
        code = _told(exc, as_json=as_json)
    if is_process:  # a Ctrl-C while Python ends would print where it was at that moment
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def outcome(exc: BaseException) -> Outcome | None:
    """What an exception means to the person who typed the command; None if we did not foresee it.

    A group of exceptions, as a server raises it, means what is in it.
    """
    found = [_meaning(leaf) for leaf in _leaves(exc)]
    foreseen = [each for each in found if each is not None]
    silent = [each for each in foreseen if not each.message]
    if silent:
        return silent[0]
    return foreseen[0] if foreseen and len(foreseen) == len(found) else None


def outcome_of(exc: BaseException) -> Outcome:
    """The same, and of what we did not foresee that it is a mistake of ours."""
    return outcome(exc) or mistake(exc)


def log_as_json(settings: Settings) -> None:
    """From now on, what is logged is JSON; of an exception, what it means."""
    from orchestrator.telemetry import log_lines

    log_lines.log_as_json(settings, lambda exc: outcome_of(exc).message)


def mistake(exc: BaseException) -> Outcome:
    """What is said of an exception that we did not foresee, with its traceback in a file."""
    what = "".join(traceback.format_exception_only(exc)).strip().splitlines()[-1]
    kept = _keep_report(exc)
    where = f"what led to it is in {kept}" if kept else "no report of it could be written"
    message = f"this is a mistake in the orchestrator itself ({what}); please report it: {where}"
    return Outcome(EXIT_MISTAKE, "internal_error", message)


class LogLines(logging.Formatter):
    """A line for each warning; of an exception, what it means."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        exc = record.exc_info[1] if record.exc_info else None
        if exc is not None:
            line += f": {outcome_of(exc).message}"
        return visible(line)


def _meaning(exc: BaseException) -> Outcome | None:
    if isinstance(exc, OrchestratorError):
        return Outcome(exc.exit_code, exc.code, str(exc))
    if isinstance(exc, KeyboardInterrupt):
        return Outcome(EXIT_INTERRUPTED)
    if isinstance(exc, BrokenPipeError):
        return Outcome(EXIT_PIPE)
    if isinstance(exc, OSError) and exc.strerror:
        place = f"{exc.filename}: " if exc.filename is not None else ""
        message = f"{place}{exc.strerror}; check that it is there, that it is yours, and the disk"
        return Outcome(OperatorError.exit_code, OperatorError.code, message)
    return _meaning_to_typer(exc)


def _meaning_to_typer(exc: BaseException) -> Outcome | None:
    if "typer" not in sys.modules:  # a server starts without it, and then it has raised nothing
        return None
    from orchestrator.surfaces.cli.command_help import is_abort, usage_message

    if is_abort(exc):
        return Outcome(EXIT_INTERRUPTED)
    said = usage_message(exc)
    return None if said is None else Outcome(EXIT_USAGE, "usage", said)


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from _leaves(each)
    else:
        yield exc


def _keep_report(exc: BaseException) -> Path | None:
    """Write a traceback down, where its reader looks for it: the state directory, or else /tmp."""
    text = "".join(traceback.format_exception(exc))
    for folder in (*_reports_dir(), Path(tempfile.gettempdir())):
        path = folder / f"orchestrator-report-{time.strftime('%Y%m%d-%H%M%S')}-{_random()}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("x", encoding="utf-8", errors="replace") as file:
                path.chmod(0o600)
                file.write(f"{sys.version}\n{text}")
            for old in sorted(folder.glob("orchestrator-report-*.txt"))[:-KEPT_REPORTS]:
                old.unlink(missing_ok=True)
        except OSError:
            continue
        return path
    return None


def _reports_dir() -> Iterator[Path]:
    from orchestrator.containers.owner import check_state_dir
    from orchestrator.settings import read_settings

    try:
        folder = read_settings().state_dir
        check_state_dir(folder)
    except OrchestratorError:
        return
    yield folder / "reports"


def _random() -> str:
    return secrets.token_hex(3)


def _told(exc: BaseException, *, as_json: bool) -> int:
    """Say why a command did not come to its end; its exit code."""
    said = outcome_of(exc)
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
