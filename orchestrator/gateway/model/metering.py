"""The bytes of a model's answer -> what it used: what the API said, and an estimate of the rest.

The API says what a request used at the start and at the end of its answer. A client that hangs up
in between has still used it, so what was not said is estimated, rather too high: from the bytes
that went by, and, since a model may think without a word of it being shown, from the seconds.
"""

from __future__ import annotations

import json

from orchestrator.domain.result import Spent
from orchestrator.gateway.model.prices import Used, cost_usd
from orchestrator.gateway.model.request import BYTES_PER_INPUT_TOKEN, Asked, plain_name

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


class Meter:
    """Reads along while one answer is passed on."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._started = False
        self._failed = False
        self._streamed = False
        self._buffer = bytearray()
        self._skipping = False  # in a line that is too long
        self._model = ""
        self._error_type = ""
        self._usage: dict[str, object] = {}
        self._said_at_end = False
        self._output_bytes = 0
        self._searches = 0  # that the API has begun
        self._found_bytes = 0  # of what the API's own tools gave the model to read

    def start(self, status: int, content_type: str) -> None:
        """The answer's head is there."""
        self._started = True
        self._failed = status >= 400
        self._streamed = "text/event-stream" in content_type.lower()

    def feed(self, chunk: bytes) -> None:
        if not self._streamed:
            self._output_bytes += len(chunk)
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
                self._output_bytes += len(self._buffer)
                self._buffer.clear()
                self._skipping = True

    @property
    def broke_off(self) -> bool:
        """A stream ended well as HTTP goes, but before the model was done."""
        return self._streamed and not (self._said_at_end or self._error_type or self._failed)

    def tally(self, *, whole: bool = True, seconds: float = 0.0) -> Tally:
        """What it comes to, once no more bytes are coming, so many seconds after it was sent; not
        `whole` if some were missed.
        """
        if not self._streamed:
            self._on_message(_parsed(bytes(self._buffer)))
        if self._failed:
            return Tally(model=self._model, error_type=self._error_type)
        used = self._used(self._unsaid_output(whole, seconds))
        self._model = self._model or self._asked.model
        most, said = cost_usd(self._model, used), 0.0
        if self._usage:
            said = most if self._said_at_end else cost_usd(self._model, self._said())
        return Tally(
            model=self._model,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens,
            cost_usd=said,
            estimated_usd=max(0.0, most - said),
            error_type=self._error_type,
        )

    def _unsaid_output(self, whole: bool, seconds: float) -> int:
        """Tokens that the model can have written by now, if the API has not said how many."""
        if self._said_at_end:
            return 0
        seen = -(-self._output_bytes // BYTES_PER_OUTPUT_TOKEN)
        by_now = min(int(seconds * OUTPUT_TOKENS_PER_SECOND), self._asked.max_tokens)
        if self._asked.stream and not self._started:
            # The head comes before the first token. Where the API hung up without one, no budget
            # should be gone: a CLI asks again.
            return 0 if whole else by_now
        if not whole and not self._streamed:
            # Nothing is seen until all of it is written, which goes on when nobody waits for it.
            return max(seen, self._asked.max_tokens)
        return max(seen, by_now)

    def _used(self, unsaid_output: int) -> Used:
        found = 0 if self._said_at_end else -(-self._found_bytes // BYTES_PER_INPUT_TOKEN)
        begun = 0 if self._said_at_end else self._searches
        if not self._usage:
            return self._asked.used(self._asked.input_tokens + found, unsaid_output, begun)
        said = self._said()
        more = {
            "input_tokens": said.input_tokens + found,
            "output_tokens": max(said.output_tokens, unsaid_output),
            "web_searches": max(said.web_searches, begun),
        }
        return said.model_copy(update=more)

    def _said(self) -> Used:
        """What the API has told so far."""
        tools = self._usage.get("server_tool_use")
        return Used(
            input_tokens=self._total("input_tokens"),
            output_tokens=self._total("output_tokens"),
            cache_read_tokens=self._total("cache_read_input_tokens"),
            cache_write_tokens=self._total("cache_creation_input_tokens"),
            cache_write_hour_tokens=self._total("ephemeral_1h_input_tokens", "cache_creation"),
            web_searches=_count(tools, "web_search_requests"),
            fast=self._usage.get("speed") == "fast",
            us_only=self._usage.get("inference_geo") == "us",
        )

    def _total(self, key: str, within: str = "") -> int:
        """A count of the whole request. What the API compacts by itself is only in `iterations`,
        which has all steps: the larger of both sums counts.
        """
        steps = self._usage.get("iterations")
        counts: list[object] = [self._usage, *(steps if isinstance(steps, list) else [])]
        if within:
            counts = [each.get(within) if isinstance(each, dict) else None for each in counts]
        alone, *each_step = [_count(each, key) for each in counts]
        return max(alone, sum(each_step))

    def _on_line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        event = _parsed(line[5:])
        kind = event.get("type")
        if kind == "message_start":
            message = event.get("message")
            if isinstance(message, dict):
                self._model = plain_name(message.get("model"))
                self._add(message.get("usage"))
        elif kind == "message_delta":
            if isinstance(event.get("usage"), dict):
                self._add(event["usage"])
                self._said_at_end = True
        elif kind == "content_block_start":
            self._said_at_end = False  # what was said before is not all
            self._on_block(event.get("content_block"), len(line))
        elif kind == "content_block_delta":
            delta = event.get("delta")
            if isinstance(delta, dict):
                texts = (v for k, v in delta.items() if k != "type" and isinstance(v, str))
                self._output_bytes += sum(len(text.encode()) for text in texts)
        elif kind == "error":
            self._on_error(event)

    def _on_block(self, block: object, size: int) -> None:
        """A block that may be the API's own doing: a search, or what one has found."""
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(block, dict) and kind == "server_tool_use":
            self._searches += block.get("name") == "web_search"
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            self._found_bytes += size

    def _on_message(self, message: dict[str, object]) -> None:
        if message.get("type") == "error":
            self._on_error(message)
            return
        self._model = plain_name(message.get("model"))
        if isinstance(message.get("usage"), dict):
            self._add(message["usage"])
            self._said_at_end = True

    def _on_error(self, event: dict[str, object]) -> None:
        error = event.get("error")
        if isinstance(error, dict):
            self._error_type = plain_name(error.get("type"))

    def _add(self, usage: object) -> None:
        """Later counts replace earlier ones: they are totals."""
        if isinstance(usage, dict):
            self._usage.update({k: v for k, v in usage.items() if v is not None})


def _parsed(data: bytes) -> dict[str, object]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _count(counts: object, key: str) -> int:
    value = counts.get(key) if isinstance(counts, dict) else None
    return value if type(value) is int and value > 0 else 0
