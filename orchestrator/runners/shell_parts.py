"""A command line for a shell -> the commands in it, or None where that cannot be told surely.

It reads what bash and dash read alike. What they read differently, what needs a whole parser, and
what decides at run time what runs, is not guessed at: the caller treats it as not understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_COMMAND_CHARS = 64 * 1024
"""Of a command line that is read; a longer one is not understood."""

MAX_NESTING = 16
"""Of substitutions in each other."""

_SEPARATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "\n")

_REDIRECTION = re.compile(r"(\d*)(&>>|&>|>>|>\||>&|<&|<>|<<<|<<-?|>|<)")

_INTRODUCTIONS = frozenset(("if", "then", "elif", "else", "while", "until", "do", "{", "!", "time"))
"""Words of the shell's own that a command follows."""

_CLOSINGS = frozenset(("fi", "done", "}"))
"""Words of the shell's own that no command follows, only what all commands have at their end."""

_UNREAD = frozenset(("case", "esac", "function", "select", "coproc", "[[", "]]", "in"))
"""Words of the shell's own that begin what is not read here."""

_PLAIN_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_BRACED_VARIABLE = re.compile(
    r"\$\{#?(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*?#$!-])"
    r"(?:(?::?[-=+?]|##?|%%?|//?)[A-Za-z0-9_./ :*-]*)?\}"
)
"""Not "${x@P}" nor "${x:y}": they run commands that stand in a variable."""

_QUIET_COMMENT = re.compile(r"#[^\n'\"`$\\(){}<>;&|]*(?=\n|$)")
_LOOP_NAME = re.compile(r"[a-z_][a-z0-9_]*|[A-Z]")
"""Not "PATH" and the like: they decide which programs the commands in the loop are."""


@dataclass(frozen=True)
class Word:
    raw: str
    """As it is written."""
    text: str
    """Without its quotes."""
    varies: bool
    """The shell puts something in its place, or in a part of it, when it runs."""


@dataclass(frozen=True)
class Redirection:
    target: Word
    writes: bool


@dataclass
class Part:
    """One command, with its arguments and the files that the shell opens for it."""

    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)

    @property
    def raw(self) -> str:
        """The command as it is written, but for blanks between its words."""
        return " ".join(word.raw for word in self.words)


class _Unsure(Exception):
    """What is written cannot be told apart surely."""


def parts_of(command: str) -> tuple[Part, ...] | None:
    """Every command that this line may run, those in substitutions too. None if not sure."""
    if len(command) > MAX_COMMAND_CHARS or not _is_plain(command):
        return None
    reader = _CommandReader(command)
    try:
        reader.commands(until="")
    except _Unsure:
        return None
    return tuple(reader.parts)


def _is_plain(text: str) -> bool:
    """Nothing that a shell, a terminal or a reader takes for something else than it is."""
    return all(char.isprintable() or char in "\n\t" for char in text)


