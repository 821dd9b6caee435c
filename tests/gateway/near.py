"""Both ends of a wire's stream in memory, and a small HTTP client that keeps every byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import h11

from orchestrator.wire import warden as w
from orchestrator.wire.host import RelayService
from orchestrator.wire.streams import Mux, Stream

PATIENCE = 30
"""For anything at all; the machine may be busy."""


@asynccontextmanager
async def connection(service: RelayService) -> AsyncIterator[Stream]:
    """The container's end of a connection to a service."""
    near, far = joined()
    task = asyncio.get_running_loop().create_task(_serve(service, far))
    try:
        with anyio.fail_after(PATIENCE):
            yield near
    finally:
        near.reset()
        with anyio.fail_after(PATIENCE):
            await task


def joined() -> tuple[Stream, Stream]:
    """The container's end and the host's end of one stream."""
    loop = asyncio.get_running_loop()

    def to_host(data: bytes) -> None:
        loop.call_soon(host.feed, data)

    def to_container(data: bytes) -> None:
        loop.call_soon(container.feed, data)

    def on_control(kind: int, number: int, payload: bytes) -> None:
        raise AssertionError(f"unexpected {kind}")

    host = Mux(to_container, on_control, w.FROM_WARDEN)
    container = Mux(to_host, on_control, w.FROM_HOST)
    near = container.open()
    return near, host.accept(near.number)


async def _serve(service: RelayService, stream: Stream) -> None:
    try:
        await service(stream)
        stream.end()
        while await stream.read():
            pass
    except OSError:
        pass


@dataclass
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Client:
    """Speaks HTTP on the container's end."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.raw = b""
        """Every byte that came."""
        self._http = h11.Connection(h11.CLIENT)

    async def send(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        head = [("host", "127.0.0.1:8080"), *headers.items()]
        if body:
            head.append(("content-length", str(len(body))))
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        data = self._http.send(h11.Request(method=method, target=target, headers=head)) or b""
        data += self._http.send(h11.Data(data=body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        await self.stream.write(data)

    async def events(self) -> AsyncIterator[h11.Event]:
        """What comes, as it comes."""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self.stream.read()
                self.raw += data
                self._http.receive_data(data)
                continue
            assert isinstance(event, h11.Event)
            yield event
            if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return

    async def answer(self) -> Answer:
        answer = Answer(0)
        async for event in self.events():
            if isinstance(event, h11.Response):
                answer.status = event.status_code
                answer.headers = {k.decode(): v.decode() for k, v in event.headers}
            elif isinstance(event, h11.Data):
                answer.body += event.data
        return answer

    async def ask(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        await self.send(method, target, headers or {}, body)
        return await self.answer()


class AtHand:
    """A ByteStream whose bytes are all there already, and which takes all that it is given: to
    read and to write never waits.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.written = b""

    async def read(self, max_bytes: int = 64 * 1024) -> bytes:
        if not self._data:
            await anyio.sleep_forever()
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return data

    async def write(self, data: bytes) -> None:
        self.written += data

    def end(self) -> None:
        pass

    def reset(self) -> None:
        pass


async def turns_during(work: Callable[[], Awaitable[object]]) -> int:
    """How often another task gets its turn while some work is done."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await work()
            tasks.cancel_scope.cancel()
    return turns


async def raw_answer(service: RelayService, sent: bytes) -> bytes:
    """All that a service says to some bytes."""
    async with connection(service) as stream:
        await stream.write(sent)
        answer = b""
        while data := await stream.read():
            answer += data
        return answer
