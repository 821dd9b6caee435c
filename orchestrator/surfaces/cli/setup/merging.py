"""A settings file of another program + one entry -> the same text with that entry in it. Pure.

Comments, order, indentation and line ends of the file stay as they are: the text is not written
anew, the entry is put between what is there. The outcome is read again and compared; where it is
not what was there with the entry, nothing comes out but CannotMerge.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

MAX_DEPTH = 100
"""Of objects and lists in each other; no settings file has as many, and Python's stack ends."""

USUAL_INDENT = "  "

LIST_CHARS = 80
"""Of a list on one line; a longer one has a line for each of its items."""

_DECODER = json.JSONDecoder()
_TRIVIA = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class CannotMerge(Exception):
    """The file cannot be read, or has something else where the entry belongs; it says what."""


Entry = Mapping[str, object]


def json_entry(text: str, path: Sequence[str]) -> object:
    """What is at a path in JSON, with comments and trailing commas as they are; None if nothing."""
    return _at(_read_json(text).value, path)


def json_with(text: str, path: Sequence[str], entry: Entry) -> str:
    """The same JSON with an entry at a path where there is nothing yet."""
    whole = text + "{}" if _is_blank(text) else text
    root = _read_json(whole)
    parent, left = root, list(path)
    while len(left) > 1 and left[0] in parent.members:
        child = parent.members[left[0]]
        if not isinstance(child, _Object):
            raise CannotMerge(f"what is called {left[0]} in it is no object")
        parent = child
        left.pop(0)
    added: object = entry
    for name in reversed(left[1:]):
        added = {name: added}
    said = _inserted(whole, root, parent, left[0], added)
    if _read_json(said).value != _with(root.value, path, entry):
        raise CannotMerge("the entry cannot be put in its place without changing something else")
    return said


def toml_entry(text: str, path: Sequence[str]) -> object:
    """What is at a path in TOML; None if nothing is."""
    return _at(_read_toml(text), path)


def toml_with(text: str, path: Sequence[str], entry: Entry) -> str:
    """The same TOML with an entry at a path where there is nothing yet, at its end."""
    before = _read_toml(text)
    gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
    added = gap + "\n".join((*toml_lines(path, entry), ""))
    said = text + (added.replace("\n", "\r\n") if "\r\n" in text else added)
    try:
        after = _read_toml(said)
    except CannotMerge as exc:
        raise CannotMerge(f"{'.'.join(path)} cannot be added at its end: {exc}") from exc
    if after != _with(before, path, entry):
        raise CannotMerge("the entry cannot be added at its end without changing something else")
    return said


def lines_of(kind: Literal["json", "toml"], path: Sequence[str], entry: Entry) -> list[str]:
    """A file with nothing but the entry; or what to add by hand to one that cannot be merged."""
    return toml_lines(path, entry) if kind == "toml" else json_lines(path, entry)


def json_lines(path: Sequence[str], entry: Entry) -> list[str]:
    """The entry as an object, in the objects that lead to it."""
    return json.dumps(_with({}, path, entry), indent=2, ensure_ascii=False).splitlines()


def toml_lines(path: Sequence[str], entry: Entry) -> list[str]:
    """An entry as tables: plain values first, as TOML wants it."""
    lines = [f"[{'.'.join(map(_key, path))}]"]
    tables: list[str] = []
    for name, value in entry.items():
        if isinstance(value, Mapping):
            tables += ["", *toml_lines((*path, name), value)]
        else:
            lines.append(f"{_key(name)} = {_toml(value)}")
    # A table that holds tables alone needs no head of its own.
    return [*lines, *tables] if len(lines) > 1 or not tables else tables[1:]


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        flat = f"[{', '.join(map(_toml, value))}]"
        inside = "".join(f"  {_toml(item)},\n" for item in value)
        return flat if len(flat) <= LIST_CHARS else f"[\n{inside}]"
    return json.dumps(value, ensure_ascii=False)


