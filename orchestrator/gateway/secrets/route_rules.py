"""A request -> the secret that agent.md has for it, or why there is none. Pure.

A path is compared as the other side will read it, segment by segment, and one that two readers
could read in two ways goes nowhere.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from orchestrator.domain.agent import Secret
from orchestrator.domain.container import ROUTES_URL

HTTPS_PORT = 443

SHOWN_ROUTE_CHARS = 300
"""Of a path or a host, in an answer."""

NOT_A_FAULT = "That is a rule, not a fault: trying again is of no use."


@dataclass(frozen=True)
class Route:
    """Where a request goes, and with which secret."""

    secret: Secret
    host: str
    """As agent.md writes it."""
    target: str
    """Path and query, as they came."""


class Refused(Exception):
    """A request that goes nowhere. The text is for the agent."""


def find_route(secrets: Sequence[Secret], method: str, target: str) -> Route:
    """The first secret that is for this request; Refused if there is none."""
    if method == "CONNECT" or not re.fullmatch(r"/[\x21-\x22\x24-\x7e]*", target):
        raise Refused(
            f"only {ROUTES_URL}/HOST/PATH is answered here, and this is no proxy. {NOT_A_FAULT}"
        )
    path, question, query = target.partition("?")
    host, slash, rest = path[1:].partition("/")
    fitting = [each for each in secrets if host.lower() in map(str.lower, each.hosts)]
    if not fitting:
        known = ", ".join(dict.fromkeys(name for each in secrets for name in each.hosts))
        raise Refused(
            f"no secret in agent.md is for the host {host[:SHOWN_ROUTE_CHARS]!r}; there are some "
            f"for {known or 'none'}. {NOT_A_FAULT}"
        )
    segments = _segments(f"/{rest}")
    for secret in fitting:
        if method in secret.methods and any(_matches(each, segments) for each in secret.paths):
            name = next(each for each in secret.hosts if each.lower() == host.lower())
            return Route(secret, name, f"{slash or '/'}{rest}{question}{query}")
    may = "; ".join(
        f"{', '.join(each.methods)} of {', '.join(each.paths)} with {each.name}" for each in fitting
    )
    raise Refused(
        f"agent.md does not allow {method[:20]} of {f'/{rest}'[:SHOWN_ROUTE_CHARS]} on {host}, "
        f"only {may}; its author can add to methods and paths of the secret. {NOT_A_FAULT}"
    )


def _segments(path: str) -> tuple[str, ...]:
    """A path's segments, decoded once; Refused if a server could read them otherwise."""
    if path == "/":
        return ()
    raw = path[1:].removesuffix("/").split("/")
    return tuple(_segment(each) for each in raw)


def _segment(raw: str) -> str:
    if not raw:
        raise Refused(f"a path with an empty segment (//) can be read in two ways. {NOT_A_FAULT}")
    if not re.fullmatch(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+", raw):
        raise Refused(f"the path holds a character that has to be percent-encoded. {NOT_A_FAULT}")
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Refused(f"the path is not UTF-8. {NOT_A_FAULT}") from None
    # As the most lenient server might read it: "..;x" and "．．" are dots for some.
    lenient = unicodedata.normalize("NFKC", text)
    if lenient.partition(";")[0].strip() in ("", ".", ".."):
        raise Refused(f"a path with a segment . or .. can be read in two ways. {NOT_A_FAULT}")
    if any(c in "/\\%?#" or unicodedata.category(c) in ("Cc", "Cf") for c in text + lenient):
        raise Refused(
            "the path holds an encoded slash, backslash, percent, question or number sign, or a "
            f"character that is not seen, which can be read in two ways. {NOT_A_FAULT}"
        )
    return text


def _matches(pattern: str, segments: tuple[str, ...]) -> bool:
    wanted = () if pattern == "/" else tuple(pattern[1:].removesuffix("/").split("/"))
    if wanted and wanted[-1] == "**":  # what is below, and not the thing itself
        wanted = wanted[:-1]
        if len(segments) <= len(wanted):
            return False
        segments = segments[: len(wanted)]
    pairs = zip(wanted, segments, strict=False)
    return len(wanted) == len(segments) and all(want in ("*", got) for want, got in pairs)


def address_of(host: str) -> tuple[str, int]:
    """A host as agent.md writes it -> its name or address, and its port."""
    found = re.fullmatch(r"\[([^\[\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?", host.lower())
    if found is None:
        return host.lower(), HTTPS_PORT  # an IPv6 address without brackets
    return found[1] or found[3], int(found[2] or found[4] or HTTPS_PORT)
