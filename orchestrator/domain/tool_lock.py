"""ToolLock: what a server's tools were when a person last read them. Pure."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Literal, Self

from pydantic import JsonValue, model_validator

from orchestrator.domain import Frozen
from orchestrator.domain.tool_server import ToolServer
from orchestrator.domain.tool_use import ServerUse

TOOL_FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What of a tool is pinned, and shown: all that a model reads or a client goes by."""

RESOURCE_FIELDS = ("uri", "uriTemplate", "name", "title", "description", "mimeType")
PROMPT_FIELDS = ("name", "title", "description", "arguments")

JsonMap = dict[str, JsonValue]


def definition_digest(definition: Mapping[str, object]) -> str:
    """The same for the same words, in whatever order a server writes them."""
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def definition_tokens(definition: Mapping[str, object]) -> int:
    """About how many tokens it takes in each request to a model."""
    return -(-len(json.dumps(definition, separators=(",", ":"), ensure_ascii=False)) // 4)


class Pinned(Frozen):
    """One definition as a server gave it, and its digest."""

    definition: JsonMap
    digest: str

    @model_validator(mode="after")
    def _is_what_was_pinned(self) -> Self:
        if definition_digest(self.definition) != self.digest:
            raise ValueError("digest does not fit the definition: it was changed after it was read")
        return self

    @classmethod
    def of(cls, given: Mapping[str, JsonValue], fields: tuple[str, ...]) -> Self:
        """A definition, with what counts of it and nothing else."""
        kept = {name: given[name] for name in fields if given.get(name) is not None}
        return cls(definition=kept, digest=definition_digest(kept))

    @property
    def name(self) -> str:
        return str(self.definition.get("name", ""))

    @property
    def uri(self) -> str:
        """Of a resource, or the pattern of a template's URIs."""
        return str(self.definition.get("uri") or self.definition.get("uriTemplate") or "")

    @property
    def tokens(self) -> int:
        return definition_tokens(self.definition)


class ToolLock(Frozen):
    """All that a server offered when it was pinned, in the order in which models are shown it."""

    version: Literal[1] = 1
    server: str
    """What it calls itself, and its version."""
    protocol: str
    """The version of MCP that was spoken."""
    image: str = ""
    """The id of the image that it ran in; "" for a server at a URL."""
    instructions: str = ""
    """What it says of itself to models."""
    tools: tuple[Pinned, ...] = ()
    resources: tuple[Pinned, ...] = ()
    templates: tuple[Pinned, ...] = ()
    prompts: tuple[Pinned, ...] = ()

    @model_validator(mode="after")
    def _can_be_shown(self) -> Self:
        for problem in lock_problems(self):
            raise ValueError(problem)
        return self

    def tool(self, name: str) -> Pinned | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    @property
    def words_digest(self) -> str:
        """Of all that models are shown, and of nothing else: an image may be built anew."""
        words = self.model_dump_json(exclude={"version", "server", "protocol", "image"})
        return hashlib.sha256(words.encode()).hexdigest()


class Brokered(Frozen):
    """A server as one agent uses it, and what it was pinned with."""

    use: ServerUse
    server: ToolServer
    lock: ToolLock

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def digest(self) -> str:
        """Another one, and an agent that was shown it has to be shown it again."""
        return f"{self.server.digest} {self.lock.digest}"


def lock_problems(lock: ToolLock) -> Iterator[str]:
    """Why what a server offers cannot be shown to a model, a sentence each."""
    seen: dict[str, str] = {}
    for tool in lock.tools:
        if not is_tool_name(tool.name):
            yield f"tools has the name {ascii(tool.name)[:80]}, which no model can call"
            continue
        told = as_told(tool.name)
        if told in seen:
            yield f"tools has {seen[told]} and {tool.name}, which a model could not tell apart"
        seen[told] = tool.name
        if not isinstance(tool.definition.get("inputSchema"), dict):
            yield f"tools has {tool.name} without an inputSchema"
    for part in ("tools", "resources", "templates", "prompts"):
        for pinned in getattr(lock, part):
            for hidden in hidden_in(pinned.definition):
                name = ascii(pinned.name or pinned.uri)[1:80]
                yield f"{part} has {name} with the character {hidden}, which no reader can see"
    for hidden in hidden_in(lock.instructions):
        yield f"instructions has the character {hidden}, which no reader can see"


def is_tool_name(name: str) -> bool:
    return 0 < len(name) <= 128 and all(c.isascii() and (c.isalnum() or c in "_.-") for c in name)


def as_told(name: str) -> str:
    """What a model is told that a tool is called: its API takes no dot."""
    return name.replace(".", "_")


def hidden_in(value: object) -> Iterator[str]:
    """Characters of a definition, keys included, that a person who reads it does not see; each as
    "U+200B", and each of them once.
    """
    found: dict[str, None] = {}
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            found |= dict.fromkeys(_hidden(part))
        elif isinstance(part, Mapping):
            waiting += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            waiting += part
    yield from found


def _hidden(text: str) -> Iterator[str]:
    if text.isascii() and text.isprintable():
        return
    for at, char in enumerate(text):
        if char in "\n\t" or (char == "\r" and text[at + 1 : at + 2] == "\n"):
            continue
        kind = unicodedata.category(char)
        number = ord(char)
        selects = 0xFE00 <= number <= 0xFE0F or 0xE0100 <= number <= 0xE01EF
        filler = number in (0x115F, 0x1160, 0x3164, 0xFFA0, 0x2800, 0x034F, 0x17B4, 0x17B5)
        if kind[0] != "C" and kind not in ("Zl", "Zp") and not selects and not filler:
            continue
        if _is_of_a_picture(text, at):
            continue
        yield f"U+{number:04X}"


def _is_of_a_picture(text: str, at: int) -> bool:
    """Whether a sign that cannot be seen makes one picture of others that can."""
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    if text[at] == "\ufe0f":
        return bool(before) and (before in "#*0123456789" or unicodedata.category(before) == "So")
    if text[at] == "\u200d":
        drawn = unicodedata.category(before) == "So" if before else False
        drawn = drawn or before in ("\ufe0f", *map(chr, range(0x1F3FB, 0x1F400)))
        return drawn and bool(after) and unicodedata.category(after) == "So"
    return False
