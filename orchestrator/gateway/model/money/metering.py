"""The bytes of a model's answer -> what it used: what the API said, and an estimate of the rest.

The API says what a request used at the start, on the way or at the end of its answer. A client that
hangs up in between has still used it, so what was not said is estimated, rather too high: from the
bytes that went by, and, since a model may think without a word of it being shown, from the seconds.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod

from orchestrator.domain.result import Spent
from orchestrator.gateway.model.money.prices import Used
from orchestrator.gateway.model.request import BYTES_PER_INPUT_TOKEN, Asked
from orchestrator.gateway.model.verdicts import ApiError, ModelVerdict, verdict_of

EVENT_LINE_BYTES = 4 * 1024 * 1024
"""One line of a streamed answer. What is longer is passed on, but not read."""

JSON_BYTES = 16 * 1024 * 1024
"""An answer that is not streamed."""

BYTES_PER_OUTPUT_TOKEN = 3
"""Where the API did not say."""

OUTPUT_TOKENS_PER_SECOND = 200
"""More than a model writes, in its fast mode too. What it thinks may not be shown, or not yet."""


class Tally(Spent):
    """What one request took."""

    model: str = ""
    error_type: str = ""
    """What the API called the error, if there was one."""
    verdict: ModelVerdict = ""
    """Why there is no answer, or not a good one; "" for one that there is."""
    answer_id: str = ""
    """What the API calls its answer."""
    stop: str = ""
    """Why the model stopped, in the API's word."""


class Reading(ABC):
    """What an answer says, read event by event, in the words of one format. Its counts are kept so
    that no token is in two of them, whatever the format does.
    """

    def __init__(self) -> None:
        self.model = ""
        self.answer_id = ""
        self.stop = ""
        """The API's word for why the model stopped."""
        self.error = ApiError()
        self.ending: ModelVerdict = ""
        """ "length" or "refusal", if the model or its API ended the answer so."""
        self.is_done = False
        """The model has said that it is."""
        self.said: Used | None = None
        """What the API has told so far; counts that come later replace those before them."""
        self.said_all = False
        """Nothing that costs has come since."""
        self.output_bytes = 0
        self.searches = 0
        """That the API has begun by itself."""
        self.found_bytes = 0
        """Of what the API's own tools gave the model to read."""

    @abstractmethod
    def on_event(self, event: dict[str, object], size: int) -> None:
        """One event of a stream, with as many bytes."""

    @abstractmethod
    def on_answer(self, answer: dict[str, object]) -> None:
        """An answer in one piece, or an error."""

    def on_text(self, value: object) -> None:
        """Something that the model has written."""
        if isinstance(value, str):
            self.output_bytes += len(value.encode(errors="replace"))


class Meter:
    """Reads along while one answer is passed on."""

    def __init__(self, asked: Asked, reading: Reading) -> None:
        self._asked = asked
        self._reading = reading
        self._started = False
        self._status = 0
        self._streamed = False
        self._buffer = bytearray()
        self._skipping = False  # in a line that is too long
        self._unread_bytes = 0

    def start(self, status: int, content_type: str) -> None:
        """The answer's head is there."""
        self._started = True
        self._status = status
        self._streamed = "text/event-stream" in content_type.lower()

    def feed(self, chunk: bytes) -> None:
        if not self._streamed:
            self._unread_bytes += len(chunk)
            if len(self._buffer) <= JSON_BYTES:
                self._buffer += chunk
            return
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not self._skipping:
                self._buffer += end
                self._on_line(bytes(self._buffer))
            self._buffer.clear()
            self._skipping = False
        if not self._skipping:
            self._buffer += rest
            if len(self._buffer) > EVENT_LINE_BYTES:
                self._unread_bytes += len(self._buffer)
                self._buffer.clear()
                self._skipping = True

    @property
    def error(self) -> ApiError:
        """What the API said went wrong."""
        return self._reading.error

    @property
    def broke_off(self) -> bool:
        """A stream ended well as HTTP goes, but before the model was done."""
        return self._streamed and not (
            self._reading.is_done or self._reading.error.kind or self._failed
        )

    @property
    def _failed(self) -> bool:
        return self._status >= 400

    def tally(self, *, whole: bool = True, seconds: float = 0.0) -> Tally:
        """What it comes to, once no more bytes are coming, so many seconds after it was sent; not
        `whole` if some were missed.
        """
        reading = self._reading
        if not self._streamed:
            reading.on_answer(_parsed(bytes(self._buffer)))
        kind = reading.error.kind
        verdict: ModelVerdict = reading.ending
        if kind or self._failed:
            verdict = verdict_of(self._status, reading.error)
        if self._failed:
            return Tally(model=reading.model, error_type=kind, verdict=verdict)
        used = self._used(self._unsaid_output(whole, seconds))
        most, said = self._asked.cost_usd(used, reading.model), 0.0
        if reading.said is not None:
            known = used if reading.said_all else reading.said
            said = self._asked.cost_usd(known, reading.model)
        return Tally(
            model=reading.model or self._asked.model,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            cost_usd=said,
            estimated_usd=max(0.0, most - said),
            error_type=kind,
            verdict=verdict,
            answer_id=reading.answer_id,
            stop=reading.stop,
        )

    def _unsaid_output(self, whole: bool, seconds: float) -> int:
        """Tokens that the model can have written by now, if the API has not said how many."""
        if self._reading.said_all:
            return 0
        seen = -(-(self._reading.output_bytes + self._unread_bytes) // BYTES_PER_OUTPUT_TOKEN)
        by_now = min(int(seconds * OUTPUT_TOKENS_PER_SECOND), self._asked.max_tokens)
        if self._asked.stream and not self._started:
            # The head comes before the first token. Where the API hung up without one, no budget
            # should be gone: a CLI asks again.
            return 0 if whole else by_now
        if not whole and not self._streamed:
            # Nothing is seen until all of it is written, which goes on when no client waits for it.
            return max(seen, self._asked.max_tokens)
        return max(seen, by_now)

    def _used(self, unsaid_output: int) -> Used:
        reading = self._reading
        found = 0 if reading.said_all else -(-reading.found_bytes // BYTES_PER_INPUT_TOKEN)
        begun = 0 if reading.said_all else reading.searches
        said = reading.said
        if said is None:
            return self._asked.used(self._asked.input_tokens + found, unsaid_output, begun)
        more = {
            "input_tokens": said.input_tokens + found,
            "output_tokens": max(said.output_tokens, unsaid_output),
            "web_searches": max(said.web_searches, begun),
        }
        return said.model_copy(update=more)

    def _on_line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._reading.on_event(_parsed(line[5:]), len(line))


def _parsed(data: bytes) -> dict[str, object]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, list) and value:  # as Google's errors sometimes are
        value = value[0]
    return value if isinstance(value, dict) else {}


def count(counts: object, key: str) -> int:
    """A count of tokens that an API told; 0 for what is none."""
    value = counts.get(key) if isinstance(counts, dict) else None
    return value if type(value) is int and value > 0 else 0
