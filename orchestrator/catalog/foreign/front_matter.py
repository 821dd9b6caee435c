"""The fields above a prompt, as programs that forgive more than we do read them. Pure.

Claude Code reads YAML; if that fails, it puts quotes around the values of lines that look wrong
and reads again. Some files fail even then: their description goes on in lines that are not
indented. All up to the next known field belongs to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from orchestrator.catalog.document import YAML_CHARS
from orchestrator.plain_yaml import Loc, read_yaml

FIELDS_FENCE = "---"

_FIELD = re.compile(r"([A-Za-z_-]+):[ \t]+(\S.*)")
"""A line that Claude Code's repair looks at."""

_SPECIAL = re.compile(r"[{}\[\]*&#!|>%@`]|: ")
"""What in a value makes it put quotes around it."""

_BLOCK = re.compile(r"[|>][+-]?[0-9]?[+-]?")
"""What a text of several lines begins with; in quotes it would be lost."""

_FIELD_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*):(?:[ \t]|$)")

LONG_TEXT = "description"
"""The field whose further lines some authors do not indent."""

DIALOGUE_WORDS = frozenset(("user", "assistant", "human", "context", "commentary"))
"""What lines of an example begin with."""

AS_CLAUDE_CODE = "is not YAML as it stands; read as Claude Code reads it, as one text in quotes"
UP_TO_THE_NEXT = (
    "is not YAML, nor does Claude Code load it; read as one text, up to the next field; put it in "
    "quotes, or indent its further lines below `description: |`"
)
DIALOGUE = (
    "goes on in lines that look like fields; read as one text, up to the next field, where Claude "
    "Code cuts it off; put it in quotes, or indent its further lines below `description: |`"
)
TWICE = "is given twice; the last one counts, as in Claude Code; remove one of them"


class Mended(NamedTuple):
    """What had to be done to read a file."""

    loc: Loc
    line: int
    message: str


class FrontMatter(NamedTuple):
    """What a file says."""

    fields: dict[str, object]
    lines: dict[Loc, int]
    body: str
    mended: tuple[Mended, ...] = ()


class UnreadFields(NamedTuple):
    """Why a file has no fields."""

    line: int
    message: str
    loc: Loc = ()


def read_front_matter(text: str, known: Callable[[str], bool]) -> FrontMatter | UnreadFields | None:
    """The fields and the text below them; None for a file that does not begin with fields.

    `known` tells whether a word is the name of a field: where a description ends whose further
    lines are not indented.
    """
    lines = text.split("\n")
    first = next((at for at, line in enumerate(lines) if line.strip()), 0)
    if lines[first].rstrip() != FIELDS_FENCE:
        return None
    if first:
        return UnreadFields(1, "begins with an empty line; remove it, so that --- is the first")
    fences = (at for at, line in enumerate(lines) if at and line.rstrip() == FIELDS_FENCE)
    last = next(fences, None)
    if last is None:
        return UnreadFields(
            1, "the fields that begin here never end; add a line --- below the last one"
        )
    found = read_lenient("\n".join(lines[1:last]), 2, known)
    return (
        found
        if isinstance(found, UnreadFields)
        else found._replace(body="\n".join(lines[last + 1 :]))
    )


def read_lenient(
    head: str, first_line: int, known: Callable[[str], bool]
) -> FrontMatter | UnreadFields:
    """What YAML says, or what it was meant to say."""
    if len(head) > YAML_CHARS:
        message = f"is longer than {YAML_CHARS // 1024} KiB of YAML; make it shorter"
        return UnreadFields(first_line, message)
    lines = _without_tabs(head).split("\n")
    as_it_stands = _read(head, first_line)
    read = as_it_stands
    if isinstance(read, UnreadFields):
        read = _repaired(lines, first_line)
    if isinstance(read, FrontMatter) and not _has_dialogue(read):
        return read
    joined, at = _with_one_description(lines, known)
    found = _repaired(joined, first_line)
    if at is not None and isinstance(found, FrontMatter):
        if isinstance(read, UnreadFields):
            rescued = Mended((LONG_TEXT,), first_line + at, UP_TO_THE_NEXT)
            return found._replace(mended=(rescued, *found.mended))
        if not _has_dialogue(found):
            rescued = Mended((LONG_TEXT,), first_line + at, DIALOGUE)
            return found._replace(mended=(rescued, *found.mended))
    return read if isinstance(read, FrontMatter) else as_it_stands


