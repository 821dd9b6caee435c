"""What a model does is named, as test_endings has it, for all that models do."""

from __future__ import annotations

import pytest

from tests.engine.harness import Harness
from tests.engine.test_endings import TOLD_BY_MODEL, harness, is_named

__all__ = ["harness"]  # a fixture


@pytest.mark.parametrize(("step", "reason"), TOLD_BY_MODEL[3:])
async def test_what_the_model_does_is_named(
    harness: Harness, step: dict[str, object], reason: str
) -> None:
    await is_named(harness, step, reason)
