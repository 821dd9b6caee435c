"""The one reader of YAML: text -> values, and the line of each. Pure.

Of YAML only what JSON could say as well: no anchors (a few lines of them unfold to gigabytes), no
tags, no key twice. Words mean what YAML 1.2 says: `no`, `on`, `08:30` and `2024-01-01` are text,
which 1.1, and so the library's own constructor, makes a boolean, a number and a date of.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

YAML_DEPTH = 64
"""How many lists and mappings may stand inside each other."""

YAML_NUMBER_CHARS = 40
"""The longest number."""

PLACE_CHARS = 60
"""How much of an offending text is repeated."""

Loc = tuple[str | int, ...]
"""Where in a document: ("mcp_servers", 0, "name")."""


class YamlProblem(NamedTuple):
    """One thing that is wrong with a text."""

    loc: Loc
    line: int
    message: str
    """A sentence that goes on after the place."""
    key_twice: bool = False
    """It is that a key is given twice; the message repeats nothing of the text."""


class YamlDocument(NamedTuple):
    """What a text says."""

    value: object
    """Of what was understood, if there are problems."""
    lines: dict[Loc, int]
    """Where each value stands."""
    problems: tuple[YamlProblem, ...]


class YamlRefused(ValueError):
    """A text that cannot be used. The message goes on after its path and a colon."""

    def __init__(self, problem: YamlProblem) -> None:
        place = (str(problem.line), written(problem.loc), problem.message)
        super().__init__(": ".join(part for part in place if part))
        self.problem = problem


def load_yaml(data: bytes) -> object:
    """The value that a file's content describes; YamlRefused with the first thing that is wrong."""
    return load_document(data).value


def load_document(data: bytes) -> YamlDocument:
    """The same, with the lines of its parts; there are no problems."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = 1 + data.count(b"\n", 0, exc.start)
        raise YamlRefused(YamlProblem((), line, "is not UTF-8 text; save it as UTF-8")) from exc
    document = read_yaml(text)
    if document.problems:
        raise YamlRefused(document.problems[0])
    return document


def read_yaml(text: str, first_line: int = 1, *, last_wins: bool = False) -> YamlDocument:
    """The value that a text describes, the lines of its parts, and all that is wrong with it.

    Of a key given twice the first value is taken, or with `last_wins` the last; it is a problem
    (`key_twice`) in either case.
    """
    loader: _PlainLoader | None = None
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position)
        character = f"U+{exc.character:04X}" if isinstance(exc.character, int) else exc.character
        said = f"holds the character {character}, which YAML does not allow"
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line, said = mark.line if mark else 0, _not_yaml(exc)
    except (ValueError, OverflowError):  # "\UFFFFFFFF": the library asks for that character
        line = loader.get_mark().line if loader else 0
        said = "is not valid YAML: there is no such character"
    else:
        values = _Values(first_line, last_wins=last_wins)
        value = None if node is None else values.of(node, ())
        return YamlDocument(value, values.lines, tuple(values.problems))
    finally:
        if loader is not None:
            loader.dispose()
    return YamlDocument(None, {}, (YamlProblem((), first_line + line, said),))


def written(loc: Loc) -> str:
    """("mcp_servers", 0, "name") -> "mcp_servers[0].name"."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{shortened(part)}"
    return text.removeprefix(".")


def shortened(text: str) -> str:
    """A text of the author's, on one line of a sentence."""
    line = "".join(char if char.isprintable() else "?" for char in text)
    return line if len(line) <= PLACE_CHARS else line[: PLACE_CHARS - 1] + "…"


class _PlainLoader(yaml.SafeLoader):
    """Composes no anchors, no tags, and nothing that is nested too deeply."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call] # no stub for it
        if refused := _refused(event, self.depth):
            raise yaml.composer.ComposerError(None, None, refused, event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _refused(event: Any, depth: int) -> str | None:
    if isinstance(event, yaml.AliasEvent):
        return "aliases are not understood here"
    if event.anchor is not None:
        return "anchors are not understood here"
    if event.tag is not None:
        return "tags are not understood here"
    return f"more than {YAML_DEPTH} levels deep; make it flatter" if depth > YAML_DEPTH else None


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


def _not_yaml(exc: yaml.MarkedYAMLError) -> str:
    said = "; ".join(part for part in (exc.context, exc.problem) if part)
    hint = next((hint for sign, hint in _HINTS if sign in said), None)
    return f"is not valid YAML: {said}" + (f" ({hint})" if hint else "")


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


class _Values:
    """Nodes -> values, with the line of each and what is wrong with them."""

    def __init__(self, first_line: int, *, last_wins: bool) -> None:
        self.lines: dict[Loc, int] = {}
        self.problems: list[YamlProblem] = []
        self._first = first_line
        self._last_wins = last_wins

    def of(self, node: yaml.Node, loc: Loc) -> object:
        self.lines.setdefault(loc, self._line(node))
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
                message = "a key must be text, found a list or a mapping"
                self.problems.append(YamlProblem(loc, line, message))
                continue
            key = self._text(key_node, loc)
            if key in seen:
                message = f"is given twice, first on line {seen[key]}; remove one of them"
                self.problems.append(YamlProblem((*loc, key), line, message, key_twice=True))
                if not self._last_wins:
                    continue
            seen[key] = line
            self.lines[(*loc, key)] = line
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
        if len(text) <= YAML_NUMBER_CHARS:
            if _INTEGER.fullmatch(text):
                return int(text)
            number = math.nan if _NO_NUMBER.fullmatch(text) else float(text)
            if math.isfinite(number):
                return number
        message = f"'{shortened(text)}' is not a number that JSON could say"
        self.problems.append(YamlProblem(loc, self.lines[loc], message))
        return 0

    def _text(self, node: yaml.ScalarNode, loc: Loc) -> str:
        # JSON writes some characters as two halves, "\ud83d\ude00", which the library leaves apart.
        halves = str(node.value).encode("utf-16", "surrogatepass")
        text = halves.decode("utf-16", "surrogatepass")
        if "\0" in text:
            message = "holds a NUL character; remove it"
            self.problems.append(YamlProblem(loc, self._line(node), message))
        if any("\ud800" <= char <= "\udfff" for char in text):
            message = "holds half a character (a lone surrogate); remove it"
            self.problems.append(YamlProblem(loc, self._line(node), message))
            return "".join("?" if "\ud800" <= char <= "\udfff" else char for char in text)
        return text

    def _line(self, node: yaml.Node) -> int:
        return self._first + int(node.start_mark.line)
