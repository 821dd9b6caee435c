"""Frames that almost make sense: what a broken or hostile other end might send. Seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from orchestrator.wire import warden as w

Frame = tuple[int, int, bytes]
"""Type, stream, payload."""


def garbage(rng: random.Random, sensible: Callable[[random.Random], list[Frame]]) -> bytes:
    """Bytes for one end of a wire, from pure noise to a conversation with one thing wrong."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(1, 4096))
    frames = sensible(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        rng.choice(_FRAME_FAULTS)(rng, frames)
    data = b"".join(w.encode(*frame) for frame in frames)
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        data = rng.choice(_BYTE_FAULTS)(rng, data)
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes, cut anywhere."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 1, 4, 30))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


# Frames


def _retype(rng: random.Random, frames: list[Frame]) -> None:
    at = rng.randrange(len(frames))
    kind = rng.choice(sorted(w.FROM_HOST | w.FROM_WARDEN | {0, 99, 255}))
    frames[at] = (kind, *frames[at][1:])


def _restream(rng: random.Random, frames: list[Frame]) -> None:
    at = rng.randrange(len(frames))
    stream = rng.choice((0, 1, 2, 3, 4, 5, 1001, 2**31, 2**32 - 1))
    frames[at] = (frames[at][0], stream, frames[at][2])


def _repayload(rng: random.Random, frames: list[Frame]) -> None:
    at = rng.randrange(len(frames))
    payload = frames[at][2]
    for _ in range(rng.choice((1, 1, 3))):
        payload = rng.choice(_BYTE_FAULTS)(rng, payload)
    frames[at] = (*frames[at][:2], payload[: w.MAX_PAYLOAD])


def _repeat(rng: random.Random, frames: list[Frame]) -> None:
    frames.insert(rng.randrange(len(frames) + 1), rng.choice(frames))


def _swap(rng: random.Random, frames: list[Frame]) -> None:
    a, b = rng.randrange(len(frames)), rng.randrange(len(frames))
    frames[a], frames[b] = frames[b], frames[a]


def _leave_out(rng: random.Random, frames: list[Frame]) -> None:
    if len(frames) > 1:
        del frames[rng.randrange(len(frames))]


_FRAME_FAULTS: Sequence[Callable[[random.Random, list[Frame]], None]] = (
    _retype,
    _restream,
    _repayload,
    _repayload,
    _repeat,
    _swap,
    _leave_out,
)


# Bytes


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 100))) + data[at:]


def _cut_out(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 4, 100)) :]


def _cut_short(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


_BYTE_FAULTS: Sequence[Callable[[random.Random, bytes], bytes]] = (
    _flip,
    _insert,
    _cut_out,
    _cut_short,
)