def _has_dialogue(found: FrontMatter) -> bool:
    """Whether lines of an example were taken for fields."""
    return not DIALOGUE_WORDS.isdisjoint(map(plain_key, found.fields))


def _repaired(lines: list[str], first_line: int) -> FrontMatter | UnreadFields:
    quoted, touched = _with_quotes(lines)
    found = _read("\n".join(quoted), first_line)
    if isinstance(found, FrontMatter):
        return found._replace(mended=(*_told(touched, first_line), *found.mended))
    return found


def _read(head: str, first_line: int) -> FrontMatter | UnreadFields:
    document = read_yaml(head, first_line, last_wins=True)
    for problem in document.problems:
        if not problem.key_twice:
            return UnreadFields(problem.line, problem.message, problem.loc)
    value = {} if document.value is None else document.value
    if not isinstance(value, dict):
        return UnreadFields(first_line, "must have fields such as `name: reviewer` here")
    twice = tuple(Mended(each.loc, each.line, TWICE) for each in document.problems)
    return FrontMatter(value, document.lines, "", twice)


def _without_tabs(head: str) -> str:
    """Tabs between a field and its value, and those that indent, as spaces."""
    lines = (
        re.sub(r"^[ \t]+", lambda found: found[0].replace("\t", "  "), line)
        for line in head.split("\n")
    )
    return "\n".join(re.sub(r"^([A-Za-z_-]+):\t[ \t]*", r"\1: ", line) for line in lines)


def _told(touched: list[tuple[int, str, bool]], first_line: int) -> list[Mended]:
    """A word for each line that had to be mended; it also touches others, which stay the same."""
    wrong = [each for each in touched if each[2]] or touched
    return [Mended((key,), first_line + at, AS_CLAUDE_CODE) for at, key, _ in wrong]


def _with_quotes(lines: list[str]) -> tuple[list[str], list[tuple[int, str, bool]]]:
    """Claude Code's repair; which lines it touches, and whether each was wrong by itself.

    Values that are whole lists or mappings stay, and so do the signs that begin a text of several
    lines.
    """
    mended: list[str] = []
    touched: list[tuple[int, str, bool]] = []
    for at, line in enumerate(lines):
        match = _FIELD.fullmatch(line.rstrip())
        if match is None or not _SPECIAL.search(match[2]) or _is_whole(match[2]):
            mended.append(line)
            continue
        escaped = match[2].replace("\\", "\\\\").replace('"', '\\"')
        mended.append(f'{match[1]}: "{escaped}"')
        touched.append((at, match[1], bool(read_yaml(line).problems)))
    return mended, touched


def _is_whole(value: str) -> bool:
    return bool(_BLOCK.fullmatch(value)) or (value[0] in "\"'[{" and not read_yaml(value).problems)


def _with_one_description(
    lines: list[str], known: Callable[[str], bool]
) -> tuple[list[str], int | None]:
    """The lines, with all that belongs to the description on its own line, and which that is. As
    many lines as before: the others keep their numbers.
    """
    at = next((n for n, line in enumerate(lines) if line.startswith(f"{LONG_TEXT}:")), None)
    if at is None:
        return lines, None
    end = at + 1
    while end < len(lines) and not _begins(lines[end], known):
        end += 1
    text = [lines[at].removeprefix(f"{LONG_TEXT}:").strip(), *map(str.strip, lines[at + 1 : end])]
    if _BLOCK.fullmatch(text[0]):
        text[0] = ""
    whole = _unquoted("\n".join(text).strip())
    return [
        *lines[:at],
        f"{LONG_TEXT}: {json.dumps(whole)}",
        *[""] * (end - at - 1),
        *lines[end:],
    ], at


def _begins(line: str, known: Callable[[str], bool]) -> bool:
    key = _FIELD_KEY.match(line)  # "Model: …" in a text is more likely a sentence
    return key is not None and key[1][0].islower() and known(key[1])


def _unquoted(text: str) -> str:
    """Without the quotes around it, or the one that was never closed."""
    for quote in "\"'":
        if text.startswith(quote):
            return text[1:].removesuffix(quote)
    return text


def names_of(words: Collection[str]) -> Callable[[str], bool]:
    """Whether a word is one of these, however it is spelled: `max_turns` is `maxTurns`."""
    plain = frozenset(map(plain_key, words))
    return lambda word: plain_key(word) in plain


def plain_key(word: str) -> str:
    """`permission-mode`, `permission_mode` and `permissionMode` are one field."""
    return word.replace("-", "").replace("_", "").lower()
