"""HTTP headers: how they are written down here, and which of them go on to the next server."""

from __future__ import annotations

from collections.abc import Iterable

Headers = tuple[tuple[str, str], ...]
"""Names in lower case."""

HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("host", "content-length", "http2-settings"),
    )
)
"""Headers between two neighbours, which a proxy does not pass on; it sets those it needs anew."""

DENIED = "x-orchestrator-denied"
"""On refusals of ours, so that the agent does not take them for the host's."""

CLIENT_GONE = 499
"""The status of a request whose client did not wait for the answer."""


def first_value(headers: Headers, name: str) -> str:
    """The value of the first header of that name, or an empty text."""
    return next((value for key, value in headers if key == name), "")


def end_to_end(
    headers: Headers, dropped: frozenset[str] = frozenset(), prefixes: tuple[str, ...] = ()
) -> Headers:
    """The headers for the next server: none about this hop or about proxies, none of `dropped`."""
    named = [value for key, value in headers if key == "connection"]
    hops = {name.strip().lower() for value in named for name in value.split(",")}
    hops |= HOP_BY_HOP | dropped
    beginnings = ("proxy-", *prefixes)
    return tuple(
        (key, value) for key, value in headers if key not in hops and not key.startswith(beginnings)
    )


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def as_bytes(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
