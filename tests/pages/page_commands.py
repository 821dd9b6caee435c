"""A page -> the commands on it, as a reader would type them. Pure.

A block that is indented by four spaces, or fenced as `sh`, is commands. In one fenced as `console`,
commands follow `$ ` and what they print stands below them. `# by hand` on a line says that no test
runs it, since it needs what no test has: a client of the reader's own, another system, a password.
`# exit code N` says how a command ends that does not end with 0. Blocks fenced otherwise are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

BY_HAND = "# by hand"
_EXIT_CODE = re.compile(r"#.*\bexit code (\d+)")
_HEREDOC = re.compile(r"<<-?'?(\w+)'?")


class PageCommand(NamedTuple):
    """One command, which may have several lines."""

    line: int
    """Of the page, where it begins."""
    text: str
    by_hand: bool = False
    exit_code: int = 0
    prints: str = ""
    """What it prints, where the page shows that."""


def page_commands(page: str) -> list[PageCommand]:
    """All of them, in their order."""
    found: list[PageCommand] = []
    for kind, number, lines in _blocks(page):
        if kind == "console":
            found += _transcript(number, lines)
        else:
            found += _commands(number, lines)
    return found


def _blocks(page: str) -> Iterator[tuple[str, int, list[str]]]:
    """Blocks of commands: their kind, the line they begin on, their lines."""
    lines = page.splitlines()
    at = 0
    while at < len(lines):
        fence = re.match(r"```(\w*)", lines[at])
        if fence:
            end = lines.index("```", at + 1)
            if fence[1] in ("sh", "console"):
                yield fence[1], at + 2, lines[at + 1 : end]
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            begin = at
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            yield "sh", begin + 1, [line[4:] for line in lines[begin:at]]
        else:
            at += 1


def _commands(number: int, lines: list[str]) -> Iterator[PageCommand]:
    at = 0
    while at < len(lines):
        begin = at
        heredoc = _HEREDOC.search(lines[at])
        if heredoc:
            at = lines.index(heredoc[1], at)
        while lines[at].endswith("\\"):
            at += 1
        at += 1
        text = "\n".join(lines[begin:at])
        if text.strip() and not text.startswith("#"):
            yield _command(number + begin, text)


def _transcript(number: int, lines: list[str]) -> Iterator[PageCommand]:
    begins = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for at, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        command = _command(number + at, lines[at].removeprefix("$ "))
        yield command._replace(prints="\n".join(lines[at + 1 : end]))


def _command(line: int, text: str) -> PageCommand:
    code = _EXIT_CODE.search(text)
    return PageCommand(line, text, BY_HAND in text, int(code[1]) if code else 0)
