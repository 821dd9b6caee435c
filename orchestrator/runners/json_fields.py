"""A field of untrusted JSON -> a value of the type that is wanted, or an empty one.

Nothing that is in there is an error: the CLI writes it, or any other process in the container.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LIST_ITEMS = 1000
"""Of a list that is gone through; what comes after is passed over."""

VALUE_PARTS = 10_000
"""Of a value that is handed on whole."""

TEXT_CHARS = 1024 * 1024
"""Of one text. A model does not say so much at once, and a tool's result is cut before."""

VALUE_DEPTH = 32
"""How deep a value may be nested before the rest of it is left out."""

_CLI_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""Not an option of a command ("--all"), no blank, nothing that a shell or a model would obey."""

_CLI_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@\[\]-]{0,127}")
"""Of a tool, a server or a model; the model API takes tools of up to 128 characters."""


def has_more_parts(text: str, most: int) -> bool:
    """Whether JSON has more texts, commas and brackets, outside of texts, than that.

    The reader of Python's json holds up the whole process while it reads: a line of millions of
    parts, for seconds.
    """
    if _separators(text) <= most:
        return False
    # Most of them are in texts: a tool's result is full of code and tables.
    marks = text.replace("\\\\", "").replace('\\"', "")  # what is left ends or begins a text
    texts = marks.count('"') // 2
    return texts > most or texts + sum(map(_separators, marks.split('"')[::2])) > most


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def clean(text: str) -> str:
    """Text that UTF-8 can carry, and not too long: in JSON, "\\ud800" is half a character."""
    return text[:TEXT_CHARS].encode(errors="replace").decode()


def text_of(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    return clean(value) if isinstance(value, str) else ""


def id_of(values: Mapping[str, object], key: str) -> str:
    """What the CLI calls a thing, if it has the form of an id."""
    value = values.get(key)
    return value if isinstance(value, str) and _CLI_ID.fullmatch(value) else ""


def name_of(values: Mapping[str, object], key: str) -> str:
    """The same for names."""
    value = values.get(key)
    return value if isinstance(value, str) and _CLI_NAME.fullmatch(value) else ""


def names_of(values: Mapping[str, object], key: str) -> tuple[str, ...]:
    return tuple(text for text in texts_of(values, key) if _CLI_NAME.fullmatch(text))


def int_of(values: Mapping[str, object], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def dict_of(values: Mapping[str, object], key: str) -> dict[str, object]:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def dicts_of(values: Mapping[str, object], key: str) -> list[dict[str, object]]:
    return [item for item in _list_of(values, key) if isinstance(item, dict)]


def texts_of(values: Mapping[str, object], key: str) -> tuple[str, ...]:
    return tuple(clean(item) for item in _list_of(values, key) if isinstance(item, str))


def bounded_dict_of(values: Mapping[str, object], key: str) -> dict[str, object]:
    """A mapping with all that is in it, to be shown to others: clean, and not too deep."""
    whole = _bounded(dict_of(values, key), VALUE_DEPTH + 1, [VALUE_PARTS])
    return whole if isinstance(whole, dict) else {}


def _list_of(values: Mapping[str, object], key: str) -> list[object]:
    value = values.get(key)
    return value[:LIST_ITEMS] if isinstance(value, list) else []


def _bounded(value: object, depth: int, left: list[int]) -> object:
    """`left` is how many parts there may still be, of the value as a whole."""
    if isinstance(value, str):
        return clean(value)
    if not isinstance(value, (dict, list)):
        return value
    if not depth or len(value) > left[0]:
        return "…"
    left[0] -= len(value)
    if isinstance(value, dict):
        return {clean(key): _bounded(item, depth - 1, left) for key, item in value.items()}
    return [_bounded(item, depth - 1, left) for item in value]
