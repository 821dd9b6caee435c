"""What runs are told to have cost, in the cases that test_costs leaves out."""

from __future__ import annotations

import pytest

from tests.engine.harness import Harness, Steps
from tests.engine.tasks.test_costs import ALIKE, CASES, End, harness, is_told

__all__ = ["harness"]  # a fixture


@pytest.mark.parametrize(
    ("steps", "end", "least", "most", "fact"), [each for each in CASES if each.id in ALIKE]
)
async def test_what_never_answered_is_no_fact(
    harness: Harness, steps: Steps, end: End, least: float, most: float, fact: bool
) -> None:
    await is_told(harness, steps, end, least, most, fact)
