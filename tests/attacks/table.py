"""Tests that are attacks -> the table of them in README.md: `make attacks` writes it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest

from tests.attacks.mark import Group

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parent / "README.md"
PLACES = ("tests/attacks", "tests/containers/test_attacks.py")
"""Where attacks are."""

BEGIN = "<!-- attacks: made by `make attacks` -->"
END = "<!-- attacks end -->"


@dataclass(frozen=True)
class Row:
    group: str
    name: str
    outcome: str
    test: str
    """A function's name."""
    file: str
    """Below the repository."""


@dataclass
class _Collector:
    rows: list[Row] = field(default_factory=list)

    @pytest.hookimpl(tryfirst=True)  # in the order of the files, whichever begins first
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = getattr(item, "originalname", None) or item.name
            for mark in item.iter_markers("attack"):
                self.rows.append(Row(**mark.kwargs, test=test, file=item.nodeid.split("::")[0]))


def collected() -> list[Row]:
    """One for each case of each attack, as pytest finds them."""
    collector, said = _Collector(), io.StringIO()
    argv = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(said):
        code = pytest.main([*argv, *PLACES], plugins=[collector])
    if code:
        raise SystemExit(f"the attacks cannot be collected:\n{said.getvalue()}")
    return collector.rows


def table(rows: Iterable[Row]) -> str:
    """Markdown, group by group; an attack with several cases is one row."""
    counted = Counter(rows)
    order = {name: number for number, name in enumerate(get_args(Group))}
    known = sorted(counted, key=lambda row: order[row.group])  # of a group, as they were found
    lines = ["| | attack | what comes of it | test |", "|---|---|---|---|"]
    group = ""
    for row in known:
        cases = f" ({counted[row]} cases)" if counted[row] > 1 else ""
        link = f"[{row.test.removeprefix('test_').replace('_', ' ')}]({_seen_from_page(row.file)})"
        shown = f"**{row.group}**" if row.group != group else ""
        group = row.group
        lines.append(f"| {shown} | {row.name}{cases} | {row.outcome} | {link} |")
    return "\n".join(lines)


def _seen_from_page(file: str) -> str:
    return os.path.relpath(ROOT / file, PAGE.parent)


def written(page: str, text: str) -> str:
    """The page with this table in the place of the one it has."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no place for the table: {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(argv: list[str]) -> None:
    page, rows = PAGE.read_text(), collected()
    new = written(page, table(rows))
    if argv == ["--check"]:
        if new != page:
            raise SystemExit(f"the attacks in {PAGE} are out of date; run `make attacks`")
        return
    PAGE.write_text(new)
    groups = Counter(row.group for row in {*rows})
    print(f"{groups.total()} attacks, {len(rows)} cases, in {PAGE}")
    for group in get_args(Group):
        print(f"  {groups[group]:3} {group}")


if __name__ == "__main__":
    main(sys.argv[1:])
