"""The table of what each runner can, in agents/README.md, says what the code says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.runners.known import RUNNERS

README = Path(__file__).parents[2] / "agents" / "README.md"

ROWS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "the reason of a refusal": ("tells_reason", lambda cell: "cannot be told" not in cell),
    "what is said to it in a turn": ("steers", lambda cell: "between two steps" in cell),
    "an MCP server that does not start": ("tells_servers", lambda cell: "not told" not in cell),
    "an approval with edited input": ("edits_input", lambda cell: cell == "yes"),
    "max_turns": ("counts_turns", lambda cell: cell == "counted by itself"),
    "an answer that broke off or was cut at its length": (
        "tells_cut",
        lambda cell: cell == "told by itself",
    ),
    "calls that it does not ask about": (
        "decides_by_itself",
        lambda cell: cell == "what the rules allow",
    ),
}
"""A row of it -> the ability, and whether a cell tells that it is there."""


def table() -> dict[str, dict[str, str]]:
    """Row -> runner -> cell."""
    lines = README.read_text().splitlines()
    top = next(at for at, line in enumerate(lines) if line.startswith("| | claude |"))
    names = [name.strip() for name in lines[top].strip("|").split("|")][1:]
    rows = {}
    for line in lines[top + 2 :]:
        if not line.startswith("|"):
            break
        title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[title] = dict(zip(names, cells, strict=True))
    return rows


def test_every_runner_has_a_column_and_no_cell_is_empty() -> None:
    for title, cells in table().items():
        assert set(cells) == set(RUNNERS), title
        assert all(cells.values()), title


@pytest.mark.parametrize("title", ROWS)
def test_a_row_tells_the_ability_that_the_code_has(title: str) -> None:
    ability, told = ROWS[title]
    said = {runner: told(cell) for runner, cell in table()[title].items()}
    assert said == {name: getattr(each.abilities, ability) for name, each in RUNNERS.items()}
