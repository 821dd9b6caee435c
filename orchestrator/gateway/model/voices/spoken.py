"""What a scripted model hears and says, in words that no API owns; and what a voice is."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

TEXT_PIECES = 3
"""How many deltas a text comes in."""

AnswerPart = Literal["start", "piece", "stop", "end"]
"""Of an answer: what opens it or one of its blocks, a bit of what is said, what closes a block, and
what says that the model is done. A script that cuts an answer cuts it between these."""

Means = Literal["", "quota", "context"]
"""What an error means beyond its status."""


class Overheard(NamedTuple):
    """One thing of the conversation in a request."""

    who: Literal["user", "tool", "model"]
    text: str = ""


class SaidText(NamedTuple):
    text: str


class SaidCall(NamedTuple):
    tool: str
    input: dict[str, object]


class SaidUsage(NamedTuple):
    """Tokens, none of them in two counts."""

    input: int
    output: int
    cache_read: int
    cache_write: int


class Spoken(NamedTuple):
    """An answer."""

    model: str
    blocks: tuple[SaidText | SaidCall, ...]
    stop: Literal["end_turn", "tool_use", "max_tokens", "refusal"]
    usage: SaidUsage


class Uttered(NamedTuple):
    """A bit of a streamed answer."""

    part: AnswerPart
    data: bytes


class Voice(Protocol):
    """One format, as a model speaks it."""

    def heard(self, asked: Mapping[str, object]) -> list[Overheard]:
        """The conversation so far, without what a CLI adds to it by itself."""
        ...

    def whole(self, spoken: Spoken, asked: Mapping[str, object]) -> object:
        """An answer in one piece."""
        ...

    def streamed(self, spoken: Spoken, asked: Mapping[str, object]) -> list[Uttered]: ...

    def error(self, status: int, message: str, means: Means) -> object: ...


def event(part: AnswerPart, value: Mapping[str, object], *, named: bool = False) -> Uttered:
    """An event of a stream; its type is its name, where there are names."""
    name = f"event: {value['type']}\n" if named else ""
    return Uttered(part, f"{name}data: {json.dumps(value)}\n\n".encode())


def pieces(text: str) -> list[str]:
    size = max(1, -(-len(text) // TEXT_PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def objects(value: object) -> list[dict[str, object]]:
    """Those of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(content: object) -> str:
    """The texts of a content, which is one or has some."""
    if isinstance(content, str):
        return content
    texts = [block.get("text") for block in objects(content)]
    return "\n".join(text for text in texts if isinstance(text, str))


_NOTES = re.compile(
    r"<(system-reminder|system_reminder|reminder|current_datetime|environment_context"
    r"|session_context|user_instructions|context_summary)>.*?(</\1>|\Z)",
    re.DOTALL,
)
"""What CLIs write to the model into what others said."""


def own_text(text: str) -> str:
    """What the user said, without what the CLI added to it."""
    return _NOTES.sub("", text).strip()


def user_texts(texts: Iterable[str]) -> list[Overheard]:
    """What the user said; a text that is nothing but notes of the CLI's is not there at all."""
    own = [(own_text(text), text) for text in texts]
    return [Overheard("user", said) for said, text in own if said or not text]
