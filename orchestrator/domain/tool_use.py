"""ServerUse: which tools of a server outside its container an agent may use, and how."""

from __future__ import annotations

import re
import unicodedata
from itertools import accumulate, repeat
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, Field, JsonValue

from orchestrator.domain import Frozen

RESOURCE, PROMPT = "resource:", "prompt:"
"""How a pattern begins that means resources by their URI, or prompts by their name, not tools."""

Verdict = Literal["auto", "ask", "deny"]


def _check_pattern(text: str) -> str:
    body = text.removeprefix(RESOURCE)
    if body == text:
        body = text.removeprefix(PROMPT)
        if not re.fullmatch(r"[A-Za-z0-9_.*?\[\]!-]{1,128}", body):
            raise ValueError(
                'must be the name of a tool, or a pattern such as "get_*"; "resource:" and '
                '"prompt:" before it mean those'
            )
    elif not body.isprintable() or not 0 < len(body) <= 1024:
        raise ValueError('must be a URI or a pattern of one, such as "resource:notes://*"')
    return text


def check_server_name(text: str) -> str:
    """The same text; ValueError, in words that go on after it, if no server can be called so."""
    if len(text) > 32 or not re.fullmatch(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*", text):
        raise ValueError(
            'must be letters and digits, with single "-" and "_" between them, 32 at most: its '
            "tools are called mcp__NAME__TOOL"
        )
    return text


ServerName = Annotated[str, AfterValidator(check_server_name)]
"""What a server of the operator's is called."""

ToolPattern = Annotated[str, AfterValidator(_check_pattern)]
"""A tool's name, in which * ? and [...] stand for others; or resources, or prompts."""


class ServerUse(Frozen):
    """What an agent may do with one server. Nothing that is not allowed here."""

    use: ServerName
    """The server, as its folder in agents/servers is called."""
    allow: Annotated[tuple[ToolPattern, ...], Field(min_length=1)]
    """Tools that it may call; `["*"]` has to be said."""
    deny: tuple[ToolPattern, ...] = ()
    """Tools that it may not, whatever is allowed."""
    approve: dict[ToolPattern, Verdict] = {}
    """Which calls wait for approval: auto, ask or deny; "*" is what no other pattern here names."""
    arguments: dict[ToolPattern, dict[str, JsonValue]] = {}
    """Values that are not the model's to choose; it does not see these arguments."""
    max_calls: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """In one run."""


# URIs of resources. A rule names one, and a server may take another spelling of it for the same:
# NOTES://Secret/1, notes://%73ecret/1, notes://x/../secret/1. So what is not written plainly is not
# read, and what holds back counts for more spellings than one.

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")
_ESCAPE = re.compile(r"%(?P<code>[0-9A-F]{2})?")
_NEEDS_NO_ESCAPE = re.compile(r"[A-Za-z0-9._~-]")
_TWICE = re.compile(r"%25[0-9A-Fa-f]{2}")

_ALIKE = (
    (re.compile(r"^([a-z0-9+.-]+:)/*"), r"\1//"),
    (re.compile(r"^([a-z0-9+.-]+://[^/?]*?):\d*(?=[/?]|$)"), r"\1"),
    (re.compile(r"/+$"), ""),
)
"""Parts of a URI that may make no difference."""

MOST_ESCAPES = 5
"""How often a text is unescaped that was escaped again and again."""


def uri_problem(uri: str) -> str:
    """What is not plain about a URI, in words that go on after it; "" if nothing is."""
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return "does not begin with a scheme in small letters, such as notes:"
    if not uri.isprintable() or any(char in uri for char in ' \\#"<>^`'):
        return "has a character that no URI of a resource has"
    if unicodedata.normalize("NFC", uri) != uri:
        return "has a letter that is put together of others"
    for escape in _ESCAPE.finditer(uri):
        code = escape["code"]
        if code is None or _NEEDS_NO_ESCAPE.fullmatch(chr(int(code, 16))):
            return f"has {uri[escape.start() :][:3]}, which is not how that is written"
        if code in ("2F", "5C") or int(code, 16) < 0x20:
            return f"has %{code}, which servers understand differently"
    if _TWICE.search(uri):
        return "is escaped twice"
    rest = uri[scheme.end() :]
    path = rest.partition("?")[0].removeprefix("/")
    if rest.startswith("//"):
        authority, _, path = path.removeprefix("/").partition("/")
        if authority != authority.lower() or "@" in authority or authority in (".", ".."):
            return "has a host in capitals, a user before it, or no host where one is"
    *inner, last = path.split("/")
    if any(part in ("", ".", "..") for part in inner) or last in (".", ".."):
        return "has . or .. or nothing between two slashes"
    return ""


def uri_spellings(uri: str) -> frozenset[str]:
    """What a server may take it for, in small letters: unescaped, without a port, with a host or
    without, without what comes after a question mark, without a slash at the end.
    """
    decoded = accumulate(repeat(uri, MOST_ESCAPES), lambda text, _: unquote(text))
    forms = {uri.casefold()}
    forms |= {unicodedata.normalize("NFKC", form).casefold() for form in decoded}
    forms |= {form.partition("?")[0] for form in forms}
    for pattern, written in _ALIKE:
        forms |= {pattern.sub(written, form) for form in forms}
    return frozenset(forms)
