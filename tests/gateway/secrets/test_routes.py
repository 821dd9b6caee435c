"""Requests that a secret is added to, on the way to a real HTTPS server."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import resource
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from orchestrator.domain.agent import Network, Secret
from orchestrator.errors import AuthorError
from orchestrator.gateway.doorway import DENIALS_PER_HOST
from orchestrator.gateway.egress.dial import Addresses, Denied, Dialer
from orchestrator.gateway.egress.rules import EgressRules
from orchestrator.gateway.secrets.route_rules import Refused, address_of, find_route
from orchestrator.gateway.secrets.routes import RouteAccess, RouteSeen
from orchestrator.wire.streams import Stream
from tests.gateway.near import Answer, Client, connection
from tests.gateway.secrets.git_server import Exchange, HttpsServer, free_port, https_server

TOKEN = "t0k3n/with+signs-that-nobody-inside-sees"

PUSHED = 100 * 1024 * 1024
GROWTH = 48 * 1024
"""KiB that the whole process may grow by while that much passes."""


def allow_all(_host: str, _port: int, _addresses: Addresses) -> None:
    pass


def secret(host: str, **fields: object) -> Secret:
    about: dict[str, object] = {"name": "token", "hosts": (host,), "paths": ("/repos/**",)}
    return Secret.model_validate(about | fields)


class Stage:
    """A server that answers as a test says, and accesses to it."""

    def __init__(self, https: HttpsServer) -> None:
        self.https = https
        self.seen: list[RouteSeen] = []

    def access(self, *secrets: Secret, **fields: object) -> RouteAccess:
        kept = secrets or (secret(self.https.host, methods=("GET", "HEAD", "POST"), **fields),)
        values = {each.name: SecretStr(TOKEN) for each in kept}
        return RouteAccess(kept, values, self.https.dialer(), self.seen.append, vet=allow_all)

    def url(self, path: str) -> str:
        return f"/{self.https.host}{path}"


Serve = Callable[[Callable[[Exchange], None]], Stage]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(respond: Callable[[Exchange], None]) -> Stage:
            return Stage(stack.enter_context(https_server(tmp_path / "certificate", respond)))

        yield start


async def ask(
    access: RouteAccess,
    target: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: bytes = b"",
) -> Answer:
    async with connection(access.service) as stream:
        return await Client(stream).ask(method, target, headers, body)


async def read_on(stream: Stream) -> None:
    while await stream.read():
        pass


def hello(exchange: Exchange) -> None:
    exchange.received.body = b"".join(exchange.body())
    exchange.say(200, {"X-Kind": "greeting"}, b"hello")


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({}, "authorization", f"Bearer {TOKEN}"),
        (
            {"scheme": "basic", "username": "bot"},
            "authorization",
            "Basic " + base64.b64encode(f"bot:{TOKEN}".encode()).decode(),
        ),
        ({"scheme": "plain", "header": "X-Api-Key"}, "x-api-key", TOKEN),
    ],
)
async def test_the_secret_is_added_outside_in_the_header_that_agent_md_names(
    serve: Serve, fields: dict[str, object], name: str, value: str
) -> None:
    stage = serve(hello)

    answer = await ask(stage.access(**fields), stage.url("/repos/acme?x=1"), "POST", {}, b"asked")

    assert (answer.status, answer.body, answer.headers["x-kind"]) == (200, b"hello", "greeting")
    (received,) = stage.https.requests
    assert (received.method, received.path, received.body) == ("POST", "/repos/acme?x=1", b"asked")
    assert received.headers[name] == value
    assert received.headers["host"] == stage.https.host
    (seen,) = stage.seen
    assert seen.model_dump(exclude={"bytes"}) == {
        "secret": "token",
        "host": stage.https.host,
        "method": "POST",
        "path": "/repos/acme",
        "allowed": True,
        "status": 200,
        "why": "",
    }
    assert seen.bytes > 0


async def test_what_the_container_says_of_itself_does_not_get_through(serve: Serve) -> None:
    stage = serve(hello)
    said = {
        "authorization": "Bearer mine",
        "cookie": "a=b",
        "proxy-authorization": "Basic eDp5",
        "x-forwarded-for": "10.0.0.1",
        "forwarded": "for=10.0.0.1",
        "x-http-method-override": "DELETE",
        "x-original-url": "/admin",
        "x_original_url": "/admin",
        "x_http_method_override": "DELETE",
        "range": "bytes=0-3",
        "connection": "x-hop",
        "x-hop": "1",
        "accept-encoding": "gzip",
        "accept": "text/plain",
    }

    await ask(stage.access(), stage.url("/repos/acme"), headers=said)

    (received,) = stage.https.requests
    assert received.headers == {
        "host": stage.https.host,
        "accept": "text/plain",
        "accept-encoding": "identity",
        "authorization": f"Bearer {TOKEN}",
        "connection": "close",
    }


REFUSED = [
    ("GET", "/api.test/repos", "below, and not the thing itself"),
    ("DELETE", "/api.test/repos/acme", "another method"),
    ("get", "/api.test/repos/acme", "a method is written in capitals"),
    ("TRACE", "/api.test/repos/acme", "it would repeat the secret"),
    ("GET", "/api.test/reposx/acme", "a twin"),
    ("GET", "/api.test/repos%78/acme", "a twin in disguise"),
    ("GET", "/api.test/repos/../admin", "up"),
    ("GET", "/api.test/repos/./acme", "nowhere"),
    ("GET", "/api.test/repos/%2e%2e/admin", "up"),
    ("GET", "/api.test/repos/.%2E/admin", "up"),
    ("GET", "/api.test/repos/..;x=1/admin", "up, for some"),
    ("GET", "/api.test/repos/%EF%BC%8E%EF%BC%8E/admin", "up, for some"),
    ("GET", "/api.test/repos/..%20/admin", "up, for some"),
    ("GET", "/api.test/repos/a%2F..%2F..%2Fadmin", "an encoded slash"),
    ("GET", "/api.test/repos/a%5C..%5Cadmin", "an encoded backslash"),
    ("GET", "/api.test/repos/a\\..\\admin", "a backslash"),
    ("GET", "/api.test/repos/%252e%252e/admin", "encoded twice"),
    ("GET", "/api.test/repos/a%3F..", "an encoded question mark"),
    ("GET", "/api.test/repos/a%EF%BC%9Fx", "one for some"),
    ("GET", "/api.test/repos/a%23x", "an encoded number sign"),
    ("GET", "/api.test/repos/.%E2%80%8B./admin", "up, for those who leave out what is not seen"),
    ("GET", "/api.test/repos/acme%C2%AD", "a hyphen that is not seen"),
    ("GET", "/api.test/repos/a%00", "NUL"),
    ("GET", "/api.test/repos/a%0d%0aX-Evil:1", "a line break"),
    ("GET", "/api.test/repos/%ff", "not UTF-8"),
    ("GET", "/api.test/repos/%zz", "not encoded"),
    ("GET", "/api.test/repos//acme", "an empty segment"),
    ("GET", "/api.test//repos/acme", "an empty segment"),
    ("GET", "//api.test/repos/acme", "no host"),
    ("GET", "/api.test:443/repos/acme", "not as it is written"),
    ("GET", "/evil.test/repos/acme", "another host"),
    ("GET", "/api.test.evil.test/repos/acme", "another host"),
    ("GET", "/api.test@evil.test/repos/acme", "another host"),
    ("GET", "/api.test%2erepos/acme", "another host"),
    ("GET", "/api.test/repos/acme#x", "a fragment"),
    ("GET", "http://api.test/repos/acme", "absolute-form"),
    ("GET", "https://api.test/repos/acme", "absolute-form"),
    ("CONNECT", "api.test:443", "a tunnel"),
    ("OPTIONS", "*", "everything"),
    ("GET", "/", "no host at all"),
]


@pytest.mark.parametrize(("method", "target", "why"), REFUSED)
def test_what_agent_md_does_not_name_is_refused(method: str, target: str, why: str) -> None:
    kept = (secret("api.test"), secret("other.test", name="second", paths=("/admin",)))
    with pytest.raises(Refused):
        find_route(kept, method, target)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/", "", True),
        ("/", "/", True),
        ("/", "/a", False),
        ("/**", "/", False),
        ("/**", "/a/b/c", True),
        ("/a", "/a", True),
        ("/a", "/a/", True),
        ("/a/", "/a", True),
        ("/a", "/a/b", False),
        ("/a/*/c", "/a/b/c", True),
        ("/a/*/c", "/a/b/b/c", False),
        ("/a/*", "/a", False),
        ("/a/**", "/a/b/c/", True),
        ("/a/**", "/a/", False),
        ("/a b", "/a%20b", None),
        ("/a.b/**", "/aXb/c", False),
        ("/a+b", "/a%2Bb", True),
        ("/A", "/a", False),
    ],
)
def test_paths_are_compared_segment_by_segment(pattern: str, path: str, fits: bool | None) -> None:
    if fits is None:
        with pytest.raises(ValueError, match="must be a path"):
            secret("api.test", paths=(pattern,))
        return
    kept = (secret("api.test", paths=(pattern,)),)
    if fits:
        route = find_route(kept, "GET", f"/API.test{path}?q=/../")
        assert (route.host, route.target) == ("api.test", f"{path or '/'}?q=/../")
    else:
        with pytest.raises(Refused, match=r"agent\.md does not allow GET of /"):
            find_route(kept, "GET", f"/api.test{path}")


def test_of_several_secrets_the_first_is_used_that_is_for_the_request() -> None:
    read = secret("api.test", name="read")
    write = secret("api.test", name="write", methods=("POST",), paths=("/repos/acme/**",))
    both = (read, write)
    assert find_route(both, "GET", "/api.test/repos/acme/x").secret.name == "read"
    assert find_route(both, "POST", "/api.test/repos/acme/x").secret.name == "write"


PARTS = (
    *("repos", "acme", "admin", "..", ".", "/", "//", "%2e", "%2E%2e", "%2f", "%5c", "\\", "?"),
    *("%25", "2e", ";", "%3b", "%00", "%20", "%c0%ae", "%EF%BC%8F", "a"),
)


@given(parts=st.lists(st.sampled_from(PARTS), max_size=10))
def test_no_spelling_of_a_path_leaves_what_is_allowed(parts: list[str]) -> None:
    target = "/api.test/repos/acme/" + "".join(parts)
    try:
        route = find_route((secret("api.test", paths=("/repos/acme/**",)),), "GET", target)
    except Refused:
        return
    path = route.target.partition("?")[0]
    for _ in range(3):  # however often somebody decodes it
        assert posixpath.normpath(path.replace("\\", "/")).startswith("/repos/acme/")
        path = unquote(path)


async def test_a_refusal_says_what_is_missing_and_nothing_is_connected_to() -> None:
    seen: list[RouteSeen] = []

    async def resolve(host: str, _: int) -> Addresses:
        raise AssertionError(host)

    access = RouteAccess(
        (secret("api.test"),),
        {"token": SecretStr(TOKEN)},
        Dialer(resolve=resolve),
        seen.append,
        vet=allow_all,
    )

    answers = [await ask(access, f"/api.test/{path}") for path in ("repos", "repos/..", "x")]
    posted = await ask(access, "/api.test/repos/acme", "POST", {}, b"x" * 100_000)
    upgrading = {"upgrade": "websocket", "connection": "upgrade"}
    upgraded = await ask(access, "/api.test/repos/acme", headers=upgrading)

    for answer in (*answers, posted, upgraded):
        assert (answer.status, answer.headers["x-orchestrator-denied"]) == (403, "route")
        assert TOKEN.encode() not in answer.body
    assert b"agent.md does not allow POST of /repos/acme on api.test, only GET, HEAD" in posted.body
    assert [each.allowed for each in seen[:1]] == [False]
    assert seen[0].path == "/repos"
    assert "refused by the orchestrator" in seen[0].why


async def test_a_host_whose_address_will_not_do_is_refused(serve: Serve) -> None:
    stage = serve(hello)
    looked_at: list[tuple[str, int, Addresses]] = []

    def vet(host: str, port: int, addresses: Addresses) -> None:
        looked_at.append((host, port, addresses))
        raise Denied(f"{host} has a private address")

    kept = secret(stage.https.host)
    access = RouteAccess(
        (kept,), {"token": SecretStr(TOKEN)}, stage.https.dialer(), stage.seen.append, vet=vet
    )

    answer = await ask(access, stage.url("/repos/acme"))

    assert (answer.status, answer.headers["x-orchestrator-denied"]) == (403, "route")
    assert b"has a private address" in answer.body
    assert looked_at == [("git.test", stage.https.port, ("127.0.0.1",))]
    assert stage.https.requests == []
    assert [(each.allowed, each.secret) for each in stage.seen] == [(False, "token")]


async def test_who_cannot_be_reached_or_believed_gets_no_secret(serve: Serve) -> None:
    stage = serve(hello)
    nobody = secret(f"git.test:{free_port()}", name="nobody")
    impostor = secret(f"impostor.test:{stage.https.port}", name="impostor")
    access = stage.access(nobody, impostor)

    unreachable = await ask(access, f"/{nobody.hosts[0]}/repos/acme")
    forged = await ask(access, f"/{impostor.hosts[0]}/repos/acme")

    for answer in (unreachable, forged):
        assert answer.status == 502
        assert "x-orchestrator-denied" not in answer.headers
        assert b"the orchestrator got no answer" in answer.body
    assert stage.https.requests == []
    assert [(each.allowed, each.status) for each in stage.seen] == [(True, 502), (True, 502)]


async def test_a_server_that_repeats_the_secret_is_not_repeated(serve: Serve) -> None:
    shown = f"you said Bearer {TOKEN}, or {base64.b64encode(TOKEN.encode()).decode()}.".encode()

    def parrot(exchange: Exchange) -> None:
        pieces = [shown[at : at + 7] for at in range(0, len(shown), 7)]
        exchange.say(200, {"X-Said": TOKEN, "Set-Cookie": "session=1"}, *pieces)

    stage = serve(parrot)
    async with connection(stage.access().service) as stream:
        client = Client(stream)
        answer = await client.ask("GET", stage.url("/repos/acme"))

    assert TOKEN.encode() not in client.raw
    assert answer.headers["x-said"] == "*" * len(TOKEN)
    assert "set-cookie" not in answer.headers
    assert answer.body.startswith(b"you said Bearer ***")
    assert len(answer.body) == len(shown)
    assert answer.body.rstrip(b"=.").endswith(b"*")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_status_line_that_repeats_the_secret_is_not_repeated(
    serve: Serve, method: str
) -> None:
    def parrot(exchange: Exchange) -> None:
        exchange.send_response(200, f"OK {TOKEN}")
        exchange.send_header("Content-Length", "0")
        exchange.end_headers()

    stage = serve(parrot)
    async with connection(stage.access().service) as stream:
        client = Client(stream)
        assert (await client.ask(method, stage.url("/repos/acme"))).status == 200
    assert TOKEN.encode() not in client.raw


async def test_a_header_whose_name_is_the_secret_is_dropped(serve: Serve) -> None:
    token = "Ghp-Some-Capitals-1234"
    stage = serve(lambda exchange: exchange.say(200, {f"X-{token}": "1", "X-Kind": "2"}, b"hello"))
    kept = secret(stage.https.host)
    values = {"token": SecretStr(token)}
    access = RouteAccess((kept,), values, stage.https.dialer(), vet=allow_all)
    async with connection(access.service) as stream:
        client = Client(stream)
        answer = await client.ask("GET", stage.url("/repos/acme"))
    assert (answer.status, answer.headers["x-kind"]) == (200, "2")
    assert token.lower().encode() not in client.raw.lower()


async def test_a_compressed_answer_is_not_passed_on(serve: Serve) -> None:
    stage = serve(lambda exchange: exchange.say(200, {"Content-Encoding": "gzip"}, b"\x1f\x8b"))

    answer = await ask(stage.access(), stage.url("/repos/acme"))

    assert answer.status == 502
    assert b"compresses its answer" in answer.body


@pytest.mark.parametrize(
    ("location", "led"),
    [
        ("https://{host}/repos/b?x=1", "http://127.0.0.1:8082/{host}/repos/b?x=1"),
        ("//{host}/repos/b", "http://127.0.0.1:8082/{host}/repos/b"),
        ("/repos/b", "/{host}/repos/b"),
        ("b", "b"),
        ("https://elsewhere.test/repos/b", "https://elsewhere.test/repos/b"),
        ("http://{host}/repos/b", "http://{host}/repos/b"),
        ("https://x:y@{host}/repos/b", "https://x:y@{host}/repos/b"),
        ("https://[/", "https://[/"),
    ],
)
async def test_a_redirect_to_a_host_with_a_secret_leads_through_here_again(
    serve: Serve, location: str, led: str
) -> None:
    stage = serve(
        lambda exchange: exchange.say(302, {"Location": location.format(host=stage.https.host)})
    )
    answer = await ask(stage.access(), stage.url("/repos/a"))
    assert (answer.status, answer.headers["location"]) == (302, led.format(host=stage.https.host))


async def test_lengths_survive_and_a_head_has_no_body(serve: Serve) -> None:
    stage = serve(hello)
    got = await ask(stage.access(), stage.url("/repos/a"))
    looked = await ask(stage.access(), stage.url("/repos/a"), "HEAD")
    assert (got.headers["content-length"], got.body) == ("5", b"hello")
    assert (looked.headers["content-length"], looked.body) == ("5", b"")


async def test_a_large_push_and_a_large_answer_pass_in_little_memory(serve: Serve) -> None:
    piece = bytes(range(256)) * 256

    def count(exchange: Exchange) -> None:
        digest = hashlib.sha256()
        for data in exchange.body():
            digest.update(data)
        exchange.received.body = digest.hexdigest().encode()
        exchange.say(200, {}, sized=False)
        for _ in range(PUSHED // len(piece)):
            exchange.wfile.write(piece)

    stage = serve(count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent, got = hashlib.sha256(), hashlib.sha256()
    http = h11.Connection(h11.CLIENT)
    headers = [("host", "127.0.0.1"), ("content-length", str(PUSHED))]
    async with connection(stage.access().service) as stream:
        request = h11.Request(method="POST", target=stage.url("/repos/acme"), headers=headers)
        await stream.write(http.send(request) or b"")
        for _ in range(PUSHED // len(piece)):
            await stream.write(http.send(h11.Data(data=piece)) or b"")
            sent.update(piece)
        http.send(h11.EndOfMessage())
        while not isinstance(event := http.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                http.receive_data(await stream.read())
            elif isinstance(event, h11.Data):
                got.update(event.data)

    assert stage.https.requests[0].body.decode() == sent.hexdigest() == got.hexdigest()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH
    assert stage.seen[0].bytes > 2 * PUSHED


async def test_when_the_run_ends_what_is_under_way_ends_and_nothing_begins(serve: Serve) -> None:
    def never(exchange: Exchange) -> None:
        exchange.say(200, {}, b"begun", sized=False)
        exchange.rfile.read()  # until the connection ends

    stage = serve(never)
    access = stage.access()
    async with connection(access.service) as stream:
        client = Client(stream)
        await client.send("GET", stage.url("/repos/acme"), {}, b"")
        assert b"200" in await stream.read()
        access.revoke()
        with pytest.raises(OSError, match="reset"):
            await read_on(stream)
    answer = await ask(access, stage.url("/repos/acme"))

    assert answer.status == 403
    assert b"the run has ended" in answer.body
    assert len(stage.https.requests) == 1
    assert [each.status for each in stage.seen] == [499, 403]


async def test_whoever_goes_on_being_refused_fills_no_record(serve: Serve) -> None:
    stage = serve(hello)
    access = stage.access()
    for _ in range(DENIALS_PER_HOST + 5):
        assert (await ask(access, stage.url("/admin"))).status == 403
    assert (await ask(access, stage.url("/repos/acme"))).status == 200
    assert [each.allowed for each in stage.seen] == [*([False] * DENIALS_PER_HOST), True]


async def test_a_listener_that_fails_does_not_fail_the_request(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: RouteSeen) -> None:
        raise RuntimeError("no room")

    stage = serve(hello)
    access = stage.access()
    access._observer._on_seen = fails
    assert (await ask(access, stage.url("/repos/acme"))).status == 200
    assert "could not be recorded" in caplog.text
    assert TOKEN not in caplog.text + repr(access)


@pytest.mark.parametrize(("private", "status"), [((), 403), (("git.test:{port}",), 200)])
async def test_a_private_address_is_for_hosts_that_agent_md_says_are_private(
    serve: Serve, private: tuple[str, ...], status: int
) -> None:
    stage = serve(hello)
    kept = secret(stage.https.host)
    inside = tuple(each.format(port=stage.https.port) for each in private)
    rules = EgressRules(Network(mode="allow", allow=kept.hosts, allow_private=inside))
    access = RouteAccess(
        (kept,),
        {"token": SecretStr(TOKEN)},
        stage.https.dialer(),
        vet=lambda host, port, addresses: rules.vet(host, port)(addresses),
        is_direct=lambda host, port: rules.name(host, port).private,
    )

    answer = await ask(access, stage.url("/repos/acme"))

    assert answer.status == status
    assert bool(stage.https.requests) == (status == 200)


def test_a_header_that_is_not_for_the_host_carries_no_secret() -> None:
    dialer = Dialer(ssl_context=ssl.create_default_context())
    for header in ("Host", "Content-Length", "Transfer-Encoding"):
        with pytest.raises(ValueError, match=header):
            secret("api.test", header=header)
    kept = secret("api.test", header="Proxy-Authorization")
    with pytest.raises(AuthorError, match="Proxy-Authorization"):
        RouteAccess((kept,), {"token": SecretStr(TOKEN)}, dialer, vet=allow_all)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("API.test", ("api.test", 443)),
        ("api.test:8443", ("api.test", 8443)),
        ("[::1]:8443", ("::1", 8443)),
        ("[::1]", ("::1", 443)),
        ("::1", ("::1", 443)),
        ("10.0.0.1:8443", ("10.0.0.1", 8443)),
    ],
)
def test_a_host_is_reached_on_443_unless_a_port_is_written(
    host: str, address: tuple[str, int]
) -> None:
    assert address_of(host) == address