def _read_toml(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise CannotMerge(f"it is no TOML: {exc}") from exc


def _at(value: object, path: Sequence[str]) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _with(value: object, path: Sequence[str], entry: object) -> object:
    """The value with an entry at a path."""
    if not path:
        return entry
    here = value if isinstance(value, dict) else {}
    return {**here, path[0]: _with(here.get(path[0]), path[1:], entry)}


# JSON with comments, and where its parts are


class _Value(NamedTuple):
    value: object
    end: int
    """Just after it."""


class _Object(NamedTuple):
    value: dict[str, object]
    end: int
    start: int
    members: dict[str, _Value | _Object]
    last: int
    """Just after the last member; after the brace if there is none."""
    comma: bool
    """Whether a comma follows the last member."""
    indent: str | None
    """Of its first member, if that has a line of its own."""


def _read_json(text: str) -> _Object:
    if _is_blank(text):
        return _read_json("{}")
    found = _read_value(text, _skip(text, 0), 0)
    end = _skip(text, found.end)
    if end != len(text):
        raise _wrong(text, end, "something follows its end")
    if not isinstance(found, _Object):
        raise CannotMerge("it holds no object")
    return found


def _is_blank(text: str) -> bool:
    return not text.strip("\ufeff \t\r\n")


def _read_value(text: str, at: int, depth: int) -> _Value | _Object:
    if depth > MAX_DEPTH:
        raise _wrong(text, at, "it is nested too deep")
    if text.startswith("{", at):
        return _read_object(text, at, depth)
    if text.startswith("[", at):
        return _read_list(text, at, depth)
    try:
        return _Value(*_DECODER.raw_decode(text, at))
    except ValueError as exc:
        raise _wrong(text, at, "there should be a value") from exc


def _read_object(text: str, start: int, depth: int) -> _Object:
    members: dict[str, _Value | _Object] = {}
    at = _skip(text, start + 1)
    indent, last, comma = _indent_before(text, at), start + 1, False
    while not text.startswith("}", at):
        if (members and not comma) or not text.startswith('"', at):
            raise _wrong(text, at, "there should be a comma or a name in quotes")
        key = _read_value(text, at, depth)
        name = str(key.value)
        if name in members:
            raise _wrong(text, at, f"{json.dumps(name)} is there a second time")
        at = _skip(text, key.end)
        if not text.startswith(":", at):
            raise _wrong(text, at, "there should be a colon")
        members[name] = _read_value(text, _skip(text, at + 1), depth + 1)
        last = members[name].end
        at = _skip(text, last)
        comma = text.startswith(",", at)
        if comma:
            last = at + 1
            at = _skip(text, last)
    value = {name: member.value for name, member in members.items()}
    return _Object(value, at + 1, start, members, last, comma, indent if members else None)


def _read_list(text: str, start: int, depth: int) -> _Value:
    items: list[object] = []
    at, comma = _skip(text, start + 1), True
    while not text.startswith("]", at):
        if not comma:
            raise _wrong(text, at, "there should be a comma")
        item = _read_value(text, at, depth + 1)
        items.append(item.value)
        at = _skip(text, item.end)
        comma = text.startswith(",", at)
        at = _skip(text, at + 1) if comma else at
    return _Value(items, at + 1)


def _skip(text: str, at: int) -> int:
    """Where the next thing is that says something."""
    found = _TRIVIA.match(text, at)
    return found.end() if found else at


def _indent_before(text: str, at: int) -> str | None:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line if "\n" in text[:at] and not line.strip() else None


def _wrong(text: str, at: int, what: str) -> CannotMerge:
    return CannotMerge(f"it is no JSON: in line {text.count(chr(10), 0, at) + 1}, {what}")


def _inserted(text: str, root: _Object, parent: _Object, name: str, value: object) -> str:
    """The text with one more member at the end of an object in it."""
    unit = root.indent or USUAL_INDENT
    line = text[text.rfind("\n", 0, parent.start) + 1 : parent.start]
    outer = line[: len(line) - len(line.lstrip())]
    inner = parent.indent if parent.indent is not None else outer + unit
    brace = parent.end - 1
    until = len(text[:brace].rstrip())  # what is said about the last member stays behind it
    comma = "," * bool(parent.members and not parent.comma)
    closing = text[until:brace] if "\n" in text[until:brace] else f"\n{outer}"
    dumped = json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{inner}")
    added = f"\n{inner}{json.dumps(name, ensure_ascii=False)}: {dumped}"
    if "\r\n" in text:
        added, closing = (re.sub(r"\r?\n", "\r\n", part) for part in (added, closing))
    head = text[: parent.last] + comma + text[parent.last : until]
    return head + added + closing + text[brace:]
