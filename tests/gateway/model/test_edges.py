"""Where an answer begins to be a failure, and what a revoked run sees of the one under way."""

from __future__ import annotations

import json

import anyio
import pytest

from orchestrator.gateway.model.scripted import Script, ScriptedModel
from tests.gateway.model.model_stage import body, bound_access, post
from tests.gateway.model.test_metering import measured
from tests.gateway.near import Client, connection

pytestmark = pytest.mark.anyio

ERROR = json.dumps({"type": "error", "error": {"type": "invalid_request_error"}}).encode()
JSON = "application/json"


@pytest.mark.parametrize(("status", "paid"), [(200, True), (399, True), (400, False), (529, False)])
async def test_an_answer_from_400_on_costs_nothing(status: int, paid: bool) -> None:
    tally = measured(ERROR, 1000, status, JSON)
    assert tally.cost_usd == 0
    assert (tally.estimated_usd > 0, tally.output_tokens > 0) == (paid, paid)


async def test_an_answer_under_way_is_reset_when_its_run_is_over() -> None:
    slow = Script.model_validate({"steps": [{"text": "at last", "delay_seconds": 3600}]})
    access = bound_access(ScriptedModel(slow).upstream())
    async with connection(access.service) as stream:
        headers = {"x-api-key": access.token}
        await Client(stream).send("POST", "/v1/messages", headers, body(stream=True))
        while not access._under_way:
            await anyio.sleep(0.001)
        access.revoke()
        with pytest.raises(ConnectionResetError):
            await stream.read()


async def test_a_script_goes_on_by_what_the_model_has_said_since_the_user_spoke() -> None:
    steps = [{"text": "one"}, {"text": "two"}]
    script = Script.model_validate({"steps": steps, "each_task": True})
    user = {"role": "user", "content": "hi"}
    said = {"role": "assistant", "content": "one"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "done"}
    for messages, answer in (
        ([user], b"one"),
        ([user, said, {"role": "user", "content": [result]}], b"two"),
        ([user, said, user], b"one"),
    ):
        access = bound_access(ScriptedModel(script).upstream())
        assert answer in (await post(access, messages=messages)).body
