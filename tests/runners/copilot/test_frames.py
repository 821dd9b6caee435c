"""Messages with a header, out of bytes of a stranger."""

from __future__ import annotations

import pytest

from orchestrator.runners.copilot.frames import CliFrames, frame
from orchestrator.runners.lines import OUTPUT_LINE_BYTES, CliLine

ONE = {"method": "one", "text": "ä\r\n\r\nContent-Length: 5"}
TWO = {"method": "two"}


def events(frames: CliFrames, *pieces: bytes) -> list[object]:
    heard: list[CliLine] = []
    for piece in pieces:
        heard += frames.feed(piece)
    heard += frames.finish()
    return [line.event if line.event is not None else line.text for line in heard]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_come_in_pieces_of_any_size(size: int) -> None:
    data = frame(ONE) + frame(TWO)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert events(CliFrames(), *pieces) == [ONE, TWO]


def test_what_has_no_header_is_passed_over_until_one_comes() -> None:
    junk = b"warning: something\n" * 3
    said = events(CliFrames(), junk + frame(ONE), b"\n more \n", frame(TWO), b"the end")
    assert [text for text in said if isinstance(text, dict)] == [ONE, TWO]
    assert said[-1] == "the end"


def test_other_headers_and_empty_messages_do_no_harm() -> None:
    body = b'{"method": "two"}'
    other = b"Content-Length: %d\r\nContent-Type: x\r\n\r\n" % len(body)
    empty = b"Content-Length: 0\r\n\r\n"
    assert events(CliFrames(), empty, other, body, empty) == [TWO]


def test_a_message_that_is_no_object_is_told_as_what_it_is() -> None:
    frames = CliFrames()
    assert events(frames, b"Content-Length: 3\r\n\r\n[1]", frame(TWO)) == ["[1]", TWO]
    assert events(frames, b"Content-Length: 2\r\n\r\n\xff\xfe") == ["\ufffd\ufffd"]


def test_of_a_message_that_is_too_long_nothing_is_kept() -> None:
    frames, length = CliFrames(), OUTPUT_LINE_BYTES + 1
    said = list(frames.feed(b"Content-Length: %d\r\n\r\n" % length))
    for _ in range(length // 4096):
        said += frames.feed(b"x" * 4096)
        assert len(frames._data) <= 4096
    said += frames.feed(b"x" * (length % 4096) + frame(TWO))
    assert [line.event for line in said] == [None, TWO]


def test_a_flood_without_a_header_does_not_pile_up() -> None:
    frames = CliFrames()
    for _ in range(100):
        list(frames.feed(b"Content-Length: nonsense " * 1000))
        assert len(frames._data) <= 2048
    assert [line.event for line in frames.feed(b"\n" + frame(ONE)) if line.event] == [ONE]
