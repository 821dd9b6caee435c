"""A model that says what a test tells it to: the smallest endpoint that the claude CLI talks to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import anyio.abc

Receive = Callable[[], Awaitable[bytes]]
Send = Callable[[bytes], Awaitable[None]]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass(frozen=True)
class Say:
    """A text, and why it ends there."""

    text: str
    stop: str = "end_turn"


@dataclass(frozen=True)
class Cut:
    """A text that breaks off."""

    text: str
    block_ends: bool = False
    """Only after the text is whole, before the word why it ends."""
    dropped: bool = False
    """Drop the connection too, in the middle of the body."""


@dataclass(frozen=True)
class Stall:
    """A text that never goes on."""

    text: str


@dataclass(frozen=True)
class Use:
    """A tool call."""

    tool: str
    input: dict[str, object]


@dataclass(frozen=True)
class Together:
    """Several tool calls in one message."""

    uses: tuple[Use, ...]


@dataclass(frozen=True)
class Fail:
    """An error of the API."""

    status: int


Step = Say | Cut | Stall | Use | Together | Fail


@dataclass
class FakeModel:
    """Answers each request for a message with the next step; the last one is repeated."""

    steps: list[Step]
    bodies: list[dict[str, object]] = field(default_factory=list)
    """What was asked, as JSON."""
    requests: list[str] = field(default_factory=list)
    """The first line of each request, of every kind."""
    keys: list[str] = field(default_factory=list)
    """What each request was made with."""
    stalled: anyio.Event = field(default_factory=anyio.Event)

    async def answer(self, receive: Receive, send: Send) -> None:
        """One connection: one request, one answer."""
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = await receive()
            if not chunk:
                return
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in rest)}
        while len(body) < int(headers.get("content-length", "0")):
            chunk = await receive()
            if not chunk:
                return
            body += chunk
        self.requests.append(first)
        self.keys.append(headers.get("x-api-key") or headers.get("authorization", ""))
        method, target, _ = first.split(" ")
        if method != "POST":
            await send(response(200, "text/plain", b""))
        elif target.partition("?")[0].endswith("/count_tokens"):
            await send(response(200, "application/json", b'{"input_tokens":42}'))
        else:
            self.bodies.append(json.loads(body))
            number = len(self.bodies)
            streamed = self.bodies[-1].get("stream") is True
            step = self.steps[min(number, len(self.steps)) - 1]
            await send(self.render(step, number, streamed=streamed))
            if isinstance(step, Stall):
                self.stalled.set()
                await receive()

    def render(self, step: Step, number: int, *, streamed: bool) -> bytes:
        return _render(step, number, streamed=streamed)

    @asynccontextmanager
    async def on_loopback(self) -> AsyncIterator[str]:
        """Serve it on a free port of this machine; the base URL."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)

        async def connected(stream: anyio.abc.SocketStream) -> None:
            async with stream:
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):  # it was interrupted
                    await self.answer(stream.receive, stream.send)

        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, connected)
            yield f"http://127.0.0.1:{port}"
            tasks.cancel_scope.cancel()


def _render(step: Step, number: int, *, streamed: bool) -> bytes:
    if isinstance(step, Fail):
        error = {"type": ERROR_TYPES[step.status], "message": f"scripted {step.status}"}
        body = json.dumps({"type": "error", "error": error}).encode()
        return response(step.status, "application/json", body)
    if streamed:
        whole = response(200, "text/event-stream", _events(step, number))
        open_ended = isinstance(step, Stall) or (isinstance(step, Cut) and step.dropped)
        return whole[:-5] if open_ended else whole
    body = json.dumps(_message(number) | {"content": _blocks(step, number)}).encode()
    return response(200, "application/json", body[:-20] if isinstance(step, Cut) else body)


def _message(number: int) -> dict[str, object]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 1},
    }


def _blocks(step: Say | Cut | Stall | Use | Together, number: int) -> list[dict[str, object]]:
    if isinstance(step, Together):
        # toolu_1, toolu_1b, toolu_1c: the first as if it were alone
        names = [f"toolu_{number}{letter}" for letter in ("", *"bcdefgh")]
        return [_use(use, name) for use, name in zip(step.uses, names, strict=False)]
    if isinstance(step, Use):
        return [_use(step, f"toolu_{number}")]
    return [{"type": "text", "text": step.text}]


def _use(use: Use, name: str) -> dict[str, object]:
    return {"type": "tool_use", "id": name, "name": use.tool, "input": use.input}


def _events(step: Say | Cut | Stall | Use | Together, number: int) -> bytes:
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": _message(number) | {"stop_reason": None}}
    ]
    for index, block in enumerate(_blocks(step, number)):
        if block["type"] == "tool_use":
            empty: dict[str, object] = {"input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            empty = {"text": ""}
            delta = {"type": "text_delta", "text": str(block["text"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": block | empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    stop_reason = "tool_use" if isinstance(step, Use | Together) else ""
    stop_reason = step.stop if isinstance(step, Say) else stop_reason
    events += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": None},
            "usage": {"output_tokens": 20},
        },
        {"type": "message_stop"},
    ]
    if isinstance(step, Stall):
        events = events[:3]
    if isinstance(step, Cut):
        events = events[: 4 if step.block_ends else 3]
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events
    )


def response(status: int, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} scripted\r\ncontent-type: {kind}\r\nconnection: close\r\n"
    head += "request-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return head.encode() + chunk + b"0\r\n\r\n"
