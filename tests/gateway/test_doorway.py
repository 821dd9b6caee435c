"""What services have in common: connections that are cut, and a record that hears of them."""

from __future__ import annotations

import logging

import anyio
import pytest

from orchestrator.gateway import doorway as doorways
from orchestrator.gateway.doorway import Doorway, Observer
from orchestrator.gateway.http.request_head import Head
from orchestrator.wire.streams import Stream
from tests.gateway.near import PATIENCE, connection

pytestmark = pytest.mark.anyio


SECRET = "sk-the-real-key"


class Echo:
    """A service that says everything twice; or fails when it is told to."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.doorway = Doorway()
        self.scopes: list[anyio.CancelScope] = []
        self._at_once = at_once

    async def service(self, stream: Stream) -> None:
        async def answer(scope: anyio.CancelScope) -> None:
            self.scopes.append(scope)
            if self._at_once:
                self.doorway.enter(scope)
            while data := await stream.read():
                if data == b"fail":
                    raise ValueError(SECRET)
                await stream.write(data * 2)

        await self.doorway.serve(stream, answer)


async def said_twice(stream: Stream) -> bool:
    await stream.write(b"a")
    return await stream.read() == b"aa"


async def reset(stream: Stream) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(ConnectionResetError):
        await stream.read()


async def test_a_connection_is_cut_with_its_run_and_its_peer_sees_a_reset() -> None:
    echo = Echo()
    async with connection(echo.service) as one, connection(echo.service) as other:
        assert await said_twice(one)
        assert await said_twice(other)
        assert (echo.doorway.open_connections, echo.doorway.revoked) == (2, False)
        echo.doorway.revoke()
        await reset(one)
        await reset(other)
    assert (echo.doorway.open_connections, echo.doorway.revoked) == (0, True)


async def test_what_is_cut_is_not_revoked() -> None:
    echo = Echo()
    async with connection(echo.service) as stream:
        assert await said_twice(stream)
        echo.doorway.cut()
        await reset(stream)
    assert not echo.doorway.revoked


async def test_a_connection_that_outlives_runs_is_cut_only_during_a_request() -> None:
    echo = Echo(at_once=False)
    async with connection(echo.service) as stream:
        assert await said_twice(stream)
        echo.doorway.revoke()
        assert await said_twice(stream)
        echo.doorway.enter(echo.scopes[0])
        assert echo.doorway.open_connections == 1
        echo.doorway.leave(echo.scopes[0])
        echo.doorway.revoke()
        assert await said_twice(stream)
        echo.doorway.enter(echo.scopes[0])
        echo.doorway.revoke()
        await reset(stream)


async def test_a_service_for_one_request_is_cut_while_it_waits_for_it_and_while_it_answers() -> (
    None
):
    doorway, asked = Doorway(), anyio.Event()

    async def answer(head: Head) -> None:
        assert head.target == "/x"
        asked.set()
        await anyio.sleep_forever()

    async def service(stream: Stream) -> None:
        await doorway.serve_one(stream, answer)

    async with connection(service) as one, connection(service) as other:
        await one.write(b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n")
        await other.write(b"GET /x HT")
        await asked.wait()
        await anyio.wait_all_tasks_blocked()
        assert doorway.open_connections == 2
        doorway.revoke()
        await reset(one)
        await reset(other)


async def test_a_service_that_fails_tells_the_log_where_and_the_peer_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    echo = Echo()
    with caplog.at_level(logging.DEBUG):
        async with connection(echo.service) as stream:
            await stream.write(b"fail")
            await reset(stream)
    assert "ValueError" in caplog.text
    assert "test_doorway.py" in caplog.text
    assert SECRET not in caplog.text
    assert echo.doorway.open_connections == 0


def test_denials_are_told_for_each_host_and_in_all_until_there_were_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doorways, "DENIALS_PER_HOST", 2)
    monkeypatch.setattr(doorways, "MAX_DENIALS", 5)
    observer = Observer[str](None, "a test")
    wanted = [host for host in "aaabbbcccddd" if observer.wants_denial(host)]
    assert wanted == ["a", "a", "b", "b", "c"]


def test_a_record_hears_no_more_than_it_was_promised(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    def hear(number: int) -> None:
        heard.append(number)
        if number == 2:
            raise RuntimeError("no room")

    observer = Observer[int](hear, "a number", most=3)
    for number in range(1, 6):
        observer.tell(number)
    assert heard == [1, 2, 3]
    assert "a number could not be recorded" in caplog.text
