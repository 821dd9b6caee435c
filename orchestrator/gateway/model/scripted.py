"""The scripted model: an endpoint like the model APIs that plays a script, in each one's format.

For demos without a key, and for tests: the CLI is the real one and does what it is told.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import anyio
from pydantic import Field, ValidationError, field_validator, model_validator

from orchestrator.domain import Frozen
from orchestrator.domain.words import requirement
from orchestrator.errors import AuthorError
from orchestrator.gateway.model.upstream import UpstreamLost, UpstreamRequest, UpstreamResponse
from orchestrator.gateway.model.voices.anthropic import AnthropicVoice
from orchestrator.gateway.model.voices.chat import ChatVoice
from orchestrator.gateway.model.voices.gemini import GeminiVoice
from orchestrator.gateway.model.voices.responses import ResponsesVoice
from orchestrator.gateway.model.voices.spoken import (
    Means,
    Overheard,
    SaidCall,
    SaidText,
    SaidUsage,
    Spoken,
    Uttered,
    Voice,
    new_id,
)
from orchestrator.plain_yaml import YamlRefused, load_yaml

SCRIPT_BYTES = 16 * 1024 * 1024
"""The longest script that is read."""

PLACEHOLDER_CHARS = 20_000
"""Of what is put in for a placeholder."""


class Text(Frozen):
    """Something the model says.

    {last_tool_result} and {last_user_text} are filled in from the request, and {user_texts}, all
    that was said since the conversation began; {last_tool_result_json} is the first as a JSON
    string, quotes included.
    """

    text: str


class ToolCall(Frozen):
    """A tool the model wants used; texts in its input may hold placeholders as well."""

    tool: Annotated[str, Field(min_length=1)]
    input: dict[str, object] = {}


class StepUsage(Frozen):
    """What the model says it used."""

    input_tokens: Annotated[int, Field(ge=0)] = 100
    output_tokens: Annotated[int, Field(ge=0)] = 20
    cache_read_input_tokens: Annotated[int, Field(ge=0)] = 0
    cache_creation_input_tokens: Annotated[int, Field(ge=0)] = 0


CutKind = bool | Literal["clean"]


class ScriptedReply(Frozen):
    """The model answers."""

    kind: Literal["reply"] = "reply"
    blocks: Annotated[tuple[Text | ToolCall, ...], Field(min_length=1)]
    delay_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    pause_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """After each of the pieces that it says."""
    cut: CutKind = False
    """The connection breaks in the middle of the answer, after which a client tries again. Or
    "clean": all is said and HTTP ends well, but the model never says that it is done."""
    stop_reason: Literal["end_turn", "tool_use", "max_tokens", "refusal"] | None = None
    """None is what the blocks ask for."""
    usage: StepUsage = StepUsage()
    repeat: bool = False
    """From here on always the same. Only for the last step."""


class Refusal(Frozen):
    """The API answers with an error."""

    kind: Literal["error"] = "error"
    error: Annotated[int, Field(ge=400, le=599)]
    message: str = "this error is part of the script"
    means: Means = ""
    """Told as the API tells it that the account has nothing left, or that the conversation is too
    long."""
    retry_after: Annotated[int, Field(ge=0)] | None = None
    """Seconds."""
    delay_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    repeat: bool = False


Step = Annotated[ScriptedReply | Refusal, Field(discriminator="kind")]

OVER = ScriptedReply(blocks=(Text(text="(the script has no more steps)"),))


class Script(Frozen):
    """What a scripted model says, one step for each request.

    A step is written as `text: ...`, as `tool: NAME` with `input`, as a list of those, as
    `blocks: [...]`, or as `error: STATUS`.
    """

    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    each_task: bool = False
    """Begin anew with every message of the user: for agents with sessions."""

    @field_validator("steps", mode="before")
    @classmethod
    def _short_forms(cls, steps: object) -> object:
        return [_full_form(step) for step in steps] if isinstance(steps, list) else steps

    @model_validator(mode="after")
    def _only_the_last_repeats(self) -> Self:
        for number, step in enumerate(self.steps[:-1], start=1):
            if step.repeat:
                raise ValueError(f"step {number} repeats, so that the next is never reached")
        return self

    def step(self, number: int) -> ScriptedReply | Refusal:
        """The answer to a request, counted from 0."""
        if number < len(self.steps):
            return self.steps[number]
        return self.steps[-1] if self.steps[-1].repeat else OVER


def load_script(path: Path) -> Script:
    """A YAML file -> Script, or a sentence about what is wrong with it."""
    try:
        return Script.model_validate(load_yaml(_bytes(path)))
    except OSError as exc:
        raise AuthorError(f"the script {path} cannot be read: {exc.strerror}") from exc
    except YamlRefused as exc:
        raise AuthorError(f"the script {path}:{exc}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise AuthorError(
            f"the script {path} is wrong: {where or 'it'} "
            f"{requirement(first['type'], first['msg'])}"
        ) from exc


def _bytes(path: Path) -> bytes:
    """What a script holds; a link to a device or a pipe would never end, or be waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise AuthorError(f"the script {path} is not a regular file; put one there")
        return file.read(SCRIPT_BYTES)


