"""Rows -> a table for people, in a terminal or on a page, or JSON for programs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.row import Row

HEADINGS = ("", "ours", "instead", "ratio", "target", "met")

IN_README = (
    "a disposable container, create to exit",
    "run_subagent, cold, to the first model request",
    "run_subagent, warm, to the first model request",
    "100 disposable containers, 16 at once",
)
"""What the README shows; of several rows of a name, the first."""

ALL = "bench"

OWN_TABLES = {
    "runners": "bench-runners",
    "api": "bench-api",
    "connect": "bench-connect",
    "page": "bench-page",
}
"""Cases that have a table of their own on the page, and what marks it. All others are in one."""


def print_table(rows: Sequence[Row], caption: str) -> None:
    table = Table(caption=caption, caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        style = "red" if row.met is False else None
        table.add_row(*row.cells, style=style)
    # Wide enough for every cell, so that a log file can be read as well.
    console = Console()
    Console(width=max(console.width, 140)).print(table)


def markdown(rows: Sequence[Row], caption: str) -> str:
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" + "|---:" * (len(HEADINGS) - 1) + "|"]
    lines += ["| " + " | ".join(row.cells) + " |" for row in rows]
    return "\n".join([*lines, "", caption])


def four_numbers(table: str) -> str:
    """The table of all -> the README's, which shows neither ratios nor targets."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    found = {row[0]: row for row in reversed(rows)}
    lines = ["| | ours | instead |", "|---|---:|---:|"]
    lines += ["| " + " | ".join(found[name][:3]) + " |" for name in IN_README]
    return "\n".join(lines)


def tables(measured: Mapping[str, Sequence[Row]], cases: Collection[str]) -> dict[str, list[Row]]:
    """The tables of the page that can be written anew, by their marks, of some of all cases: not
    one of which only a part was measured.
    """
    found: dict[str, list[Row]] = {}
    for mark in (ALL, *OWN_TABLES.values()):
        in_it = [case for case in cases if OWN_TABLES.get(case, ALL) == mark]
        if in_it and all(case in measured for case in in_it):
            found[mark] = [row for case in in_it for row in measured[case]]
    return found


def table_on(page: str, mark: str = ALL) -> str:
    """What a page has between the marks of a table."""
    begin, end = _marks(mark)
    return page.partition(begin)[2].partition(end)[0].strip()


def write_page(path: Path, text: str, mark: str = ALL) -> None:
    """Put a table between its marks."""
    begin, end = _marks(mark)
    old = path.read_text()
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(old):
        raise SystemExit(f"{path} has no {begin} ... {end} to write between")
    path.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", old))


def _marks(mark: str) -> tuple[str, str]:
    return f"<!-- {mark} -->", f"<!-- /{mark} -->"


def as_json(rows: Sequence[Row], caption: str) -> str:
    listed = [{**row.model_dump(), "ratio": row.ratio, "met": row.met} for row in rows]
    return json.dumps({"caption": caption, "rows": listed}, indent=2)
