"""One request to the model: the credential goes with it, and what comes back is passed on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import h11
import pytest

from orchestrator.domain.result import Usage
from orchestrator.gateway.http.headers import Headers
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from orchestrator.gateway.model.upstream import UpstreamRequest, UpstreamResponse
from tests.gateway.model.model_stage import (
    ASKED,
    CREDENTIAL,
    HELLO,
    KEY,
    api,
    body,
    bound_access,
    error_of,
    http_upstream,
    post,
)
from tests.gateway.model.scripted_server import scripted_server
from tests.gateway.near import Client, connection
from tests.gateway.origin import listening

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [True, False])
async def test_the_real_key_reaches_the_api_and_nothing_of_it_the_container(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_server(HELLO) as server, http_upstream(server.url) as upstream:
        access = ModelAccess(upstream, CREDENTIAL)
        async with connection(access.service) as near:
            client = Client(near)
            headers = {
                "x-api-key": access.token,
                "authorization": "Bearer mine",
                "cookie": "c=1",
                "proxy-authorization": "p",
                "connection": "keep-alive, x-hop",
                "x-hop": "h",
                "accept-encoding": "gzip, br",
                "anthropic-version": "2023-06-01",
                "anthropic-beta": "one,two",
            }
            answer = await client.ask(
                "POST", "/v1/messages?beta=true", headers, body(stream=stream)
            )

    assert answer.status == 200
    assert b"lo" in answer.body
    [seen] = server.requests
    assert seen.target == "/v1/messages?beta=true"
    assert json.loads(seen.body) == {**ASKED, "stream": stream}
    assert seen.header("x-api-key") == KEY
    assert seen.header("anthropic-version") == "2023-06-01"
    assert seen.header("anthropic-beta") == "one,two"
    assert seen.header("accept-encoding") == "identity"
    everything = repr(seen.headers) + repr(seen.body)
    assert access.token not in everything
    assert (
        not {"authorization", "cookie", "proxy-authorization", "x-hop"} & dict(seen.headers).keys()
    )
    assert KEY.encode() not in client.raw
    assert KEY not in caplog.text + repr(access) + repr(seen) + repr(CREDENTIAL)
    assert access.token not in caplog.text + repr(access)


async def test_a_stream_is_passed_on_while_the_model_still_speaks() -> None:
    go_on = asyncio.Event()

    class Slow:
        @asynccontextmanager
        async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
            headers = (("content-type", "text/event-stream"),)
            yield UpstreamResponse(200, headers, self.body())

        async def body(self) -> AsyncIterator[bytes]:
            yield b"data: {}\n\n"
            await go_on.wait()
            yield b"data: []\n\n"

    access = ModelAccess(Slow())
    got = []
    async with connection(access.service) as stream:
        client = Client(stream)
        await client.send("POST", "/v1/messages", {"x-api-key": access.token}, body())
        async for event in client.events():
            if isinstance(event, h11.Data):
                got.append(bytes(event.data))
                go_on.set()
    assert got == [b"data: {}\n\n", b"data: []\n\n"]


async def test_a_stream_is_unbuffered_all_the_way_through_http() -> None:
    go_on = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"second"

    answer = HttpResponse(200, (("content-type", "text/event-stream"),), pieces())
    got = b""
    async with api(answer) as url, http_upstream(url) as upstream:
        access = ModelAccess(upstream)
        async with connection(access.service) as stream:
            client = Client(stream)
            await client.send("POST", "/v1/messages", {"x-api-key": access.token}, body())
            async for event in client.events():
                if isinstance(event, h11.Data):
                    got += event.data
                    go_on.set()
    assert got == b"firstsecond"


async def test_errors_of_the_api_are_passed_on_with_what_a_client_acts_on() -> None:
    script = Script.model_validate(
        {"steps": [{"error": 529, "message": "busy", "retry_after": 7}, {"error": 401}]}
    )
    seen: list[ModelRequestSeen] = []
    async with scripted_server(script) as server, http_upstream(server.url) as upstream:
        access = bound_access(upstream, CREDENTIAL, on_request=seen.append)
        busy, refused = await post(access), await post(access)

    assert (busy.status, error_of(busy)) == (529, "overloaded_error")
    assert busy.headers["retry-after"] == "7"
    assert busy.headers["request-id"].startswith("req_")
    assert b"busy" in busy.body
    assert (refused.status, error_of(refused)) == (401, "authentication_error")
    assert "x-orchestrator-denied" not in refused.headers
    assert access.bill.usage == Usage(requests=2)
    assert [(s.status, s.error_type) for s in seen] == [
        (529, "overloaded_error"),
        (401, "authentication_error"),
    ]


async def test_a_proxy_that_repeats_the_key_does_not_tell_the_container() -> None:
    said = HttpResponse(401, (("x-your-key", KEY),), f"wrong key {KEY}".encode())
    async with api(said) as url, http_upstream(url) as upstream:
        access = ModelAccess(upstream, CREDENTIAL)
        async with connection(access.service) as stream:
            client = Client(stream)
            answer = await client.ask("POST", "/v1/messages", {"x-api-key": access.token}, body())
    assert answer.body == b"wrong key [redacted]"
    assert KEY.encode() not in client.raw


async def test_nobody_there_is_said_with_what_to_check(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[ModelRequestSeen] = []
    async with api(HttpResponse(200)) as url:
        pass
    async with http_upstream(url) as upstream:
        access = bound_access(upstream, CREDENTIAL, on_request=seen.append)
        answer = await post(access)
    assert (answer.status, error_of(answer)) == (502, "api_error")
    assert b"ANTHROPIC_BASE_URL" in answer.body
    assert KEY.encode() not in answer.body
    assert KEY not in caplog.text
    assert [(s.status, s.error_type, s.cost_usd) for s in seen] == [(502, "unreachable", 0)]


async def test_of_an_api_that_hung_up_without_an_answer_what_was_sent_is_paid_for() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    seen: list[ModelRequestSeen] = []
    async with listening(talk) as port, http_upstream(f"http://127.0.0.1:{port}") as upstream:
        access = bound_access(upstream, CREDENTIAL, on_request=seen.append)
        assert (await post(access, max_tokens=1000, stream=True)).status == 502
    assert [(s.error_type, s.output_tokens) for s in seen] == [("unreachable", 0)]
    assert seen[0].input_tokens > 0


async def test_hanging_up_before_anything_was_sent_costs_nothing() -> None:
    """Here the way to the API is a proxy that was asked for it, and says nothing."""
    asked = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()

    ended = asyncio.Event()
    async with listening(talk) as port:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
            patch.delenv("NO_PROXY", raising=False)
            patch.delenv("no_proxy", raising=False)
            async with http_upstream("https://api.example") as upstream:
                access = bound_access(upstream, CREDENTIAL, on_request=lambda _: ended.set())
                async with connection(access.service) as stream:
                    headers = {"x-api-key": access.token}
                    await Client(stream).send("POST", "/v1/messages", headers, body())
                    await asked.wait()
                    stream.end()
                    await ended.wait()
    assert access.bill.usage == Usage(requests=1)


async def test_a_pool_that_is_used_up_is_not_blamed_on_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.gateway.model.upstream.MAX_UPSTREAM_CONNECTIONS", 1)
    monkeypatch.setattr("orchestrator.gateway.model.upstream.UPSTREAM_POOL_SECONDS", 0.05)
    arrived = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()

    async with listening(talk) as port, http_upstream(f"http://127.0.0.1:{port}") as upstream:
        seen: list[ModelRequestSeen] = []
        access = bound_access(upstream, CREDENTIAL, on_request=seen.append)
        async with connection(access.service) as stream:
            headers = {"x-api-key": access.token}
            await Client(stream).send("POST", "/v1/messages", headers, body())
            await arrived.wait()
            answer = await post(access)
            assert (answer.status, error_of(answer)) == (503, "overloaded_error")
            assert b"ANTHROPIC_BASE_URL" not in answer.body
            assert b"in use" in answer.body
            assert "retry-after" in answer.headers
            assert [(s.status, s.cost_usd) for s in seen] == [(503, 0)]


async def test_a_redirect_is_not_followed() -> None:
    away = HttpResponse(307, (("location", "http://127.0.0.1:1/"),))
    async with api(away) as url, http_upstream(url) as upstream:
        answer = await post(ModelAccess(upstream, CREDENTIAL))
    assert (answer.status, error_of(answer)) == (502, "api_error")
    assert b"redirect" in answer.body


async def test_no_cookie_goes_from_one_run_to_another() -> None:
    asked: list[Headers] = []

    async def handler(request: HttpRequest) -> HttpResponse:
        asked.append(request.headers)
        return HttpResponse(200, (("set-cookie", "who=me; Path=/"),), b"{}")

    async with serve_on_loopback(handler) as url, http_upstream(url) as upstream:
        first = await post(ModelAccess(upstream))
        await post(ModelAccess(upstream))
    assert "set-cookie" not in first.headers
    assert len(asked) == 2
    assert "cookie" not in dict(asked[1])


async def test_headers_that_would_make_another_request_of_it_are_not_sent_on() -> None:
    """What claude 2.1.325 sends is; and that the body is JSON is ours to say, who read it."""
    known = {
        "accept": "application/json",
        "user-agent": "claude-cli/2.1.325 (external, sdk-cli)",
        "x-claude-code-session-id": "1",
        "x-stainless-retry-count": "0",
        "anthropic-beta": "claude-code-20250219",
        "anthropic-dangerous-direct-browser-access": "true",
        "anthropic-version": "2023-06-01",
        "x-app": "cli",
    }
    others = {
        "content-type": "application/json; charset=utf-7",
        "content-encoding": "gzip",
        "x-original-url": "/v1/files",
        "x-http-method-override": "DELETE",
        "x-forwarded-for": "10.0.0.1",
        "anthropic_beta": "x",
        "cookie": "a=b",
    }
    async with scripted_server(HELLO) as server, http_upstream(server.url) as upstream:
        access = ModelAccess(upstream, CREDENTIAL)
        async with connection(access.service) as stream:
            headers = {**known, **others, "x-api-key": access.token}
            answer = await Client(stream).ask("POST", "/v1/messages", headers, body())
    assert answer.status == 200
    framing = {"host", "connection", "content-length"}
    sent = {key: value for key, value in server.requests[0].headers if key not in framing}
    ours = {"content-type": "application/json", "accept-encoding": "identity", "x-api-key": KEY}
    assert sent == {**known, **ours}


async def test_odd_bytes_in_a_header_are_passed_on_as_they_are() -> None:
    async with scripted_server(HELLO) as server, http_upstream(server.url) as upstream:
        access = ModelAccess(upstream, CREDENTIAL)
        async with connection(access.service) as stream:
            head = f"POST /v1/messages HTTP/1.1\r\nhost: a\r\nx-api-key: {access.token}\r\n"
            await stream.write(
                head.encode() + b"user-agent: \xff\xe9\r\ncontent-length: 2\r\n\r\n{}"
            )
            assert (await stream.read()).startswith(b"HTTP/1.1 200 ")
    assert server.requests[0].header("user-agent") == "\xff\xe9"


async def test_a_stream_that_breaks_off_is_passed_on_as_far_as_it_came() -> None:
    seen: list[ModelRequestSeen] = []
    script = Script.model_validate({"steps": [{"text": "a long way to go", "cut": True}]})
    async with scripted_server(script) as server, http_upstream(server.url) as upstream:
        access = bound_access(upstream, on_request=seen.append)
        async with connection(access.service) as stream:
            client = Client(stream)
            headers = {"x-api-key": access.token}
            await client.send("POST", "/v1/messages", headers, body(stream=True))
            with pytest.raises(h11.RemoteProtocolError):
                await client.answer()
    assert b"a long" in client.raw
    assert b"message_delta" not in client.raw
    [one] = seen
    assert (one.status, one.error_type, one.input_tokens) == (200, "stream_cut", 100)
    assert one.cost_usd + one.estimated_usd > 0


async def test_a_stream_that_ends_well_but_too_early_is_recorded_as_cut() -> None:
    seen: list[ModelRequestSeen] = []
    script = Script.model_validate({"steps": [{"text": "a long way to go", "cut": "clean"}]})
    access = bound_access(ScriptedModel(script).upstream(), on_request=seen.append)
    assert b"a long" in (await post(access, stream=True)).body
    assert [(s.status, s.error_type) for s in seen] == [(200, "stream_cut")]


@pytest.mark.parametrize("when", ["before the answer", "in the middle of it"])
async def test_a_client_that_hangs_up_cancels_the_request_and_pays_for_it(when: str) -> None:
    waiting, let_go = asyncio.Event(), asyncio.Event()
    seen: list[ModelRequestSeen] = []
    ended = asyncio.Event()

    class Endless:
        @asynccontextmanager
        async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
            try:
                if when == "before the answer":
                    waiting.set()
                    await anyio.sleep_forever()
                headers = (("content-type", "text/event-stream"),)
                yield UpstreamResponse(200, headers, self.body())
            finally:
                let_go.set()

        async def body(self) -> AsyncIterator[bytes]:
            yield b"data: {}\n\n"
            waiting.set()
            await anyio.sleep_forever()

    def on_request(one: ModelRequestSeen) -> None:
        seen.append(one)
        ended.set()

    access = bound_access(Endless(), on_request=on_request)
    async with connection(access.service) as stream:
        client = Client(stream)
        asked = body(max_tokens=1000)
        await client.send("POST", "/v1/messages", {"x-api-key": access.token}, asked)
        await waiting.wait()
        stream.end()
        await let_go.wait()
        await ended.wait()
    assert [(s.status, s.error_type) for s in seen] == [(499, "client_gone")]
    assert access.bill.usage.input_tokens == -(-len(body(max_tokens=1000)) // 2)
    # What was sent is worked on, whether anybody waits for it or not.
    assert access.bill.usage.output_tokens <= 1000
    assert access.bill.usage.output_tokens == 1000 or when == "in the middle of it"


async def test_a_client_that_hangs_up_ends_the_connection_to_the_api() -> None:
    gone = asyncio.Event()
    arrived = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        while await reader.read(1000):
            pass
        writer.close()
        gone.set()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with http_upstream(url) as upstream:
        access = ModelAccess(upstream)
        async with connection(access.service) as stream:
            headers = {"x-api-key": access.token}
            await Client(stream).send("POST", "/v1/messages", headers, body())
            await arrived.wait()
            stream.end()
            await gone.wait()
    server.close()
