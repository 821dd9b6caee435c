"""Text of an agent's files -> values, and the line of each. Pure.

Of YAML only what JSON could say as well: no anchors (a few lines of them unfold to gigabytes), no
tags, no key twice. Words mean what YAML 1.2 says: `no`, `on`, `08:30` and `2024-01-01` are text,
which 1.1, and so the library's own constructor, makes a boolean, a number and a date of.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING

import yaml

from orchestrator.catalog.problems import Loc, Problems, shortened
from orchestrator.plain_yaml import DEPTH, PlainLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

YAML_CHARS = 64 * 1024
"""The longest text that is read as YAML: the library takes a second for a few hundred KiB."""

NUMBER_CHARS = 40
"""The longest number."""

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOLEAN = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_HINTS = (
    ("mapping values are not allowed", 'a text with ": " in it needs quotes'),
    ("but found ':'", 'a text with ": " in it needs quotes'),
    ("character '\\t'", "indent with spaces instead"),
    ("cannot start any token", "a text that begins so needs quotes"),
    ("while scanning an alias", "a text that begins with * needs quotes"),
    ("while scanning an anchor", "a text that begins with & needs quotes"),
    ("aliases", "a text that begins with * needs quotes"),
    ("anchors", "a text that begins with & needs quotes"),
    ("tags", "a text that begins with ! needs quotes"),
    ("while scanning a quoted scalar", "a quote is not closed"),
    ("unknown escape character", "in single quotes a backslash is a backslash"),
)
"""What the library says -> what is mostly meant by it."""


def split_frontmatter(text: str, problems: Problems) -> tuple[str, str] | None:
    """What stands between the two lines of three dashes, and what comes after; else a problem."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        problems.add((), "must begin with a line ---, then fields such as `name: …`, then ---")
        return None
    for at, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:at]), "\n".join(lines[at + 1 :])
    problems.add((), "the fields that begin here never end; add a line --- below the last one")
    return None


def read_yaml(text: str, problems: Problems, first_line: int = 1) -> object:
    """The value that a text describes. Lines and problems go to `problems`."""
    if len(text) > YAML_CHARS:
        problems.add((), f"is longer than {YAML_CHARS // 1024} KiB of YAML; make it shorter")
        return None
    loader: PlainLoader | None = None
    try:
        loader = PlainLoader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as exc:
        line = first_line + text.count("\n", 0, exc.position)
        character = f"U+{exc.character:04X}" if isinstance(exc.character, int) else exc.character
        problems.add((), f"holds the character {character}, which YAML does not allow", line)
        return None
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line = first_line + (mark.line if mark else 0)
        problems.add((), _not_yaml(exc), line)
        return None
    except (ValueError, OverflowError):  # "\UFFFFFFFF": the library asks for that character
        line = first_line + (loader.get_mark().line if loader else 0)
        problems.add((), "is not YAML: there is no such character", line)
        return None
    finally:
        if loader is not None:
            loader.dispose()
    if node is None:
        return None
    return _Values(problems, first_line).of(node, ())


def read_json(text: str, problems: Problems) -> object:
    """The same for JSON, in which only the first line of all is known."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                problems.add((), f"'{shortened(key)}' is given twice; remove one of them")
        return dict(pairs)

    def refuse(constant: str) -> object:
        problems.add((), f"holds {constant}, which is not a JSON number")
        return None

    try:
        value: object = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except json.JSONDecodeError as exc:
        problems.add((), f"is not JSON: {exc.msg}", exc.lineno)
        return None
    except (RecursionError, ValueError):
        problems.add((), "is not JSON that we can read: nested too deeply, or a number too long")
        return None
    if _deeper(value, DEPTH):
        problems.add((), f"is nested more than {DEPTH} levels deep; make it flatter")
        return None
    return value


def _not_yaml(exc: yaml.MarkedYAMLError) -> str:
    said = "; ".join(part for part in (exc.context, exc.problem) if part)
    hint = next((hint for sign, hint in _HINTS if sign in said), None)
    return f"is not YAML that we read: {said}" + (f" ({hint})" if hint else "")


class _Values:
    """Nodes -> values, with the line of each."""

    def __init__(self, problems: Problems, first_line: int) -> None:
        self._problems = problems
        self._first = first_line

    def of(self, node: yaml.Node, loc: Loc) -> object:
        if loc not in self._problems.lines:
            self._problems.lines[loc] = self._line(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, (*loc, at)) for at, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return dict(self._pairs(node, loc))
        assert isinstance(node, yaml.ScalarNode)  # noqa: S101 there is no fourth kind
        return self._scalar(node, loc)

    def _pairs(self, node: yaml.MappingNode, loc: Loc) -> Iterator[tuple[str, object]]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = self._line(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._problems.add(loc, "a key must be text, found a list or a mapping", line)
                continue
            key = self._text(key_node, loc)
            if key in seen:
                message = f"is given twice, first on line {seen[key]}; remove one of them"
                self._problems.add((*loc, key), message, line)
                continue
            seen[key] = line
            self._problems.lines[(*loc, key)] = line
            yield key, self.of(value_node, (*loc, key))

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> object:
        text = self._text(node, loc)
        if node.style:  # quoted, or a block: text, whatever it looks like
            return text
        if text in _NULL:
            return None
        if text in _BOOLEAN:
            return _BOOLEAN[text]
        if not (_FLOAT.fullmatch(text) or _NO_NUMBER.fullmatch(text)):
            return text
        if len(text) <= NUMBER_CHARS:
            if _INTEGER.fullmatch(text):
                return int(text)
            number = math.nan if _NO_NUMBER.fullmatch(text) else float(text)
            if math.isfinite(number):
                return number
        self._problems.add(loc, f"'{shortened(text)}' is not a number that JSON could say")
        return 0

    def _text(self, node: yaml.ScalarNode, loc: Loc) -> str:
        text = str(node.value)
        if "\0" in text:
            self._problems.add(loc, "holds a NUL character; remove it", self._line(node))
        if any("\ud800" <= char <= "\udfff" for char in text):
            message = "holds half a character (a lone surrogate); remove it"
            self._problems.add(loc, message, self._line(node))
            return "".join("?" if "\ud800" <= char <= "\udfff" else char for char in text)
        return text

    def _line(self, node: yaml.Node) -> int:
        return self._first + int(node.start_mark.line)


def _deeper(value: object, levels: int) -> bool:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    if inner is None:
        return False
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)
