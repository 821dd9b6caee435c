"""Streams that are over are forgotten, however they ended."""

from __future__ import annotations

import pytest

from orchestrator.wire import warden as w
from orchestrator.wire.streams import Mux, Stream


def opened() -> tuple[Mux, Stream, list[bytes]]:
    sent: list[bytes] = []
    mux = Mux(sent.append, lambda *_: None, w.FROM_WARDEN)
    return mux, mux.open(), sent


@pytest.mark.parametrize(
    "end",
    [
        lambda mux, stream: (stream.end(), mux.feed(w.encode(w.END, 1))),
        lambda mux, stream: (mux.feed(w.encode(w.END, 1)), stream.end()),
        lambda mux, stream: (mux.feed(w.encode(w.END, 1)), stream.stop_writing()),
        lambda _mux, stream: stream.reset(),
        lambda mux, _stream: mux.feed(w.encode(w.RESET, 1)),
    ],
    ids=["ours first", "theirs first", "no reader", "our reset", "their reset"],
)
def test_a_stream_that_is_over_is_forgotten(end: object) -> None:
    mux, stream, _ = opened()
    assert list(mux._streams) == [1]
    end(mux, stream)  # type: ignore[operator]
    assert stream.over
    assert mux._streams == {}


def test_half_a_stream_is_not_forgotten() -> None:
    mux, stream, sent = opened()
    stream.end()
    stream.end()
    assert sent == [w.encode(w.END, 1)]
    assert (stream.over, list(mux._streams)) == (False, [1])


def test_what_is_over_is_not_reset_once_more() -> None:
    mux, stream, sent = opened()
    stream.end()
    mux.feed(w.encode(w.END, 1))
    stream.reset()
    assert sent == [w.encode(w.END, 1)]


def test_streams_are_numbered_by_who_opens_them() -> None:
    host = Mux(lambda _: None, lambda *_: None, w.FROM_WARDEN)
    inside = Mux(lambda _: None, lambda *_: None, w.FROM_HOST)
    assert [host.open().number for _ in range(3)] == [1, 3, 5]
    assert [inside.open().number for _ in range(3)] == [2, 4, 6]
    assert [host.accept(number).number for number in (2, 6)] == [2, 6]
    for number in (6, 4, 7, 0):
        with pytest.raises(w.Malformed, match=f"stream {number} cannot be opened now"):
            host.accept(number)


@pytest.mark.parametrize(
    ("number", "late"), [(1, True), (5, True), (7, False), (2, True), (4, False)]
)
def test_only_a_stream_that_was_opened_can_be_late(number: int, late: bool) -> None:
    mux = Mux(lambda _: None, lambda *_: None, w.FROM_WARDEN)
    for stream in (mux.open(), mux.open(), mux.open(), mux.accept(2)):
        stream.reset()
    frame = w.encode(w.DATA, number, b"late")
    if late:
        mux.feed(frame)
    else:
        with pytest.raises(w.Malformed, match="was never opened"):
            mux.feed(frame)
