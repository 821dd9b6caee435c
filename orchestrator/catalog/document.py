"""Text of an agent's files -> values, and what is wrong with them on which line. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from orchestrator.catalog.json_lines import lines_of
from orchestrator.catalog.problems import Problems
from orchestrator.plain_yaml import YAML_DEPTH, read_yaml

YAML_CHARS = 64 * 1024
"""The longest text that is read as YAML: the library takes a second for a few hundred KiB."""


ReadBeside = Callable[[str], tuple[Path, str]]
"""A file's name -> where it is and its text. FileRefused if it cannot be had."""


class FileRefused(Exception):
    """A file that cannot be read; the message goes on after its name."""


def split_frontmatter(text: str, problems: Problems) -> tuple[str, str] | None:
    """What stands between the two lines of three dashes, and what comes after; else a problem."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        problems.add((), "must begin with a line ---, then fields such as `name: …`, then ---")
        return None
    for at, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:at]), "\n".join(lines[at + 1 :])
    problems.add((), "the fields that begin here never end; add a line --- below the last one")
    return None


def read_fields(text: str, problems: Problems, first_line: int = 1) -> object:
    """The value that YAML describes. Lines and problems go to `problems`."""
    if len(text) > YAML_CHARS:
        problems.add((), f"is longer than {YAML_CHARS // 1024} KiB of YAML; make it shorter")
        return None
    document = read_yaml(text, first_line)
    problems.lines = {**document.lines, **problems.lines}
    for problem in document.problems:
        problems.add(problem.loc, problem.message, problem.line)
    return document.value


def read_json(text: str, problems: Problems) -> object:
    """The same for JSON."""

    def refuse(constant: str) -> object:
        problems.add((), f"holds {constant}, which is not a JSON number")
        return None

    try:
        value: object = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as exc:
        problems.add((), f"is not JSON: {exc.msg}", exc.lineno)
        return None
    except (RecursionError, ValueError):
        problems.add((), "is not JSON that we can read: nested too deeply, or a number too long")
        return None
    if _deeper(value, YAML_DEPTH):
        problems.add((), f"is nested more than {YAML_DEPTH} levels deep; make it flatter")
        return None
    places = lines_of(text)
    problems.lines = {**places.lines, **problems.lines}
    for loc, line, first in places.twice:
        problems.add(loc, f"is given twice, first on line {first}; remove one of them", line)
    return value


def _deeper(value: object, levels: int) -> bool:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    if inner is None:
        return False
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)
