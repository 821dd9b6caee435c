"""The scripted model: an endpoint like the model APIs that plays a script, in each one's format.

For demos without a key, and for tests: the CLI is the real one and does what it is told.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import anyio
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from orchestrator.catalog.problems import did_you_mean, found
from orchestrator.catalog.validation import sentence
from orchestrator.domain import Frozen
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
from orchestrator.plain_yaml import Loc, YamlRefused, load_document, written

SCRIPT_BYTES = 16 * 1024 * 1024
"""The longest script that is read."""

PLACEHOLDER_CHARS = 20_000
"""Of what is put in for a placeholder."""

STEP_FORMS = (
    "a step is `text: …`, or `tool: NAME` with `input: {…}`, or a list of these, or `error: STATUS`"
)

STEP_WORDS = ("text", "tool", "error", "blocks")
"""Each step has one of these."""


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


def _kind_of(block: object) -> str:
    uses = "tool" in block if isinstance(block, dict) else isinstance(block, ToolCall)
    return "tool" if uses else "text"


Block = Annotated[
    Annotated[Text, Tag("text")] | Annotated[ToolCall, Tag("tool")], Discriminator(_kind_of)
]

CutKind = bool | Literal["clean"]


class ScriptedReply(Frozen):
    """The model answers."""

    kind: Literal["reply"] = "reply"
    blocks: Annotated[tuple[Block, ...], Field(min_length=1)]
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


def _full_form(step: object) -> object:
    """A step as its author may write it -> with its kind; ValueError if it can be none."""
    if isinstance(step, ScriptedReply | Refusal):
        return step
    if isinstance(step, list):
        return {"kind": "reply", "blocks": tuple(step)}
    if not isinstance(step, dict):
        raise ValueError(f"is no step; {STEP_FORMS}")  # noqa: TRY004 pydantic knows ValueErrors
    if not any(word in step for word in STEP_WORDS):
        guess = next((guess for key in step if (guess := did_you_mean(key, STEP_WORDS))), None)
        hint = f"; did you mean '{guess}'?" if guess else ""
        raise ValueError(f"has no text, tool or error{hint or f'; {STEP_FORMS}'}")
    if len(said := [word for word in STEP_WORDS if word in step]) > 1:
        listed = "" if "error" in said else ", or as a list in one"
        raise ValueError(f"has {' and '.join(said)}; write them as two steps{listed}")
    if "error" in step:
        return {"kind": "error", **step}
    if isinstance(step.get("blocks"), list):
        return {"kind": "reply", **step, "blocks": tuple(step["blocks"])}
    block = {key: step[key] for key in ("text", "tool", "input") if key in step}
    rest = {key: value for key, value in step.items() if key not in block}
    return {"kind": "reply", **({"blocks": (block,)} if block else {}), **rest}


Step = Annotated[ScriptedReply | Refusal, Field(discriminator="kind"), BeforeValidator(_full_form)]


OVER = ScriptedReply(blocks=(Text(text="(the script has no more steps)"),))


class Script(Frozen):
    """What a scripted model says, one step for each request.

    A step is written as `text: ...`, as `tool: NAME` with `input`, as a list of those, as
    `blocks: [...]`, or as `error: STATUS`.
    """

    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    each_task: bool = False
    """Begin anew with every message of the user: for agents with sessions."""

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
    """A YAML file -> Script; AuthorError with the line and what to write there."""
    try:
        document = load_document(_bytes(path))
    except OSError as exc:
        raise AuthorError(f"the script {path} cannot be read: {exc.strerror}") from exc
    except YamlRefused as exc:
        raise AuthorError(f"the script {path}:{exc}") from exc
    try:
        return Script.model_validate_json(json.dumps(document.value), strict=True)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        loc = near = _place(first["loc"], document.value)
        while near and near not in document.lines:
            near = near[:-1]
        parts = (str(document.lines.get(near, 1)), written(loc), _told(first, loc))
        raise AuthorError(f"the script {path}:{': '.join(filter(None, parts))}") from exc


def _place(loc: Loc, value: object) -> Loc:
    """Where the author has written what an error is about: without the kinds of steps and blocks,
    and without `blocks` where a step has none of that name.
    """
    if len(loc) < 3 or not isinstance(value, dict):
        return loc
    field, number, _, *rest = loc
    step = value[str(field)][number]
    if rest[0] == "cut":
        rest = rest[:1]
    elif rest[0] == "blocks":
        blocks, at, inner = rest[:1], rest[1:2], rest[3:]
        if isinstance(step, list):
            rest = [*at, *inner]
        else:
            rest = [*blocks, *at, *inner] if "blocks" in step else inner
    return (field, number, *rest)


def _told(error: ErrorDetails, loc: Loc) -> str:
    """What is wrong there, and what to write."""
    if not loc and error["type"] != "value_error":
        return f"must be `steps:` with a list; {STEP_FORMS}"
    if loc == ("steps",):
        return f"{sentence(error, STEP_WORDS)}; {STEP_FORMS}"
    if error["type"] == "extra_forbidden":
        if len(loc) == 1:
            models: tuple[type[Frozen], ...] = (Script,)
        elif "usage" in loc:
            models = (StepUsage,)
        else:
            models = (Text, ToolCall, ScriptedReply, Refusal)
        known = dict.fromkeys(name for model in models for name in model.model_fields)
        known.pop("kind", None)
        guess = did_you_mean(str(loc[-1]), known)
        hint = f"did you mean '{guess}'?" if guess else f"allowed: {', '.join(known)}"
        return f"unknown field; {hint}"
    if loc[-1:] == ("cut",):
        return f"must be true, false or clean, found {found(error['input'])}"
    return sentence(error, ("text", "tool"))


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
        elif each.who == "user" and each.text and not NO_TASK.match(each.text):
            count = 0
    return count


NO_TASK = re.compile(r"Task:$|\S+ was refused: ")
"""What begins no task: a heading (acp), which its task follows, and a message of a runner that
tells its agent so why a call was refused (codex, acp)."""


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
