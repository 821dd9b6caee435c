"""The commands of every page, in the way that `make test` does not type them."""

from __future__ import annotations

import pytest

from tests.pages.conftest import bin_
from tests.pages.test_commands import PAGES, Reader, commands_work, reader, ways

__all__ = ["bin_", "reader"]  # fixtures

OTHERS = [(name, way) for name in PAGES for way in ("log", "terminal") if way not in ways(name)]


@pytest.mark.parametrize(("name", "way"), OTHERS)
def test_the_commands_of_a_page_work_the_other_way_too(name: str, way: str, reader: Reader) -> None:
    commands_work(name, reader, tty=way == "terminal")
