"""Attacks on requests that a secret is added to: other paths and hosts, and the secret itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from orchestrator.domain.container import ROUTES_PORT
from tests.attacks.mark import attack
from tests.attacks.rig import Rig, status
from tests.engine.test_secrets import shapes
from tests.gateway.secrets.git_server import Exchange, HttpsServer


@pytest.fixture
def asked(hub: HttpsServer) -> Iterator[HttpsServer]:
    """The server, as if nobody had asked it anything; it answers plainly again afterwards."""
    respond: Callable[[Exchange], None] = hub.respond
    hub.requests.clear()
    yield hub
    hub.respond = respond


def request(path: str, *headers: str, method: str = "GET") -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:8082", *headers, "", "")
    return "\r\n".join(lines).encode()


ESCAPES = (
    *("/acme/widget/../secret", "/acme/widget/%2e%2e/secret", "/acme/widget/.%2e/secret"),
    *("/acme/widget/%252e%252e/secret", "/acme/widget/..%2fsecret", "/acme/widget/..;/secret"),
    *("/acme/widget//../secret", "//acme/widget/x", "/acme//widget/x", "/acme/widget/\\..\\secret"),
    *("/acme/widget/%5c..%5csecret", "/acme/widget/x%00", "/acme/widget/%u002e%u002e/secret"),
    *("/acme/widget/%c0%ae%c0%ae/secret", "/acme/widget/．．/secret", "/acme/./widget/x"),
)


@attack(
    "gateway abuse",
    "leave the allowed path with dots, slashes and encodings (16 spellings)",
    "403 or 400; the server that holds the secret's account is not asked",
)
async def test_no_spelling_leaves_the_allowed_path(web: Rig, asked: HttpsServer) -> None:
    with web.watched() as seen:
        answers = await web.ask([request(f"/{asked.host}{path}") for path in ESCAPES], ROUTES_PORT)
    assert {status(answer) for answer in answers} <= {400, 403}, answers
    assert asked.requests == []
    assert seen.nothing_left


@attack(
    "gateway abuse",
    "use the secret for a twin of the allowed path, or the whole host",
    "403: whole segments are compared; the server is not asked, and the record says what was tried",
)
async def test_twins_of_the_allowed_path_are_refused(web: Rig, asked: HttpsServer) -> None:
    twins = (
        "/acme/widget-secret/x",
        "/acme/widgetx",
        "/acme/widget",
        "/acme",
        "/",
        "/Acme/widget/x",
    )
    with web.watched() as seen:
        # In capitals, since of one spelling of a host only so many refusals are told.
        host = asked.host.upper()
        answers = await web.ask([request(f"/{host}{twin}") for twin in twins], ROUTES_PORT)
    assert {status(answer) for answer in answers} == {403}
    assert asked.requests == []
    assert [event.data["path"] for event in seen.events] == [*twins]


@attack(
    "gateway abuse",
    "use the secret with another method, or disguise one as another",
    "403 for what agent.md does not list; headers that override a method are dropped",
)
async def test_other_methods_are_refused_and_not_disguised(web: Rig, asked: HttpsServer) -> None:
    path = f"/{asked.host}/acme/widget/x"
    methods = ("DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "get", "PROPFIND", "CONNECT")
    answers = await web.ask([request(path, method=each) for each in methods], ROUTES_PORT)
    assert {status(answer) for answer in answers} <= {400, 403}, answers
    assert asked.requests == []
    overrides = (
        *("X-HTTP-Method-Override: DELETE", "X-Method-Override: DELETE"),
        *("X-Original-URL: /acme/secret", "X-Rewrite-URL: /acme/secret"),
    )
    await web.ask(request(path, *overrides), ROUTES_PORT)
    (received,) = asked.requests
    assert (received.method, received.path) == ("GET", "/acme/widget/x")
    assert not [name for name in received.headers if name.startswith("x-")]


@attack(
    "gateway abuse",
    "have the secret sent to another host",
    "403: only hosts that agent.md names for it; nothing is resolved",
)
async def test_the_secret_goes_to_its_hosts_only(web: Rig, asked: HttpsServer) -> None:
    hosts = [
        *("evil.example", "git.test", f"git.test.:{asked.port}", f"127.0.0.1:{asked.port}"),
        *(f"{asked.host}.evil.example", f"{asked.host}@evil.example"),
        f"web.example:{web.canary.port}",
    ]
    with web.watched() as seen:
        answers = await web.ask([request(f"/{host}/acme/widget/x") for host in hosts], ROUTES_PORT)
        proxied = await web.ask(
            [
                request(f"https://{asked.host}/acme/widget/x"),
                request(f"http://{asked.host}/acme/widget/x"),
                request(asked.host, method="CONNECT"),
            ],
            ROUTES_PORT,
        )
    assert {status(answer) for answer in answers + proxied} <= {400, 403}, answers
    assert asked.requests == []
    assert seen.nothing_left


@attack(
    "gateway abuse",
    "send an Authorization, Cookie or Host of one's own beside the secret",
    "dropped: the server sees the gateway's header once, and its own name",
)
async def test_headers_about_who_one_is_are_ours(
    web: Rig, asked: HttpsServer, hub_secret: str
) -> None:
    own = ("Authorization: Bearer mine", "Cookie: session=mine", "X-Forwarded-For: 10.0.0.1")
    sent = request(f"/{asked.host}/acme/widget/x", *own).replace(b"127.0.0.1:8082", b"evil.example")
    with web.watched() as seen:
        (answer,) = await web.ask(sent, ROUTES_PORT)
    (received,) = asked.requests
    assert status(answer) == 200
    assert received.headers["authorization"] == f"Bearer {hub_secret}"
    assert received.headers["host"] == asked.host
    assert "mine" not in repr(received.headers)
    assert "x-forwarded-for" not in received.headers
    assert [event.kind for event in seen.events] == ["secret_used"]


@attack(
    "secret hunting",
    "ask a server that repeats the header it was shown: plain, encoded, in pieces",
    "the secret is taken out of headers and bodies on the way in, whatever the pieces",
)
async def test_a_server_that_repeats_the_secret_is_not_repeated(
    web: Rig, asked: HttpsServer, hub_secret: str
) -> None:
    def echo(exchange: Exchange) -> None:
        shown = exchange.headers["authorization"]
        text = "\n".join((shown, *shapes(hub_secret)[:2])).encode()
        pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
        exchange.say(200, {"x-echo": shown}, *pieces)

    asked.respond = echo
    (answer,) = await web.ask(request(f"/{asked.host}/acme/widget/x"), ROUTES_PORT)
    assert status(answer) == 200
    assert asked.requests[0].headers["authorization"].endswith(hub_secret)
    assert [shape for shape in shapes(hub_secret) if shape.encode() in answer] == []


@attack(
    "secret hunting",
    "ask for the repeated secret compressed or byte by byte (Range)",
    "neither header is passed on; a compressed answer is a 502",
)
async def test_an_answer_that_cannot_be_searched_is_not_passed_on(
    web: Rig, asked: HttpsServer, hub_secret: str
) -> None:
    path = f"/{asked.host}/acme/widget/x"
    await web.ask(request(path, "Accept-Encoding: gzip", "Range: bytes=0-3"), ROUTES_PORT)
    asked.respond = lambda exchange: exchange.say(
        200, {"content-encoding": "gzip"}, hub_secret.encode()
    )
    (answer,) = await web.ask(request(path), ROUTES_PORT)
    headers = asked.requests[0].headers
    assert (headers["accept-encoding"], "range" in headers) == ("identity", False)
    assert status(answer) == 502
    assert hub_secret.encode() not in answer


@attack(
    "secret hunting",
    "have the server redirect to another host, secret and all",
    "the redirect is passed back, not followed; a program that follows it goes without the secret",
)
async def test_a_redirect_does_not_take_the_secret_along(
    web: Rig, asked: HttpsServer, hub_secret: str
) -> None:
    there = f"http://web.example:{web.canary.port}/stolen"
    asked.respond = lambda exchange: exchange.say(302, {"location": there}, b"")
    with web.watched() as seen:
        said = await web.sh(f"curl -sSL http://127.0.0.1:8082/{asked.host}/acme/widget/x")
    assert said == "canary"
    (head,) = seen.heard
    assert b"/stolen" in head
    assert b"authorization" not in head.lower()
    assert hub_secret.encode() not in head


@attack(
    "gateway abuse",
    "turn a request with a secret into a tunnel (Upgrade)",
    "403; the server is not asked",
)
async def test_a_route_does_not_become_a_tunnel(web: Rig, asked: HttpsServer) -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
    answers = await web.ask(request(f"/{asked.host}/acme/widget/x", *upgrade), ROUTES_PORT)
    assert [status(answer) for answer in answers] == [403]
    assert asked.requests == []