class _CommandReader:
    def __init__(self, text: str, nesting: int = 0) -> None:
        self._text = text
        self._at = 0
        self._nesting = nesting
        self.parts: list[Part] = []

    def commands(self, until: str) -> None:
        """Read commands up to a closing ")", or to the end of the text."""
        part = Part()
        while True:
            self._blanks()
            char = self._next()
            if char in ("", ")"):
                if char != until:
                    raise _Unsure
                self._end(part)
                self._at += len(until)
                return
            if char == "#":
                self._comment()
            elif char == "(":
                self._group(part)
            elif found := _REDIRECTION.match(self._text, self._at):
                self._redirect(part, found)
            elif separator := next((s for s in _SEPARATORS if self._is_next(s)), ""):
                if separator == ";;":
                    raise _Unsure  # it ends a branch of a `case`
                self._at += len(separator)
                self._end(part)
                part = Part()
            else:
                part.words.append(self._word())
                self._introduced(part)

    def _next(self, chars: int = 1) -> str:
        return self._text[self._at : self._at + chars]

    def _is_next(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _blanks(self) -> None:
        while True:
            if self._next() in (" ", "\t"):
                self._at += 1
            elif self._is_next("\\\n"):
                self._at += 2
            else:
                return

    def _end(self, part: Part) -> None:
        if part.words or part.redirections:
            self.parts.append(part)

    def _introduced(self, part: Part) -> None:
        """Leave words of the shell's own out that only begin or end a list of commands."""
        if part.redirections:
            return
        word = part.words[0].raw
        if len(part.words) > 1:
            if word == "for":
                self._loop_words(part)
            return
        self._blanks()
        if word in _UNREAD or self._is_next("("):
            raise _Unsure  # the latter defines a function, or an array
        if word == "time" and self._is_next("-"):
            raise _Unsure
        if word in _INTRODUCTIONS or word in _CLOSINGS:
            part.words.clear()

    def _loop_words(self, part: Part) -> None:
        """`for NAME in WORDS`: no command, once it is whole."""
        words = part.words
        if len(words) > 1 and not _LOOP_NAME.fullmatch(words[1].raw):
            raise _Unsure
        if len(words) > 2 and words[2].raw != "in":
            raise _Unsure
        self._blanks()
        if len(words) > 2 and self._next() in (";", "\n"):
            words.clear()

    def _comment(self) -> None:
        # One with quotes in it would hide what follows from a reader that has no comments.
        found = _QUIET_COMMENT.match(self._text, self._at)
        if found is None:
            raise _Unsure
        self._at = found.end()

    def _group(self, part: Part) -> None:
        """( commands ), where a command can begin."""
        if part.words or part.redirections or self._is_next("(("):
            raise _Unsure
        self._at += 1
        self._nested(")")

    def _nested(self, until: str) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise _Unsure
        self.commands(until)
        self._nesting -= 1

    def _redirect(self, part: Part, found: re.Match[str]) -> None:
        sign = found[2]
        if sign.startswith("<<") and sign != "<<<":
            raise _Unsure  # a document follows
        self._at = found.end()
        self._blanks()
        if self._next() in ("", *"()<>;|&\n#"):
            raise _Unsure
        target = self._word()
        if sign in (">&", "<&") and re.fullmatch(r"\d+|-", target.raw):
            return
        if sign == "<<<":
            return
        if target.varies:
            raise _Unsure
        part.redirections.append(Redirection(target, writes=sign != "<"))

    def _word(self) -> Word:
        begin, text, varies = self._at, "", False
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\n;|&()<>":
                break
            if char == "'":
                end = self._text.find("'", self._at + 1)
                if end < 0:
                    raise _Unsure
                text += self._text[self._at + 1 : end]
                self._at = end + 1
            elif char == '"':
                said, varied = self._quoted()
                text, varies = text + said, varies or varied
            elif char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                if not following:
                    raise _Unsure
                text += following.strip("\n")
                self._at += 2
            elif char in "$`":
                text += self._expansion()
                varies = True
            else:
                varies = varies or char in "*?[{~"
                text += char
                self._at += 1
        return Word(self._text[begin : self._at], text, varies)

    def _quoted(self) -> tuple[str, bool]:
        text, varies = "", False
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return text, varies
            if char == "\\":
                following = self._text[self._at + 1 : self._at + 2]
                if not following:
                    break
                if following != "\n":
                    text += following if following in '$`"\\' else char + following
                self._at += 2
            elif char in "$`":
                text += self._expansion()
                varies = True
            else:
                text += char
                self._at += 1
        raise _Unsure

    def _expansion(self) -> str:
        """What begins with "$" or "`", as it is written; commands in it become parts."""
        begin, text = self._at, self._text
        if self._is_next("`"):
            self._backticks()
        elif self._is_next("$(("):
            raise _Unsure  # arithmetic, or a group in a substitution
        elif self._is_next("$("):
            self._at += 2
            self._nested(")")
        elif found := _BRACED_VARIABLE.match(text, begin) or _PLAIN_VARIABLE.match(text, begin):
            self._at = found.end()
        elif text[begin + 1 : begin + 2] in ("", " ", "\t", "\n", "/", ".", ",", ":", "%", "="):
            self._at += 1  # a "$" that is no more than that
        else:
            raise _Unsure  # $'…' and $"…" are read differently by bash and dash
        return self._text[begin : self._at]

    def _backticks(self) -> None:
        end = self._text.find("`", self._at + 1)
        inside = self._text[self._at + 1 : end]
        if end < 0 or "\\" in inside or self._nesting >= MAX_NESTING:
            raise _Unsure
        reader = _CommandReader(inside, self._nesting + 1)
        reader.commands(until="")
        self.parts += reader.parts
        self._at = end + 1
