"""The frame codec: any cut of the bytes gives the same frames, any garbage a clean error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.wire import warden as w

frames = st.tuples(
    st.sampled_from(sorted(w.FROM_HOST)),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=300),
)


@given(st.lists(frames, max_size=20), st.lists(st.integers(1, 50), min_size=1, max_size=50))
def test_frames_arrive_whole_however_the_bytes_are_cut(
    sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(w.encode(*frame) for frame in sent)
    decoder, at, turn = w.Decoder(w.FROM_HOST), 0, 0
    received: list[tuple[int, int, bytes]] = []
    while at < len(data):
        size = cuts[turn % len(cuts)]
        received += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1

    assert received == sent


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_garbage_ends_in_malformed_or_waits_for_more(chunks: list[bytes]) -> None:
    decoder = w.Decoder(w.FROM_WARDEN)
    try:
        for chunk in chunks:
            for kind, _, payload in decoder.feed(chunk):
                assert kind in w.FROM_WARDEN
                assert len(payload) <= w.MAX_PAYLOAD
    except w.Malformed:
        pass


@given(st.lists(frames, max_size=5))
def test_what_came_before_a_malformed_frame_is_delivered(
    sent: list[tuple[int, int, bytes]],
) -> None:
    data = b"".join(w.encode(*frame) for frame in sent) + w.HEADER.pack(255, 0, 0)
    decoded = w.Decoder(w.FROM_HOST).feed(data)

    assert [next(decoded) for _ in sent] == sent
    with pytest.raises(w.Malformed, match="unknown frame type 255"):
        next(decoded)


@pytest.mark.parametrize(
    ("kind", "length"),
    [(w.DATA, w.MAX_PAYLOAD + 1), (w.SPAWN, w.MAX_SPAWN + 1), (w.PING, 2**32 - 1)],
)
def test_an_oversized_frame_is_refused_at_its_header(kind: int, length: int) -> None:
    with pytest.raises(w.Malformed, match=f"frame of {length} bytes"):
        list(w.Decoder(w.FROM_HOST).feed(w.HEADER.pack(kind, 1, length)))


def test_each_end_refuses_what_only_the_other_may_send() -> None:
    with pytest.raises(w.Malformed):
        list(w.Decoder(w.FROM_WARDEN).feed(w.encode(w.SPAWN, 1)))
    with pytest.raises(w.Malformed):
        list(w.Decoder(w.FROM_HOST).feed(w.encode(w.HELLO, 0)))


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_fields_come_back_as_they_were_packed(fields: list[bytes]) -> None:
    assert w.unpack(w.pack(*fields)) == fields


@given(st.binary(max_size=200))
def test_garbage_instead_of_fields_is_malformed_or_packs_to_itself(data: bytes) -> None:
    try:
        fields = w.unpack(data)
    except w.Malformed:
        return
    assert w.pack(*fields) == data
