"""Whatever ends a command early -> what is said of it, and the exit code. No traceback is."""

from __future__ import annotations

import logging
import re
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer

from orchestrator.errors import OperatorError, OrchestratorError
from orchestrator.surfaces.cli.command_help import argument_name
from orchestrator.surfaces.text import visible

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
            line += f": {(outcome(exc) or mistake(exc)).message}"
        return visible(line)


def _meaning(exc: BaseException) -> Outcome | None:
    if isinstance(exc, OrchestratorError):
        return Outcome(exc.exit_code, exc.code, str(exc))
    if isinstance(exc, KeyboardInterrupt | typer.Abort):
        return Outcome(EXIT_INTERRUPTED)
    if isinstance(exc, BrokenPipeError):
        return Outcome(EXIT_PIPE)
    if isinstance(exc, typer.TyperException):
        return Outcome(EXIT_USAGE, "usage", usage_message(exc))
    if isinstance(exc, OSError) and exc.strerror:
        place = f"{exc.filename}: " if exc.filename is not None else ""
        message = f"{place}{exc.strerror}; check that it is there, that it is yours, and the disk"
        return Outcome(OperatorError.exit_code, OperatorError.code, message)
    return None


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from _leaves(each)
    else:
        yield exc


def usage_message(exc: typer.TyperException) -> str:
    """What is wrong with a command line, in our words; the library's own speak of its types."""
    context = getattr(exc, "ctx", None)
    said = _usage_words(exc, getattr(exc, "param", None))
    if said is None:  # a sentence of ours, which says what to do
        return exc.message
    if said.endswith("?") or context is None:
        return said
    if said.endswith((" is missing", " is too much")):
        return f"{said}: {' '.join(context.get_usage().split()[1:])}"
    return f"{said}; `{context.command_path} -h` tells more"


def _usage_words(exc: typer.TyperException, parameter: Any) -> str | None:
    kind, text = type(exc).__name__, exc.message
    if kind == "MissingParameter" and parameter is not None:
        return f"{argument_name(parameter)} is missing"
    if parameter is not None:
        return f"{argument_name(parameter)} takes {_wanted(parameter)}"
    option = getattr(exc, "option_name", "")
    if kind == "NoSuchOption":
        close = getattr(exc, "possibilities", None) or ()
        return f"there is no option {option}{_guess(close)}"
    if kind == "BadOptionUsage":
        takes = "a value after it" if "requires" in text else "no value"
        return f"{option} takes {takes}"
    if found := re.match(r"No such command '(.*?)'\.(?: Did you mean (.*)\?)?$", text, re.DOTALL):
        close = re.findall(r"'([^']*)'", found[2] or "")
        return f"there is no command {found[1]!r}{_guess(close)}"
    if found := re.match(r"Got unexpected extra argument\(?s?\)? \((.*)\)$", text, re.DOTALL):
        return f"{found[1]} is too much"
    return "a command is missing" if text == "Missing command." else None


def _wanted(parameter: Any) -> str:
    """What an option or argument takes."""
    annotation = str(parameter.type_descriptor.annotation)
    choices = [
        str(getattr(each, "value", each)) for each in parameter.type_descriptor.choices or ()
    ]
    if choices:
        return f"one of {', '.join(choices)}"
    number = "a whole number" if "int" in annotation else "a number" * ("float" in annotation)
    least = f", {parameter.min:g} or more" if parameter.min is not None else ""
    most = f", {parameter.max:g} or less" if parameter.max is not None else ""
    return f"{number or 'something else'}{least}{most}"


def _guess(close: Any) -> str:
    return f"; did you mean {' or '.join(close[:3])}?" if close else ""


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
