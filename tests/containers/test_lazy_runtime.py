"""The agent image, looked for or made while several calls wait for it."""

from __future__ import annotations

import anyio
import pytest

from orchestrator.containers import lazy_runtime
from orchestrator.containers.lazy_runtime import _BuildNews

pytestmark = pytest.mark.anyio

PATIENCE = 30


async def test_all_that_wait_for_a_build_hear_its_steps_and_long_ones_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy_runtime, "BUILD_TOLD_SECONDS", 0.01)
    news, first, second = _BuildNews(), list[str](), list[str]()
    again = anyio.Event()

    def hear(line: str) -> None:
        second.append(line)
        if line.endswith(" s)"):
            again.set()

    with news.heard_by(first.append):
        news.note("step 1")
        with news.heard_by(hear), anyio.fail_after(PATIENCE):
            news.note("step 2")
            await again.wait()
        news.note("")
    for heard in (first, second):
        assert heard[:2] == ["step 1", "step 2"]
        assert heard[2].startswith("step 2 (")


async def test_of_a_build_that_is_over_no_call_hears() -> None:
    news, heard = _BuildNews(), list[str]()
    news.note("step 1")
    news.note("")
    with news.heard_by(heard.append):
        pass
    assert heard == []
