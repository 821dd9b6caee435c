"""Requests that fail one after the other: the gateway ends the turn, in every format."""

from __future__ import annotations

import json
from typing import Any

import anyio
import h11
import pytest

from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import FAILURES_IN_A_ROW, FEWER_IN_A_ROW, ModelRequestSeen
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from tests.gateway.model.formats.dialects import CHAT, DIALECTS, RESPONSES, Dialect

pytestmark = pytest.mark.anyio

STORM = 30
"""How often a CLI asks again that never gives up."""


class Stage:
    def __init__(self, dialect: Dialect, *steps: dict[str, Any]) -> None:
        model = ScriptedModel(Script.model_validate({"steps": list(steps)}))
        self.dialect = dialect
        self.access = ModelAccess(model.upstream(), wire_format=dialect.name)
        self.seen: list[ModelRequestSeen] = []
        self.access.bind(budget_usd=None, on_request=self.seen.append, model=dialect.model)

    async def ask(self, **more: object) -> int:
        """The status; 0 where the answer broke off."""
        try:
            return (await self.dialect.post(self.access, self.dialect.body(**more))).status
        except h11.RemoteProtocolError:
            return 0


@pytest.mark.parametrize(
    ("step", "passed", "status"),
    [
        ({"error": 429, "means": "quota"}, FEWER_IN_A_ROW["quota"], 429),
        ({"error": 401}, FAILURES_IN_A_ROW, 401),
        ({"text": "half an answer", "cut": True}, FAILURES_IN_A_ROW, 0),
        ({"error": 429}, FAILURES_IN_A_ROW, 429),
        ({"error": 529}, FAILURES_IN_A_ROW, 529),
        ({"error": 500}, FAILURES_IN_A_ROW, 500),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
async def test_a_storm_of_failing_requests_is_ended_with_a_plain_400(
    dialect: Dialect, step: dict[str, Any], passed: int, status: int
) -> None:
    stage = Stage(dialect, {**step, "repeat": True})
    statuses = [await stage.ask() for _ in range(STORM)]
    assert statuses == [status] * passed + [400] * (STORM - passed)
    assert [one.error_type for one in stage.seen].count("too_many_failures") == 1
    assert len(stage.seen) == passed + 1
    bill = stage.access.bill
    assert (bill.gave_up, bill.usage.requests) == (True, passed)
    assert stage.seen[-1].verdict == bill.last.verdict != ""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
async def test_the_400_says_why_in_the_apis_own_form_and_not_like_a_full_context(
    dialect: Dialect,
) -> None:
    stage = Stage(dialect, {"error": 429, "means": "quota", "repeat": True})
    await stage.ask()
    answer = await dialect.post(stage.access, dialect.body())
    error = json.loads(answer.body)["error"]
    assert error["message"] == (
        "refused by the orchestrator: the model API says that the account has nothing left to use; "
        "this turn ends here"
    )
    assert answer.headers["x-orchestrator-denied"] == "failures"
    shape = {key: value for key, value in error.items() if key != "message"}
    invalid = {"type": "invalid_request_error", "param": None, "code": None}
    assert (
        shape
        == {
            "anthropic": {"type": "invalid_request_error"},
            "responses": invalid,
            "chat": invalid,
            "gemini": {"code": 400, "status": "INVALID_ARGUMENT"},
        }[dialect.name]
    )


async def test_an_answer_between_failures_begins_the_count_anew() -> None:
    failing = [{"error": 500}] * (FAILURES_IN_A_ROW - 1)
    stage = Stage(RESPONSES, *failing, {"text": "at last"}, {"error": 500, "repeat": True})
    expected = [500] * (FAILURES_IN_A_ROW - 1) + [200] + [500] * FAILURES_IN_A_ROW + [400] * 2
    assert [await stage.ask() for _ in expected] == expected


async def test_each_thing_that_the_agent_is_told_begins_it_anew() -> None:
    stage = Stage(CHAT, {"error": 429, "means": "quota", "repeat": True})
    assert [await stage.ask(), await stage.ask()] == [429, 400]
    stage.access.bill.told()
    assert not stage.access.bill.gave_up
    assert stage.access.bill.last.verdict == "quota"  # until something else is known
    assert [await stage.ask(), await stage.ask()] == [429, 400]


async def test_requests_under_way_together_fail_as_one() -> None:
    """A CLI whose subagents work side by side meets one overload many times at once."""
    stage = Stage(RESPONSES, {"error": 529, "delay_seconds": 0.2, "repeat": True})
    with anyio.fail_after(60):
        async with anyio.create_task_group() as together:
            for _ in range(10):
                together.start_soon(stage.ask)
    assert (len(stage.seen), stage.access.bill.streak().failed) == (10, 1)
    assert await stage.ask() == 529


TOOLS = [{"type": "function", "name": "exec", "parameters": {"type": "object"}}]

BY_THE_WAY: tuple[dict[str, Any], ...] = (
    {"model": "gpt-5.5-mini", "tools": TOOLS},  # another, small model
    {},  # without tools, where others offer some
)


@pytest.mark.parametrize("other", BY_THE_WAY)
async def test_what_is_asked_by_the_way_hides_nothing_of_what_the_agent_was_answered(
    other: dict[str, Any],
) -> None:
    stage = Stage(RESPONSES, {"error": 429}, {"text": "A title."}, {"text": "Yes."}, {"error": 500})
    assert await stage.ask(tools=TOOLS) == 429
    assert await stage.ask(**other) == 200
    verdicts = [stage.access.bill.last.verdict]
    assert await stage.ask(tools=TOOLS) == 200
    assert await stage.ask(**other) == 500
    verdicts.append(stage.access.bill.last.verdict)
    assert verdicts == ["rate_limit", ""]


@pytest.mark.parametrize("other", BY_THE_WAY)
async def test_an_answer_by_the_way_does_not_begin_the_count_anew(other: dict[str, Any]) -> None:
    between: list[dict[str, Any]] = [{"error": 500}, {"text": "A title."}]
    stage = Stage(RESPONSES, *between * 3, {"text": "-", "repeat": True})
    for _ in range(FAILURES_IN_A_ROW):
        assert await stage.ask(tools=TOOLS) == 500
        if stage.access.bill.streak().failed < FAILURES_IN_A_ROW:
            assert await stage.ask(**other) == 200
    assert await stage.ask(tools=TOOLS) == 400
    assert await stage.ask(**other) == 400  # the turn is over


@pytest.mark.parametrize("other", BY_THE_WAY)
async def test_a_storm_by_the_way_is_ended_and_the_agent_goes_on(other: dict[str, Any]) -> None:
    failing = [{"error": 500}] * FAILURES_IN_A_ROW
    stage = Stage(RESPONSES, {"text": "-"}, *failing, {"text": "-", "repeat": True})
    assert await stage.ask(tools=TOOLS) == 200
    statuses = [await stage.ask(**other) for _ in range(STORM)]
    assert statuses == [500] * FAILURES_IN_A_ROW + [400] * (STORM - FAILURES_IN_A_ROW)
    assert await stage.ask(tools=TOOLS) == 200
