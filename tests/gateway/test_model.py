"""The model service: the run's token in, the real credential out, and the bill in between."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import h11
import pytest
from pydantic import SecretStr

from orchestrator.domain.result import Usage
from orchestrator.errors import OperatorError
from orchestrator.gateway import model as model_module
from orchestrator.gateway.credential import Credential, credential_of
from orchestrator.gateway.http_server import Headers, Request, Response
from orchestrator.gateway.loopback import serve_on_loopback
from orchestrator.gateway.model import (
    LOOK_BYTES,
    ModelAccess,
    ModelRequestSeen,
    ModelService,
    open_model_service,
)
from orchestrator.gateway.remote_features import remote_features
from orchestrator.gateway.scripted import Script, ScriptedModel, scripted_server
from orchestrator.gateway.upstream import HttpUpstream, UpstreamRequest, UpstreamResponse
from orchestrator.settings import Settings, read_settings
from tests.gateway.near import Answer, Client, connection

pytestmark = pytest.mark.anyio

KEY = "sk-ant-the-real-key"
CREDENTIAL = Credential(kind="api_key", secret=SecretStr(KEY))
HELLO = Script.model_validate(
    {"steps": [{"text": "hello", "usage": {"input_tokens": 1000, "output_tokens": 200}}] * 3}
)
ASKED = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "hi"}]}


def body(**more: object) -> bytes:
    return json.dumps({**ASKED, **more}).encode()


async def post(access: ModelAccess, token: str | None = None, **more: object) -> Answer:
    headers = {"x-api-key": access.token if token is None else token}
    async with connection(access.service) as stream:
        return await Client(stream).ask("POST", "/v1/messages?beta=true", headers, body(**more))


def error_of(answer: Answer) -> str:
    shape = json.loads(answer.body)
    assert shape["type"] == "error"
    assert shape["error"]["message"]
    return str(shape["error"]["type"])


@asynccontextmanager
async def http_upstream(url: str) -> AsyncIterator[HttpUpstream]:
    upstream = HttpUpstream(url)
    try:
        yield upstream
    finally:
        await upstream.aclose()


@asynccontextmanager
async def api(answer: Response) -> AsyncIterator[str]:
    """An API on loopback that always says the same."""

    async def handler(_: Request) -> Response:
        return answer

    async with serve_on_loopback(handler) as url:
        yield url


# Who may ask, and what for


@pytest.mark.parametrize("stream", [True, False])
async def test_the_real_key_reaches_the_api_and_nothing_of_it_the_container(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_server(HELLO) as server, http_upstream(server.url) as upstream:
        access = ModelService(upstream, CREDENTIAL).access()
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


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("api_key", {"x-api-key": KEY, "anthropic-beta": "one"}),
        ("auth_token", {"authorization": f"Bearer {KEY}", "anthropic-beta": "one"}),
        (
            "oauth_token",
            {"authorization": f"Bearer {KEY}", "anthropic-beta": "one,oauth-2025-04-20"},
        ),
    ],
)
def test_each_credential_is_shown_in_its_own_way(kind: str, expected: dict[str, str]) -> None:
    credential = Credential.model_validate({"kind": kind, "secret": KEY})
    assert dict(credential.added_to((("anthropic-beta", "one"),))) == expected
    assert KEY not in repr(credential) + str(credential) + credential.model_dump_json()


def test_a_credential_comes_from_the_settings_and_never_shows(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    both = {"CLAUDE_CODE_OAUTH_TOKEN": "o", "ANTHROPIC_AUTH_TOKEN": f"{KEY}\n"}
    settings = read_settings(home | both)
    assert credential_of(settings) == Credential(kind="auth_token", secret=SecretStr(KEY))
    assert KEY not in repr(settings) + settings.model_dump_json()
    assert credential_of(read_settings(home)) is None
    with pytest.raises(OperatorError, match="ANTHROPIC_API_KEY holds a character") as refused:
        credential_of(read_settings(home | {"ANTHROPIC_API_KEY": f"{KEY}\n{KEY}"}))
    assert KEY not in str(refused.value)


async def test_a_bearer_token_is_as_good_as_a_key() -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    headers = {"authorization": f"Bearer {access.token}"}
    async with connection(access.service) as stream:
        answer = await Client(stream).ask("POST", "/v1/messages", headers, body())
    assert answer.status == 200


@pytest.mark.parametrize("token", ["", "run-wrong", KEY])
async def test_a_wrong_token_opens_nothing(token: str) -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream(), CREDENTIAL)
    answer = await post(access, token)
    assert (answer.status, error_of(answer)) == (401, "authentication_error")
    assert access.usage == Usage()


async def test_a_token_is_revoked_with_its_run() -> None:
    with ModelAccess(ScriptedModel(HELLO).upstream()) as access:
        assert (await post(access)).status == 200
    assert (await post(access)).status == 401


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/messages/../files"),
        ("POST", "/v1/messages/%2e%2e/files"),
        ("POST", "//v1/messages"),
        ("POST", "/v1/files"),
        ("GET", "/v1/models"),
        ("POST", "/v1/messages?x=%0d%0a"),
        ("POST", "/v1/messages?a#b"),
        ("POST", "http://elsewhere/v1/messages"),
        ("CONNECT", "elsewhere:443"),
        ("OPTIONS", "*"),
    ],
)
async def test_other_paths_are_refused_by_name(method: str, target: str) -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    async with connection(access.service) as stream:
        answer = await Client(stream).ask(method, target, {"x-api-key": access.token})
    assert (answer.status, error_of(answer)) == (403, "permission_error")
    assert answer.headers["x-orchestrator-denied"] == "path"
    assert b"refused by the orchestrator" in answer.body
    assert access.usage == Usage()


@pytest.mark.parametrize(
    "more",
    [
        {"mcp_servers": [{"type": "url", "url": "http://example.invalid", "name": "x"}]},
        {"container": "c1"},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"name": "a"}, {"type": "web_fetch_20250910", "name": "web_fetch"}]},
        {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
        {"tools": ["?"]},
    ],
)
async def test_the_api_is_not_asked_to_reach_out_for_an_agent_without_network(
    more: dict[str, object],
) -> None:
    upstream = ScriptedModel(HELLO).upstream()
    with ModelService(None).access(upstream=upstream) as access:
        answer = await post(access, None, **more)

    assert (answer.status, error_of(answer)) == (403, "permission_error")
    assert access.usage.requests == 0


async def test_tools_that_the_client_carries_out_are_passed_on() -> None:
    tools = [{"name": "Bash", "input_schema": {}}, {"type": "custom", "name": "x"}]
    search = [{"type": "web_search_20250305", "name": "web_search"}]
    allowed = frozenset({"web_search"})
    with ModelService(None).access(
        upstream=ScriptedModel(HELLO).upstream(), server_tools=allowed
    ) as access:
        assert (await post(access, tools=tools)).status == 200
        assert (await post(access, tools=search)).status == 200


async def test_the_cli_may_look_whether_anybody_is_there() -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    async with connection(access.service) as stream:
        assert (await Client(stream).ask("HEAD", "/")).status == 200


# What comes back


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

    answer = Response(200, (("content-type", "text/event-stream"),), pieces())
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
        access = ModelService(upstream, CREDENTIAL).access(on_request=seen.append)
        busy, refused = await post(access), await post(access)

    assert (busy.status, error_of(busy)) == (529, "overloaded_error")
    assert busy.headers["retry-after"] == "7"
    assert busy.headers["request-id"].startswith("req_")
    assert b"busy" in busy.body
    assert (refused.status, error_of(refused)) == (401, "authentication_error")
    assert "x-orchestrator-denied" not in refused.headers
    assert access.usage == Usage(requests=2)
    assert [(s.status, s.error_type) for s in seen] == [
        (529, "overloaded_error"),
        (401, "authentication_error"),
    ]


async def test_a_proxy_that_repeats_the_key_does_not_tell_the_container() -> None:
    said = Response(401, (("x-your-key", KEY),), f"wrong key {KEY}".encode())
    async with api(said) as url, http_upstream(url) as upstream:
        access = ModelAccess(upstream, CREDENTIAL)
        async with connection(access.service) as stream:
            client = Client(stream)
            answer = await client.ask("POST", "/v1/messages", {"x-api-key": access.token}, body())
    assert answer.body == b"wrong key [redacted]"
    assert KEY.encode() not in client.raw


async def test_nobody_there_is_said_with_what_to_check(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[ModelRequestSeen] = []
    async with api(Response(200)) as url:
        pass
    async with http_upstream(url) as upstream:
        access = ModelService(upstream, CREDENTIAL).access(on_request=seen.append)
        answer = await post(access)
    assert (answer.status, error_of(answer)) == (502, "api_error")
    assert b"ANTHROPIC_BASE_URL" in answer.body
    assert KEY.encode() not in answer.body
    assert KEY not in caplog.text
    assert [(s.status, s.error_type, s.cost_usd) for s in seen] == [(502, "unreachable", 0)]


async def test_a_redirect_is_not_followed() -> None:
    away = Response(307, (("location", "http://127.0.0.1:1/"),))
    async with api(away) as url, http_upstream(url) as upstream:
        answer = await post(ModelAccess(upstream, CREDENTIAL))
    assert (answer.status, error_of(answer)) == (502, "api_error")
    assert b"redirect" in answer.body


async def test_no_cookie_goes_from_one_run_to_another() -> None:
    asked: list[Headers] = []

    async def handler(request: Request) -> Response:
        asked.append(request.headers)
        return Response(200, (("set-cookie", "who=me; Path=/"),), b"{}")

    async with serve_on_loopback(handler) as url, http_upstream(url) as upstream:
        first = await post(ModelAccess(upstream))
        await post(ModelAccess(upstream))
    assert "set-cookie" not in first.headers
    assert len(asked) == 2
    assert "cookie" not in dict(asked[1])


async def test_odd_bytes_in_a_header_are_passed_on_as_they_are() -> None:
    async with scripted_server(HELLO) as server, http_upstream(server.url) as upstream:
        access = ModelAccess(upstream, CREDENTIAL)
        async with connection(access.service) as stream:
            head = f"POST /v1/messages HTTP/1.1\r\nhost: a\r\nx-api-key: {access.token}\r\n"
            await stream.write(head.encode() + b"x-odd: \xff\xe9\r\ncontent-length: 2\r\n\r\n{}")
            assert (await stream.read()).startswith(b"HTTP/1.1 200 ")
    assert server.requests[0].header("x-odd") == "\xff\xe9"


async def test_a_listener_that_fails_does_not_cost_the_answer() -> None:
    def fail(_: ModelRequestSeen) -> None:
        raise ValueError

    access = ModelAccess(ScriptedModel(HELLO).upstream(), on_request=fail)
    answer = await post(access)
    assert (answer.status, access.usage.requests) == (200, 1)


@pytest.mark.parametrize(
    "url", ["ftp://host", "host", "https://me:pw@host", "https://host/?a=b", "https://host:x"]
)
def test_a_base_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(OperatorError, match="ANTHROPIC_BASE_URL") as refused:
        HttpUpstream(url)
    assert "pw" not in str(refused.value).replace("password", "")


# The bill


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_run_used_is_counted_exactly(stream: bool) -> None:
    seen: list[ModelRequestSeen] = []
    access = ModelAccess(ScriptedModel(HELLO).upstream(), on_request=seen.append)
    await post(access, stream=stream)
    await post(access, stream=stream)
    async with connection(access.service) as near:
        headers = {"x-api-key": access.token}
        counted = await Client(near).ask("POST", "/v1/messages/count_tokens", headers, body())

    assert "input_tokens" in json.loads(counted.body)
    one = 1000 * 3e-6 + 200 * 15e-6
    counts = Usage(requests=2, input_tokens=2000, output_tokens=400, cost_usd=2 * one)
    assert access.usage.model_dump() == pytest.approx(counts.model_dump())
    expected = ModelRequestSeen(
        status=200,
        model="claude-sonnet-4-5",
        input_tokens=1000,
        output_tokens=200,
        cost_usd=one,
    )
    assert [s.model_copy(update={"duration_ms": 0}) for s in seen] == [expected] * 2


async def test_a_spent_budget_refuses_the_next_request() -> None:
    seen: list[ModelRequestSeen] = []
    upstream = ScriptedModel(HELLO).upstream()
    access = ModelAccess(upstream, budget_usd=0.006, on_request=seen.append)
    assert (await post(access)).status == 200
    before = access.budget_exhausted
    refused = [await post(access), await post(access)]

    assert [(a.status, error_of(a)) for a in refused] == [(400, "invalid_request_error")] * 2
    assert refused[0].headers["x-orchestrator-denied"] == "budget"
    assert b"budget of $0.006 is spent" in refused[0].body
    assert (before, access.budget_exhausted) == (False, True)
    assert access.usage.requests == 1
    assert [s.error_type for s in seen] == ["", "budget_exceeded"]


async def test_a_stream_that_breaks_off_is_passed_on_as_far_as_it_came() -> None:
    seen: list[ModelRequestSeen] = []
    script = Script.model_validate({"steps": [{"text": "a long way to go", "cut": True}]})
    async with scripted_server(script) as server, http_upstream(server.url) as upstream:
        access = ModelAccess(upstream, on_request=seen.append)
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
    assert one.cost_usd > 0


async def test_a_stream_that_ends_well_but_too_early_is_recorded_as_cut() -> None:
    seen: list[ModelRequestSeen] = []
    script = Script.model_validate({"steps": [{"text": "a long way to go", "cut": "clean"}]})
    access = ModelAccess(ScriptedModel(script).upstream(), on_request=seen.append)
    assert b"a long" in (await post(access, stream=True)).body
    assert [(s.status, s.error_type) for s in seen] == [(200, "stream_cut")]


async def test_a_request_that_outlives_its_run_is_not_on_the_next_ones_bill() -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(HELLO).upstream()

    class Slow:
        @asynccontextmanager
        async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
            arrived.set()
            await go_on.wait()
            async with model.send(request) as answer:
                yield answer

    first: list[ModelRequestSeen] = []
    second: list[ModelRequestSeen] = []
    access = ModelAccess(Slow(), budget_usd=1.0, on_request=first.append)
    async with connection(access.service) as stream:
        client = Client(stream)
        await client.send("POST", "/v1/messages", {"x-api-key": access.token}, body())
        await arrived.wait()
        access.revoke()
        access.bind(budget_usd=0.001, on_request=second.append)
        go_on.set()
        assert (await client.answer()).status == 200
    while not access.is_idle:
        await anyio.lowlevel.checkpoint()

    assert [seen.input_tokens for seen in first] == [1000]
    assert (second, access.usage, access.budget_exhausted) == ([], Usage(), False)
    assert (await post(access)).status == 200  # nothing of the new budget is spent
    assert (len(first), len(second), access.usage.requests) == (1, 1, 1)


async def test_a_large_request_is_looked_through_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def look(request: bytes, allowed: frozenset[str]) -> str:
        threads.append(threading.get_ident())
        return remote_features(request, allowed)

    monkeypatch.setattr(model_module, "remote_features", look)
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    assert (await post(access)).status == 200
    assert (await post(access, system="x" * LOOK_BYTES)).status == 200
    assert (await post(access, system="x" * LOOK_BYTES, mcp_servers=[1])).status == 403

    small, *others = threads
    assert small == threading.get_ident()
    assert len(others) == 2
    assert threading.get_ident() not in others


async def test_a_request_whose_run_ends_while_it_is_looked_through_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ScriptedModel(HELLO)
    access = ModelAccess(model.upstream())

    def look(request: bytes, allowed: frozenset[str]) -> str:
        access.bind(budget_usd=None, on_request=None)
        return remote_features(request, allowed)

    monkeypatch.setattr(model_module, "remote_features", look)
    answer = await post(access, system="x" * LOOK_BYTES)
    assert (answer.status, error_of(answer)) == (401, "authentication_error")
    assert access.usage == Usage()


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

    access = ModelAccess(Endless(), on_request=on_request)
    async with connection(access.service) as stream:
        client = Client(stream)
        await client.send("POST", "/v1/messages", {"x-api-key": access.token}, body())
        await waiting.wait()
        stream.end()
        await let_go.wait()
        await ended.wait()
    assert [(s.status, s.error_type) for s in seen] == [(499, "client_gone")]
    assert access.usage.input_tokens == -(-len(body()) // 4)


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


async def test_without_a_credential_only_another_model_can_be_used(tmp_path: Path) -> None:
    nothing = read_settings({"HOME": str(tmp_path)})
    async with open_model_service(nothing) as service:
        assert not service.has_model
        with pytest.raises(OperatorError, match="ANTHROPIC_API_KEY"):
            service.access()
        scripted = service.access(upstream=ScriptedModel(HELLO).upstream())
        assert (await post(scripted)).status == 200


async def test_the_settings_lead_to_the_api(tmp_path: Path) -> None:
    async with scripted_server(HELLO) as server:
        env = {"HOME": str(tmp_path), "ANTHROPIC_BASE_URL": f"{server.url}/prefix/"}
        settings: Settings = read_settings(env | {"ANTHROPIC_API_KEY": KEY})
        async with open_model_service(settings) as service:
            with service.access() as access:
                await post(access)
    assert [r.target for r in server.requests] == ["/prefix/v1/messages?beta=true"]
    assert server.requests[0].header("x-api-key") == KEY
