"""The page of benchmarks: which tables are written anew."""

from __future__ import annotations

from pathlib import Path

from tests.bench.__main__ import CASES, PAGE, README
from tests.bench.report import ALL, OWN_TABLES, table_on, tables, write_page
from tests.bench.row import Row

ROW = Row(name="x", unit="ms", ours=1.0, theirs=2.0)


def test_a_table_is_written_anew_when_all_of_it_was_measured() -> None:
    every = dict.fromkeys(CASES, (ROW,))
    whole = tables(every, CASES)
    assert {mark: len(rows) for mark, rows in whole.items()} == {
        ALL: len(CASES) - len(OWN_TABLES),
        **dict.fromkeys(OWN_TABLES.values(), 1),
    }
    assert list(tables({"runners": (ROW,)}, CASES)) == ["bench-runners"]
    assert tables({"latency": (ROW,)}, CASES) == {}
    del every["runners"]
    others = [mark for case, mark in OWN_TABLES.items() if case != "runners"]
    assert list(tables(every, CASES)) == [ALL, *others]


def test_every_table_has_its_place_on_the_pages(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE.read_text())
    for mark in (ALL, *OWN_TABLES.values()):
        write_page(page, f"new {mark}", mark)
        assert table_on(page.read_text(), mark) == f"new {mark}"
    page.write_text(README.read_text())
    write_page(page, "new")
