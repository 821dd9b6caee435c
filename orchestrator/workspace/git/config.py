"""The text of a repository's configuration -> one that is safe to hand to a stranger. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

KEPT = {
    "core": frozenset(("autocrlf", "eol", "safecrlf", "ignorecase", "filemode")),
    "extensions": frozenset(("objectformat", "refstorage")),
    "user": frozenset(("name", "email")),
    "remote": frozenset(("url", "pushurl", "fetch")),
    "branch": frozenset(("remote", "merge")),
}
"""All that is taken over: nothing here names a program, a file or a credential."""

ADDRESSES = ("url", "pushurl", "remote")
"""Keys whose value is an address, or may be one."""

OURS = """[core]
\trepositoryformatversion = %d
\tbare = false
\tlogallrefupdates = true
[user]
\tname = Agent
\temail = agent@localhost
[gc]
\tauto = 0
"""

_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(=?)\s*")
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}


class Setting(NamedTuple):
    section: str
    part: str
    """Of the section, such as the name of a remote."""
    key: str
    value: str


def read_config(text: str) -> tuple[Setting, ...]:
    """What a configuration says, includes not followed; what cannot be read is passed over."""
    settings: list[Setting] = []
    section = part = ""
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        rest = line.strip()
        if match := _SECTION.match(rest):
            section, _, dotted = match[1].lower().partition(".")
            part = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else dotted
            rest = rest[match.end() :].strip()
        match = _KEY.match(rest)
        if match and section:
            value = _value(rest[match.end() :]) if match[2] else "true"
            settings.append(Setting(section, part, match[1].lower(), value))
    return tuple(settings)


def safe_config(settings: tuple[Setting, ...]) -> str:
    """A configuration with the remotes and little else, credentials taken out of their URLs."""
    kept = [s for s in settings if s.key in KEPT.get(s.section, ())]
    lines = [OURS % any(s.section == "extensions" for s in kept)]
    for section, part, key, value in kept:
        clean = without_credentials(value) if key in ADDRESSES else value
        part = without_credentials(part)  # noqa: PLW2901 git takes an address for a remote's name
        head = f'[{section} "{_quoted(part)}"]' if part else f"[{section}]"
        lines.append(f'{head}\n\t{key} = "{_quoted(clean)}"\n')
    return "".join(lines)


def without_credentials(url: str) -> str:
    """A remote's address, without the credentials in it."""
    if "://" not in url:
        return url  # user@host:path, or a directory
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        user = parts.netloc.rpartition("@")[0].partition(":")[0]
    except ValueError:
        return ""
    if user and parts.scheme in ("ssh", "git+ssh"):
        host = f"{user}@{host}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def without_any_credentials(text: bytes) -> bytes:
    """A text of git's, such as a reflog, without the credentials in its addresses.

    Word by word: a regular expression for that can be made to take for ever.
    """
    return b"".join(
        _clean_word(word) if b"://" in word else word for word in re.split(rb"(\s+)", text)
    )


def _clean_word(word: bytes) -> bytes:
    first, *addresses = word.split(b"://")
    clean = [first]
    for address in addresses:
        host, slash, path = address.partition(b"/")
        clean.append((host.rpartition(b"@")[2] + slash + path).partition(b"?")[0])
    return b"://".join(clean)


def _value(text: str) -> str:
    out: list[str] = []
    quoted, at, kept = False, 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            out.append(_ESCAPES.get(text[at], text[at]))
            kept = len(out)
        elif char == '"':
            quoted = not quoted
            kept = len(out)
        elif char in "#;" and not quoted:
            break
        else:
            out.append(char)
            if quoted or not char.isspace():
                kept = len(out)
        at += 1
    return "".join(out[:kept])


def _quoted(text: str) -> str:
    text = text.replace("\0", "").replace("\r", "")
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
