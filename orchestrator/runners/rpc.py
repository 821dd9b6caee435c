"""JSON-RPC with a CLI: whose answer is whose, what it is answered by itself, all of it in bounds.

What codex, copilot and the CLIs of the Agent Client Protocol have in common. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from orchestrator.runners.contract import MAX_UNANSWERED
from orchestrator.runners.json_fields import dict_of, id_of, int_of, text_of
from orchestrator.runners.lines import CliLine, noise
from orchestrator.runners.signs import Sign

MAX_REMEMBERED = 256
"""Calls and messages of a turn that are remembered."""

LARGEST_RPC_ID = 2**53
"""Of the ids that a CLI numbers its requests by: what all programs read alike."""

_NOT_SUPPORTED = {"code": -32601, "message": "not supported"}

RpcId = int | str

About = TypeVar("About")
Remembered = TypeVar("Remembered")


class CliReader(Protocol):
    """Bytes in, messages out."""

    def feed(self, data: bytes) -> Iterator[CliLine]: ...

    def finish(self) -> Iterator[CliLine]: ...


class Answered(NamedTuple, Generic[About]):
    """A request of ours, and what came of it."""

    method: str
    about: About | None
    """What it was sent with, for whoever made it."""
    answer: Mapping[str, object]
    """The message as it came."""

    @property
    def result(self) -> dict[str, object]:
        return dict_of(self.answer, "result")

    @property
    def wrong(self) -> str:
        """What the CLI says of an error; "" if there is none."""
        said = text_of(dict_of(self.answer, "error"), "message")
        return said or ("it did not say why" if "error" in self.answer else "")


class RpcDialogue(Generic[About]):
    """The half of a Dialogue (contract.py) that every CLI has which speaks JSON-RPC.

    `head` is what each message has besides.
    """

    def __init__(
        self,
        reader: CliReader,
        written: Callable[[Mapping[str, object]], bytes],
        head: Mapping[str, object],
    ) -> None:
        self._reader = reader
        self._written = written
        self._head = head
        self._numbers = itertools.count(1)
        self._requests: dict[int, tuple[str, About | None]] = {}
        """Ours that have no answer yet."""
        self._replies: list[bytes] = []

    # What is written

    def rehearse(self) -> bytes:
        return b""

    def replies(self) -> bytes:
        said, self._replies = b"".join(self._replies), []
        return said

    def _request(
        self, method: str, params: Mapping[str, object], about: About | None = None
    ) -> bytes:
        number = next(self._numbers)
        self._requests[number] = method, about
        return self._written({**self._head, "id": number, "method": method, "params": params})

    def _notice(self, method: str, params: Mapping[str, object] | None = None) -> bytes:
        """Something that has no answer."""
        said = {} if params is None else {"params": params}
        return self._written({**self._head, "method": method, **said})

    def _answer_to(self, rpc_id: RpcId, result: Mapping[str, object]) -> bytes:
        return self._written({**self._head, "id": rpc_id, "result": result})

    def _then(self, *said: bytes) -> None:
        """Write this after what was heard: it follows from an answer to a request of ours."""
        self._replies += said

    def _refuse(self, rpc_id: RpcId, result: Mapping[str, object] | None = None) -> None:
        """Refuse a request of the CLI's; in silence, if there are too many at once."""
        if len(self._replies) < MAX_UNANSWERED:
            error = {**self._head, "id": rpc_id, "error": _NOT_SUPPORTED}
            self._then(self._written(error) if result is None else self._answer_to(rpc_id, result))

    # What is heard

    def hear(self, data: bytes) -> list[Sign]:
        return list(self._understood(self._reader.feed(data)))

    def hear_end(self) -> list[Sign]:
        return list(self._understood(self._reader.finish()))

    def _understood(self, heard: Iterable[CliLine]) -> Iterator[Sign]:
        for event, text in heard:
            if event is None:
                yield noise(text)
            elif "method" not in event:
                number = int_of(event, "id") or 0
                if (sent := self._requests.pop(number, None)) is not None:
                    yield from self._on_answer(Answered(*sent, event))
            elif "id" not in event:
                yield from self._on_news(text_of(event, "method"), dict_of(event, "params"))
            elif (rpc_id := rpc_id_of(event)) is not None:
                params = dict_of(event, "params")
                yield from self._on_question(rpc_id, text_of(event, "method"), params)

    def _on_answer(self, sent: Answered[About]) -> Iterator[Sign]:
        """A request of ours was answered."""
        raise NotImplementedError

    def _on_question(
        self,
        rpc_id: RpcId,
        method: str,  # noqa: ARG002 for those that know some
        params: Mapping[str, object],  # noqa: ARG002
    ) -> Iterator[Sign]:
        """The CLI, or any process in its container, wants something of us."""
        self._refuse(rpc_id)
        yield from ()

    def _on_news(self, method: str, params: Mapping[str, object]) -> Iterator[Sign]:
        """Something has happened."""
        raise NotImplementedError


def rpc_id_of(event: Mapping[str, object]) -> RpcId | None:
    """The id of a request, which is repeated in its answer; None if it is none of a CLI's."""
    number = int_of(event, "id")
    if number is not None:
        return number if abs(number) <= LARGEST_RPC_ID else None
    return id_of(event, "id") or None


def request_id_of(rpc_id: object) -> str:
    """What signs call a question: a number is not the text of its digits."""
    return f"{type(rpc_id).__name__}-{rpc_id}" if isinstance(rpc_id, int | str) else ""


def remember(book: dict[str, Remembered], key: str, value: Remembered) -> None:
    """Keep a value, and forget the oldest of too many."""
    book[key] = value
    if len(book) > MAX_REMEMBERED:
        del book[next(iter(book))]
