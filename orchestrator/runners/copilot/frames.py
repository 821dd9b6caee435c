"""What copilot writes, in pieces of any size -> events, and how it is written to. Pure.

Each message is a header, `Content-Length: N` and an empty line, and N bytes of JSON. Any process in
the container can write there, too: what has no header is passed over until one comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from orchestrator.runners.lines import OUTPUT_LINE_BYTES, CliLine, event_of

HEADER_BYTES = 1024
"""What a header may take; more is junk."""

_FRAME_HEADER = re.compile(rb"Content-Length:[ \t]*(\d{1,10})\r?\n(?:[A-Za-z-]+:[^\n]*\n)*\r?\n")
_BEGINNING = b"Content-Length:"


class CliFrames:
    """Bytes in, messages out. Nothing that the CLI writes is an error."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._body = 0
        """What the message takes that is being read; 0 before its header is there."""
        self._skip = 0
        """What is left of one that is too long."""

    def feed(self, data: bytes) -> Iterator[CliLine]:
        """The messages that these bytes complete."""
        self._data += data
        while True:
            if self._skip:
                passed = min(self._skip, len(self._data))
                del self._data[:passed]
                self._skip -= passed
            if self._skip:
                return
            if not self._body:
                junk, found = self._header()
                if junk:
                    yield CliLine(None, junk)
                if not found:
                    return
                if self._body > OUTPUT_LINE_BYTES:
                    yield CliLine(None, f"a message of more than {OUTPUT_LINE_BYTES} bytes")
                    self._skip, self._body = self._body, 0
                continue
            if len(self._data) < self._body:
                return
            text = self._data[: self._body].decode(errors="replace")
            del self._data[: self._body]
            self._body = 0
            yield CliLine(event_of(text), text)

    def finish(self) -> Iterator[CliLine]:
        """What there is of a message that was never ended."""
        text = self._data.decode(errors="replace").strip()
        self._data.clear()
        self._body = self._skip = 0
        if text:
            yield CliLine(None, text)

    def _header(self) -> tuple[str, bool]:
        """What stood before the next header, and whether that is there."""
        found = _FRAME_HEADER.search(self._data)
        if found is not None:
            end, self._body = found.end(), int(found[1])
            junk = self._data[: found.start()].decode(errors="replace")
        else:
            # What may be the beginning of a header stays.
            at = self._data.rfind(_BEGINNING)
            begun = at >= 0 and len(self._data) - at <= HEADER_BYTES
            end = at if begun else max(0, len(self._data) - len(_BEGINNING) + 1)
            junk = self._data[:end].decode(errors="replace")
        del self._data[:end]
        return junk.strip(), found is not None


def frame(value: Mapping[str, object]) -> bytes:
    """An object as a message of its own."""
    body = json.dumps(value).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
