"""The scripted model: every kind of step, in the API's own words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import anyio
import pytest

from orchestrator.app import _script
from orchestrator.domain.agent import AgentSpec
from orchestrator.errors import AuthorError
from orchestrator.gateway.model.scripted import (
    STEP_FORMS,
    Refusal,
    Script,
    ScriptedModel,
    ScriptedReply,
    ScriptedUpstream,
    Text,
    ToolCall,
    load_script,
)
from orchestrator.gateway.model.upstream import UpstreamLost, UpstreamRequest
from orchestrator.settings import read_settings

pytestmark = pytest.mark.anyio

AGENTS = Path(__file__).parents[3] / "agents"


def script(*steps: object) -> Script:
    return Script.model_validate({"steps": list(steps)})


def playing(*steps: object) -> ScriptedUpstream:
    return ScriptedModel(script(*steps)).upstream()


async def ask(
    upstream: ScriptedUpstream, path: str = "/v1/messages", **more: object
) -> tuple[int, dict[str, str], bytes]:
    asked = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "hi"}], **more}
    request = UpstreamRequest("POST", path, (), json.dumps(asked).encode())
    with anyio.fail_after(30):
        async with upstream.send(request) as response:
            return (
                response.status,
                dict(response.headers),
                b"".join([chunk async for chunk in response.body]),
            )


async def said(upstream: ScriptedUpstream, **more: object) -> str:
    _, _, data = await ask(upstream, "/v1/messages", **more)
    return str(json.loads(data)["content"][0]["text"])


def events(data: bytes) -> list[dict[str, object]]:
    blocks = data.decode().removesuffix("\n\n").split("\n\n")
    parsed = [json.loads(block.split("\ndata: ")[1]) for block in blocks]
    assert [block.split("\n")[0] for block in blocks] == [f"event: {e['type']}" for e in parsed]
    return parsed


async def test_a_text_is_streamed_as_the_api_does() -> None:
    step = {"text": "hello you", "usage": {"input_tokens": 7, "output_tokens": 9}}
    status, headers, data = await ask(playing(step), stream=True)
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    start, *rest = events(data)
    message = start["message"]
    assert isinstance(message, dict)
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "output_tokens": 1,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        },
    }
    block = {"type": "text", "text": ""}
    delta = {"type": "content_block_delta", "index": 0}
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    assert rest == [
        {"type": "content_block_start", "index": 0, "content_block": block},
        {**delta, "delta": {"type": "text_delta", "text": "hel"}},
        {**delta, "delta": {"type": "text_delta", "text": "lo "}},
        {**delta, "delta": {"type": "text_delta", "text": "you"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]


async def test_text_and_tools_come_in_one_step() -> None:
    steps = [{"text": "let me see"}, {"tool": "Bash", "input": {"command": "ls"}}, {"tool": "Read"}]
    for step in (steps, {"blocks": steps}):
        _, _, data = await ask(playing(step))
        message = json.loads(data)
        ids = [block.pop("id") for block in message["content"][1:]]
        assert len(set(ids)) == 2
        assert message["stop_reason"] == "tool_use"
        assert message["content"] == [
            {"type": "text", "text": "let me see"},
            {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}},
            {"type": "tool_use", "name": "Read", "input": {}},
        ]


async def test_a_tool_call_is_streamed_in_pieces_of_json() -> None:
    _, _, data = await ask(playing({"tool": "Bash", "input": {"command": "ls"}}), stream=True)
    deltas = [e["delta"] for e in events(data) if e["type"] == "content_block_delta"]
    pieces = [str(delta["partial_json"]) for delta in deltas if isinstance(delta, dict)]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == {"command": "ls"}


async def test_an_error_is_an_error_of_the_api() -> None:
    upstream = playing({"error": 429, "message": "slow down", "retry_after": 3}, {"error": 418})
    status, headers, data = await ask(upstream)
    assert (status, headers["retry-after"]) == (429, "3")
    error = {"type": "rate_limit_error", "message": "slow down"}
    assert json.loads(data) == {"type": "error", "error": error}
    status, headers, _ = await ask(upstream)
    assert status == 418
    assert "retry-after" not in headers


@pytest.mark.parametrize("cut", [True, "clean"])
@pytest.mark.parametrize("text", ["", "x", "a longer text"])
async def test_a_cut_answer_has_a_start_and_no_end(text: str, cut: bool | str) -> None:
    upstream = playing({"text": text, "cut": cut})
    request = UpstreamRequest("POST", "/v1/messages", (), b'{"stream": true}')
    kinds: list[object] = []

    async def listen(body: AsyncIterator[bytes]) -> None:
        async for chunk in body:
            kinds.extend(event["type"] for event in events(chunk))

    async with upstream.send(request) as response:
        with pytest.raises(UpstreamLost) if cut is True else nullcontext():
            await listen(response.body)
    assert kinds[0] == "message_start"
    assert not {"message_delta", "message_stop"} & set(kinds)
    assert ("content_block_stop" in kinds) == (cut == "clean")


@pytest.mark.parametrize("reason", ["refusal", "max_tokens"])
async def test_an_answer_may_stop_for_other_reasons(reason: str) -> None:
    _, _, data = await ask(playing({"text": "no", "stop_reason": reason}))
    assert json.loads(data)["stop_reason"] == reason


async def test_a_delay_comes_before_anything_else() -> None:
    upstream = playing({"text": "late", "delay_seconds": 3600})
    request = UpstreamRequest("POST", "/v1/messages", (), b"{}")
    with anyio.move_on_after(0.05) as waiting:
        async with upstream.send(request):
            pytest.fail("there should be no answer yet")
    assert waiting.cancelled_caught


async def test_each_request_takes_a_step_and_counting_tokens_takes_none() -> None:
    model = ScriptedModel(script({"text": "one"}, {"text": "two"}))
    first, second = model.upstream(), model.upstream()
    assert await said(first) == "one"
    status, _, data = await ask(first, "/v1/messages/count_tokens?beta=true")
    assert (status, json.loads(data).keys()) == (200, {"input_tokens"})
    assert await said(first) == "two"
    assert await said(first) == "(the script has no more steps)"
    assert await said(second) == "one"


async def test_the_last_step_may_go_on_for_ever() -> None:
    upstream = playing({"text": "one"}, {"text": "two", "repeat": True})
    assert [await said(upstream) for _ in range(4)] == ["one", "two", "two", "two"]


async def test_texts_can_repeat_what_was_said_and_done() -> None:
    text = '{"out": {last_tool_result_json}} {last_tool_result} {last_user_text} {other}'
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "do it"}]},
        {"role": "assistant", "content": "yes"},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "content": [
                        {"type": "text", "text": '"a"\nb\n<system-reminder>n</system-reminder>'}
                    ],
                },
                {"type": "text", "text": "<system-reminder>not me</system-reminder>"},
            ],
        },
        {"role": "system", "content": "nor me"},
    ]
    answer = await said(playing({"text": text}), messages=messages)
    assert answer == '{"out": "\\"a\\"\\nb"} "a"\nb do it {other}'


@pytest.mark.parametrize("messages", [None, 7, ["x"], [{"role": "user", "content": 7}], [{}]])
async def test_odd_conversations_are_survived(messages: object) -> None:
    assert await said(playing({"text": "[{last_user_text}]"}), messages=messages) == "[]"


async def test_what_is_no_json_is_refused_without_taking_a_step() -> None:
    upstream = playing({"text": "one"})
    async with upstream.send(UpstreamRequest("POST", "/v1/messages", (), b"[")) as response:
        assert response.status == 400
    async with upstream.send(UpstreamRequest("POST", "/v1/other", (), b"{}")) as response:
        assert response.status == 404
    assert await said(upstream) == "one"


def test_a_script_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(
        "steps:\n"
        "  - tool: Bash\n"
        "    input: {command: ls}\n"
        "  - error: 529\n"
        "  - [{text: a}, {tool: Read}]\n"
        "  - text: b\n"
        "    delay_seconds: 1.5\n"
        "    repeat: true\n"
    )
    assert load_script(path).steps == (
        ScriptedReply(blocks=(ToolCall(tool="Bash", input={"command": "ls"}),)),
        Refusal(error=529),
        ScriptedReply(blocks=(Text(text="a"), ToolCall(tool="Read"))),
        ScriptedReply(blocks=(Text(text="b"),), delay_seconds=1.5, repeat=True),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("steps: []", f"1: steps: must not be empty; {STEP_FORMS}"),
        ("\nsteps: x", f"2: steps: must be a list, found 'x'; {STEP_FORMS}"),
        ("[]", f"1: must be `steps:` with a list; {STEP_FORMS}"),
        ("step: []", f"1: steps: is missing; {STEP_FORMS}"),
        ("steps:\n- hello", f"2: steps[0]: 'hello' is no step; {STEP_FORMS}"),
        ("steps:\n- txt: a", "2: steps[0]: has no text, tool or error; did you mean 'text'?"),
        ("steps:\n- say: a", f"2: steps[0]: has no text, tool or error; {STEP_FORMS}"),
        (
            "steps: [{text: a, tool: b}]",
            "1: steps[0]: has text and tool; write them as two steps, or as a list in one",
        ),
        (
            "steps: [{text: a, repeat: true}, {text: b}]",
            "1: step 1 repeats, so that the next is never reached",
        ),
        ("steps: [{error: 200}]", "1: steps[0].error: must be at least 400, found the number 200"),
        (
            "steps:\n- text: a\n- tool: Bash\n  input: ls",
            "4: steps[1].input: must be a mapping, found 'ls'",
        ),
        (
            "steps:\n- text: 5",
            "2: steps[0].text: must be text, found the number 5; put it in quotes",
        ),
        ("steps:\n- - text: a\n  - tool: ''", "3: steps[0][1].tool: must not be empty"),
        ("steps:\n- blocks: [hi]", "2: steps[0].blocks[0]: must be a mapping with text, tool, "),
        ("steps:\n- text: a\n  delay: 3", "3: steps[0].delay: unknown field; allowed: text, tool"),
        ("steps:\n- text: a\n  usage: {input: 1}", "3: steps[0].usage.input: unknown field; allo"),
        ("steps:\n- text: a\n  cut: no", "3: steps[0].cut: must be true, false or clean, found "),
        ("steps:\n- text: a\neach_tsk: 1", "3: each_tsk: unknown field; did you mean 'each_task'"),
        ("steps: [", "1: is not valid YAML"),
    ],
)
def test_a_wrong_script_is_told_by_line_with_what_to_write(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(AuthorError) as refused:
        load_script(path)
    assert str(refused.value).startswith(f"the script {path}:{told}")


def test_a_script_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(AuthorError, match="cannot be read"):
        load_script(tmp_path / "none.yaml")


@pytest.mark.parametrize(("runner", "said"), [("codex", "of codex"), ("claude", "of all")])
async def test_a_script_for_a_runner_goes_before_the_one_for_all(
    tmp_path: Path, runner: str, said: str
) -> None:
    folder = tmp_path / "agents" / "a"
    folder.mkdir(parents=True)
    (folder / "script.yaml").write_text("steps: [{text: of all}]")
    (folder / "script.codex.yaml").write_text("steps: [{text: of codex}]")
    settings = read_settings({"ORCHESTRATOR_SCRIPTED": "1", "HOME": str(tmp_path)}, tmp_path)
    upstream = _script(settings, AgentSpec(name="a", description="A."), runner)
    assert isinstance(upstream, ScriptedUpstream)
    assert upstream._script.steps == (ScriptedReply(blocks=(Text(text=said),)),)


@pytest.mark.parametrize("name", ["code-runner", "docs-reader", "github", "web-search"])
def test_the_examples_have_scripts(name: str) -> None:
    assert len(load_script(AGENTS / name / "script.yaml").steps) >= 2


def test_a_script_that_says_two_things_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_text("steps:\n  - text: one\n    text: two\n")
    with pytest.raises(AuthorError) as told:
        load_script(path)
    assert str(told.value) == (
        f"the script {path}:3: steps[0].text: is given twice, first on line 2; remove one of them"
    )
