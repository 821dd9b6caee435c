"""The state machine of test_tasks_stateful, for longer."""

from __future__ import annotations

import pytest

from tests.engine.tasks.test_tasks_stateful import run_examples

pytestmark = pytest.mark.timeout(900)


def test_whatever_happens_the_store_stays_true_and_no_answer_is_lost_or_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_examples(monkeypatch, 160)