class ScriptedModel:
    """A script for many runs: each starts it anew."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def upstream(self) -> ScriptedUpstream:
        return ScriptedUpstream(self._script)


class ScriptedUpstream:
    """One conversation with the scripted model: each request gets the next step."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._asked = 0

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        async with AsyncExitStack() as held:
            answer = await self._answer(request)
            if isinstance(answer.body, AsyncGenerator):
                held.push_async_callback(answer.body.aclose)
            yield answer

    async def _answer(self, request: UpstreamRequest) -> UpstreamResponse:
        path = request.target.partition("?")[0]
        spoken_to = _addressed(path)
        if spoken_to is None:
            return _error(AnthropicVoice(), Refusal(error=404, message=NO_PATH))
        voice, way = spoken_to
        if way.counts:
            return _json(200, {way.counts: max(1, len(request.body) // 4)})
        asked = _parsed(request.body)
        if asked is None:
            return _error(voice, Refusal(error=400, message=NO_OBJECT))
        step = self._step(voice.heard(asked), is_aside=TITLES in request.body)
        if step.delay_seconds:
            await anyio.sleep(step.delay_seconds)
        if isinstance(step, Refusal):
            return _error(voice, step)
        spoken = _spoken(step, voice.heard(asked), way.model or asked.get("model"))
        if not (asked.get("stream") if way.streams is None else way.streams):
            return _json(200, voice.whole(spoken, asked), cut=step.cut)
        headers = (("content-type", "text/event-stream"), ("request-id", new_id("req")))
        uttered = voice.streamed(spoken, asked)
        played = _played(uttered, cut=step.cut, pause=step.pause_seconds)
        return UpstreamResponse(200, headers, played)

    def _step(self, heard: list[Overheard], *, is_aside: bool) -> ScriptedReply | Refusal:
        """What comes next; a CLI that asks for a title beside the conversation gets one, and the
        script goes on as if it had not.
        """
        if is_aside:
            return SCRIPTED_TITLE
        number = _answers_since_task(heard) if self._script.each_task else self._asked
        self._asked += 1
        return self._script.step(number)


TITLES = b"You are a title generator"
"""How opencode 1.18.33 begins such a request."""

SCRIPTED_TITLE = ScriptedReply(blocks=(Text(text="A task"),))

NO_PATH = "there is no such path in the scripted model"
NO_OBJECT = "the request's body is not a JSON object"


class _Addressed(NamedTuple):
    """What a path says."""

    model: str = ""
    streams: bool | None = None
    """None where the body says it."""
    counts: str = ""
    """It only counts tokens, and this is what it calls them."""


def _addressed(path: str) -> tuple[Voice, _Addressed] | None:
    """Who is spoken to by that path, below an API's base URL or with it."""
    match path.removeprefix("/v1"):
        case "/messages":
            return AnthropicVoice(), _Addressed()
        case "/messages/count_tokens":
            return AnthropicVoice(), _Addressed(counts="input_tokens")
        case "/responses":
            return ResponsesVoice(), _Addressed()
        case "/chat/completions":
            return ChatVoice(), _Addressed()
    place, _, verb = path.partition(":")
    model = place.rpartition("/models/")[2]
    match verb:
        case "generateContent" | "streamGenerateContent":
            return GeminiVoice(), _Addressed(model, streams=verb.startswith("stream"))
        case "countTokens":
            return GeminiVoice(), _Addressed(model, counts="totalTokens")
    return None


# A step -> the API's words


def _full_form(step: object) -> object:
    if isinstance(step, list):
        return {"kind": "reply", "blocks": step}
    if not isinstance(step, Mapping) or "kind" in step:
        return step
    if "error" in step:
        return {"kind": "error", **step}
    block = {key: step[key] for key in ("text", "tool", "input") if key in step}
    rest = {key: value for key, value in step.items() if key not in block}
    return {"kind": "reply", **({"blocks": [block]} if block else {}), **rest}


def _spoken(step: ScriptedReply, heard: list[Overheard], model: object) -> Spoken:
    blocks: list[SaidText | SaidCall] = []
    for block in step.blocks:
        if isinstance(block, Text):
            blocks.append(SaidText(_filled(block.text, heard)))
        else:
            filled = {
                key: _filled(value, heard) if isinstance(value, str) else value
                for key, value in block.input.items()
            }
            blocks.append(SaidCall(block.tool, filled))
    uses_tools = any(isinstance(block, ToolCall) for block in step.blocks)
    usage = step.usage
    return Spoken(
        model=model if isinstance(model, str) else "scripted",
        blocks=tuple(blocks),
        stop=step.stop_reason or ("tool_use" if uses_tools else "end_turn"),
        usage=SaidUsage(
            input=usage.input_tokens,
            output=usage.output_tokens,
            cache_read=usage.cache_read_input_tokens,
            cache_write=usage.cache_creation_input_tokens,
        ),
    )


def _filled(text: str, heard: list[Overheard]) -> str:
    if "{" not in text:
        return text
    results = [each.text for each in heard if each.who == "tool"]
    texts = [each.text for each in heard if each.who == "user"]
    result = results[-1][:PLACEHOLDER_CHARS] if results else ""
    return (
        text.replace("{last_tool_result_json}", json.dumps(result))
        .replace("{last_tool_result}", result)
        .replace("{last_user_text}", texts[-1][:PLACEHOLDER_CHARS] if texts else "")
        .replace("{user_texts}", "; ".join(texts)[-PLACEHOLDER_CHARS:])
    )


def _answers_since_task(heard: list[Overheard]) -> int:
    """How often the model has answered since the user said something last."""
    count = 0
    for each in heard:
        if each.who == "model":
            count += 1
        elif each.who == "user" and each.text:
            count = 0
    return count


async def _played(
    uttered: list[Uttered], *, cut: CutKind, pause: float = 0.0
) -> AsyncGenerator[bytes, None]:
    if cut == "clean":
        uttered = [each for each in uttered if each.part != "end"]
    elif cut:
        last = max(at for at, each in enumerate(uttered) if each.part == "piece")
        uttered = uttered[:last]
    for each in uttered:
        yield each.data
        await anyio.sleep(pause if each.part == "piece" else 0)
    if cut is True:
        raise UpstreamLost("the script cuts the answer here")


def _json(status: int, value: object, *, cut: CutKind = False) -> UpstreamResponse:
    headers = (("content-type", "application/json"), ("request-id", new_id("req")))
    return UpstreamResponse(status, headers, _whole(json.dumps(value).encode(), cut=cut))


async def _whole(data: bytes, *, cut: CutKind) -> AsyncGenerator[bytes, None]:
    if cut:
        yield data[: len(data) // 2]
    else:
        yield data
    if cut is True:
        raise UpstreamLost("the script cuts the answer here")


def _error(voice: Voice, refusal: Refusal) -> UpstreamResponse:
    said = voice.error(refusal.error, refusal.message, refusal.means)
    answer = _json(refusal.error, said)
    if refusal.retry_after is None:
        return answer
    headers = (*answer.headers, ("retry-after", str(refusal.retry_after)))
    return UpstreamResponse(answer.status, headers, answer.body)


def _parsed(body: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
