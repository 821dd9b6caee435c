"""A script, played in every format, through the gateway that meters it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from tests.gateway.model.formats.dialects import CHAT, DIALECTS, GEMINI, RESPONSES, Dialect
from tests.gateway.near import Answer

pytestmark = pytest.mark.anyio

in_every_format = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)

USAGE = {"input_tokens": 70, "output_tokens": 9, "cache_read_input_tokens": 30}
WHOLE = {GEMINI.path: "/v1beta/models/gemini-2.5-pro:generateContent"}


class Stage:
    def __init__(self, dialect: Dialect, *steps: dict[str, Any]) -> None:
        model = ScriptedModel(Script.model_validate({"steps": list(steps)}))
        self.dialect = dialect
        self.access = ModelAccess(model.upstream(), wire_format=dialect.name)
        self.seen: list[ModelRequestSeen] = []
        self.access.bind(budget_usd=1, on_request=self.seen.append)

    async def ask(self, *, stream: bool = True, **more: object) -> Answer:
        dialect = self.dialect
        if dialect is GEMINI:
            path = dialect.path if stream else WHOLE[dialect.path]
            return await dialect.post(self.access, dialect.body(**more), path)
        return await dialect.post(self.access, dialect.body(stream=stream, **more))


def events(answer: Answer) -> list[dict[str, Any]]:
    lines = [line[5:] for line in answer.body.splitlines() if line.startswith(b"data:")]
    return [json.loads(line) for line in lines if line.strip() != b"[DONE]"]


def text_of(dialect: Dialect, told: list[dict[str, Any]]) -> str:
    """What a client puts together of a stream."""
    match dialect.name:
        case "anthropic":
            return "".join(each.get("delta", {}).get("text", "") for each in told)
        case "responses":
            kind = "response.output_text.delta"
            return "".join(each["delta"] for each in told if each["type"] == kind)
        case "chat":
            found = [each["choices"][0]["delta"] for each in told if each["choices"]]
            return "".join(each.get("content", "") for each in found)
    parts = [each["candidates"][0]["content"]["parts"][0] for each in told]
    return "".join(part.get("text", "") for part in parts)


@in_every_format
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_and_its_usage_arrive_in_the_apis_own_form(
    dialect: Dialect, stream: bool
) -> None:
    stage = Stage(dialect, {"text": "you said {last_user_text}", "usage": USAGE})
    answer = await stage.ask(stream=stream)
    assert answer.status == 200
    told = answer.body.decode()
    if stream:
        assert text_of(dialect, events(answer)) == "you said hi"
    else:
        assert "you said hi" in told
    (seen,) = stage.seen
    assert (seen.model, seen.error_type, seen.verdict) == (dialect.model, "", "")
    assert (seen.input_tokens, seen.output_tokens, seen.cache_read_tokens) == (70, 9, 30)
    assert (seen.estimated_usd, stage.access.bill.last.status) == (0, 200)


@in_every_format
async def test_a_tool_is_called_as_the_api_calls_it(dialect: Dialect) -> None:
    stage = Stage(dialect, {"tool": "Bash", "input": {"command": "echo {last_user_text}"}})
    told = events(await stage.ask())
    given = {"command": "echo hi"}
    match dialect.name:
        case "anthropic":
            parts = [each.get("delta", {}).get("partial_json", "") for each in told]
            assert json.loads("".join(parts)) == given
            assert told[1]["content_block"]["name"] == "Bash"
        case "responses":
            (done,) = [each for each in told if each["type"] == "response.output_item.done"]
            item = done["item"]
            assert (item["type"], item["name"]) == ("function_call", "Bash")
            assert json.loads(item["arguments"]) == given
        case "chat":
            deltas = [each["choices"][0]["delta"] for each in told if each["choices"]]
            calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
            assert calls[0]["function"]["name"] == "Bash"
            assert json.loads("".join(call["function"]["arguments"] for call in calls)) == given
            finishes = [each["choices"][0]["finish_reason"] for each in told if each["choices"]]
            assert finishes[-1] == "tool_calls"
        case "gemini":
            call = told[0]["candidates"][0]["content"]["parts"][0]["functionCall"]
            assert (call["name"], call["args"]) == ("Bash", given)


ERRORS = (
    ({"error": 401}, 401, "auth"),
    ({"error": 429, "retry_after": 7}, 429, "rate_limit"),
    ({"error": 429, "means": "quota"}, 429, "quota"),
    ({"error": 500}, 500, "error"),
    ({"error": 529}, 529, "overloaded"),
    ({"error": 400, "means": "context"}, 400, "context"),
)


@in_every_format
@pytest.mark.parametrize(("step", "status", "verdict"), ERRORS)
async def test_an_error_arrives_in_the_apis_own_form_and_is_understood(
    dialect: Dialect, step: dict[str, Any], status: int, verdict: str
) -> None:
    stage = Stage(dialect, step)
    answer = await stage.ask()
    assert answer.status == status
    assert answer.headers.get("retry-after", "") == str(step.get("retry_after", ""))
    error = json.loads(answer.body)["error"]
    assert "this error is part of the script" in error["message"]
    last = stage.access.bill.last
    assert (last.verdict, last.status) == (verdict, status)
    assert "this error is part of the script" in last.said


@in_every_format
@pytest.mark.parametrize("cut", [True, "clean"])
async def test_an_answer_that_breaks_off_is_a_cut_however_http_ended(
    dialect: Dialect, cut: bool | str
) -> None:
    stage = Stage(dialect, {"text": "half of an answer", "cut": cut})
    if cut is True:
        with pytest.raises(Exception, match="peer closed"):
            await stage.ask()
    else:
        assert text_of(dialect, events(await stage.ask())) == "half of an answer"
    assert [(one.error_type, one.verdict) for one in stage.seen] == [("stream_cut", "cut")]
    assert stage.access.bill.last.verdict == "cut"


@in_every_format
@pytest.mark.parametrize(
    ("stop", "verdict"), [("max_tokens", "length"), ("refusal", "refusal"), ("end_turn", "")]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_how_an_answer_stopped_is_known_outside(
    dialect: Dialect, stop: str, verdict: str, stream: bool
) -> None:
    stage = Stage(dialect, {"text": "well", "stop_reason": stop})
    assert (await stage.ask(stream=stream)).status == 200
    assert (stage.access.bill.last.verdict, stage.access.bill.streak().failed) == (verdict, 0)


async def test_a_word_about_a_refused_call_does_not_begin_the_script_anew() -> None:
    script = Script.model_validate({"each_task": True, "steps": [{"text": "1"}, {"text": "2"}]})
    access = ModelAccess(ScriptedModel(script).upstream(), wire_format="responses")
    told = [
        {"role": "user", "content": [{"type": "input_text", "text": "do it"}]},
        {"type": "function_call", "call_id": "t", "name": "exec_command", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": "declined"},
        {"role": "user", "content": [{"type": "input_text", "text": "Task:"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Bash was refused: no"}]},
    ]
    answer = await RESPONSES.post(access, RESPONSES.body(input=told))
    assert text_of(RESPONSES, events(answer)) == "2"


@in_every_format
async def test_what_was_said_and_what_tools_gave_back_is_heard(dialect: Dialect) -> None:
    script = Script.model_validate(
        {
            "each_task": True,
            "steps": [{"text": "first"}, {"text": "{user_texts} / {last_tool_result}"}],
        }
    )
    access = ModelAccess(ScriptedModel(script).upstream(), wire_format=dialect.name)
    called, note = {"command": "x"}, "<system-reminder>be good</system-reminder>"
    told: dict[str, object] = {
        "anthropic": [
            {"role": "user", "content": [{"type": "text", "text": note}]},
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "input": called}]},
            {"role": "user", "content": [{"type": "tool_result", "content": "done"}]},
        ],
        "responses": [
            {"role": "developer", "content": "you are x"},
            {"role": "user", "content": [{"type": "input_text", "text": note}]},
            {"role": "user", "content": [{"type": "input_text", "text": "do it"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I do"}]},
            {"type": "function_call", "call_id": "t", "name": "Bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t", "output": "done"},
        ],
        "chat": [
            {"role": "system", "content": "you are x"},
            {"role": "user", "content": f"{note}do it"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "tool_call_id": "t", "content": [{"type": "text", "text": "done"}]},
        ],
        "gemini": [
            {"role": "user", "parts": [{"text": note}, {"text": "do it"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "Bash", "args": called}}]},
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "Bash", "response": {"output": "done"}}}],
            },
        ],
    }
    key = {"responses": "input", "gemini": "contents"}.get(dialect.name, "messages")
    answer = await dialect.post(access, dialect.body(**{key: told[dialect.name]}))
    assert text_of(dialect, events(answer)) == "do it / done"


async def test_a_tool_of_another_kind_is_called_by_its_kind() -> None:
    patch = {"tool": "apply_patch", "input": {"input": "*** Begin Patch"}}
    stage = Stage(RESPONSES, patch, {"tool": "mcp__db__list", "input": {}})
    custom = {"type": "custom", "name": "apply_patch"}
    items = [
        each["item"]
        for answer in (await stage.ask(tools=[custom]), await stage.ask(tools=[custom]))
        for each in events(answer)
        if each["type"] == "response.output_item.done"
    ]
    assert (items[0]["type"], items[0]["input"]) == ("custom_tool_call", "*** Begin Patch")
    assert (items[1]["namespace"], items[1]["name"]) == ("mcp__db", "list")


async def test_a_title_takes_no_step_of_the_script() -> None:
    stage = Stage(CHAT, {"text": "the answer"})
    title = [{"role": "system", "content": "You are a title generator. You output a title."}]
    assert text_of(CHAT, events(await stage.ask(messages=title))) == "A task"
    assert text_of(CHAT, events(await stage.ask())) == "the answer"
