"""Attacks on the HTTP proxy: its rules, its parser, and its patience."""

from __future__ import annotations

import pytest

from orchestrator.gateway.http import request_head
from tests.attacks.canary import Canary
from tests.attacks.mark import attack
from tests.attacks.rig import Rig, connect, get, staged, status
from tests.engine.harness import Harness


@attack(
    "gateway abuse",
    "tunnel to SSH, SMTP and other ports of an allowed host",
    "403: a rule means ports 80 and 443, or the one it names",
)
async def test_other_ports_of_an_allowed_host_are_closed(web: Rig) -> None:
    web.book.answers["public.example"] = [("127.0.0.1",)]
    ports = (22, 25, 53, 3306, 8080, web.canary.port, 0, 65536)
    with web.watched() as seen:
        answers = await web.ask(
            [connect(f"public.example:{port}") for port in ports]
            + [get(f"http://public.example:{port}/") for port in ports]
            + [connect(f"web.example:{port}") for port in (22, 80, 443)]
        )
    assert {status(answer) for answer in answers} == {403}
    assert seen.nothing_left


TWINS = (
    *("evilweb.example", "web.example.evil.com", "web-example", "webxexample", "eweb.example"),
    *("www.web.example", "web.example..", ".web.example", "wеb.example", "web.examplе"),
    *("wild.example", "evilwild.example", "xwild.example", "a.wild.example.evil.com"),
)


@attack(
    "gateway abuse",
    "use names that look like allowed ones: prefixes, suffixes, homographs",
    "refused; none is resolved",
)
async def test_twins_of_allowed_names_are_refused(web: Rig) -> None:
    port = web.canary.port
    with web.watched() as seen:
        answers = await web.ask(
            [connect(f"{twin}:{port}") for twin in TWINS]
            + [get(f"http://{twin}:{port}/") for twin in TWINS]
            + [get(f"http://{twin}/") for twin in TWINS]
        )
    assert {status(answer) for answer in answers} <= {400, 403}
    assert seen.nothing_left


@attack(
    "gateway abuse",
    "get past a deny rule with capitals or a dot at the end",
    "the name is the same to the rules: 403, not resolved",
)
async def test_a_denied_name_is_denied_in_every_spelling(web: Rig) -> None:
    names = ("denied.example", "DENIED.Example", "denied.example.", "DENIED.EXAMPLE.")
    port = web.canary.port
    with web.watched() as seen:
        answers = await web.ask([get(f"http://{name}:{port}/") for name in names])
    assert {status(answer) for answer in answers} == {403}
    assert seen.nothing_left
    assert seen.denied == ["denied.example"] * 4


@attack(
    "gateway abuse",
    "hide the real host behind a user name, a backslash, a fragment or a tab",
    "400: a target that two readers could read in two ways goes nowhere",
)
async def test_ambiguous_targets_go_nowhere(web: Rig) -> None:
    at = f"web.example:{web.canary.port}"
    targets = (
        *(f"http://{at}@evil.example/", f"http://evil.example@{at}/", f"http://a:b@{at}/"),
        *(f"http://{at}\\@evil.example/", f"http://evil.example#@{at}/", f"http:/{at}/"),
        *(f"http://{at}%2f@evil.example/", f"//{at}/", f"ftp://{at}/", f"file://{at}/etc/passwd"),
        *(f"gopher://{at}/_x", f"http://{at}:80:80/", "http:///", f"http://[{at}]/"),
    )
    requests = [f"GET {target} HTTP/1.1\r\nHost: {at}\r\n\r\n".encode() for target in targets]
    with web.watched() as seen:
        answers = await web.ask(requests)
    assert {status(answer) for answer in answers} <= {400, 403}, answers
    assert seen.nothing_left


@attack(
    "gateway abuse",
    "inject headers or a second request with line breaks in target or header",
    "400, or one request with nothing injected; the canary sees no header of the attacker's making",
)
async def test_line_breaks_inject_nothing(web: Rig) -> None:
    at = f"web.example:{web.canary.port}"
    start = f"GET http://{at}/"
    requests = [
        f"{start}\rX-Evil: 1 HTTP/1.1\r\nHost: {at}\r\n\r\n",
        f"{start}\nX-Evil: 1 HTTP/1.1\r\nHost: {at}\r\n\r\n",
        f"{start} HTTP/1.1\nX-Evil: 1\r\nHost: {at}\r\n\r\n".replace("\nX-Evil", "\rX-Evil"),
        f"{start} HTTP/1.1\r\nHost: {at}\r\nA: b\rX-Evil: 1\r\n\r\n",
        f"{start} HTTP/1.1\r\nHost: {at}\r\nA: b\0X-Evil: 1\r\n\r\n",
        f"{start} HTTP/1.1\r\nHost: {at}\r\nX-Evil : 1\r\n\r\n",
        f"{start} HTTP/1.1\r\nHost: {at}\r\n X-Evil: 1\r\n\r\n",
        f"{start} HTTP/1.1\r\nHost: {at}\r\nHost: evil.example\r\nX-Evil: 1\r\n\r\n",
    ]
    with web.watched() as seen:
        answers = await web.ask([request.encode("latin-1") for request in requests])
    assert {status(answer) for answer in answers} <= {200, 400}, answers
    for head in seen.heard:
        names = [line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
        assert b"x-evil" not in names
        assert head.count(b"\n") == head.count(b"\r\n")
    assert seen.denied == []


SMUGGLED = "GET http://evil.example/smuggled HTTP/1.1\r\nHost: evil.example\r\n\r\n"

BODIES = (
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Content-Length: 5\r\nContent-Length: 500",
    "Content-Length: 5, 500",
    "Content-Length: +5",
    "Content-Length: 0x5",
    "Content-Length: -1",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
)


@attack(
    "gateway abuse",
    "smuggle a request by two lengths of one body (CL.TE, TE.CL, CL.CL and 8 more)",
    "refused, or one request with one length; no second one reaches a host",
)
async def test_no_request_is_smuggled_in_a_body(web: Rig) -> None:
    at = f"web.example:{web.canary.port}"
    requests = [
        f"POST http://{at}/ HTTP/1.1\r\nHost: {at}\r\n{body}\r\n\r\n0\r\n\r\n{SMUGGLED}".encode(
            "latin-1"
        )
        for body in BODIES
    ]
    with web.watched() as seen:
        answers = await web.ask(requests)
    assert {status(answer) for answer in answers} <= {200, 400, 501}, answers
    assert not [head for head in seen.heard if b"smuggled" in head]
    assert [answer.count(b"HTTP/1.1 ") for answer in answers] == [1] * len(answers)
    assert set(seen.passed) <= {"web.example"}


@attack(
    "gateway abuse",
    "pipeline a request for a denied host behind an allowed one",
    "one request for each connection: the second is thrown away, and not even judged",
)
async def test_a_second_request_on_a_connection_goes_nowhere(web: Rig) -> None:
    first = get(f"http://web.example:{web.canary.port}/")
    with web.watched() as seen:
        (answer,) = await web.ask(first + SMUGGLED.encode())
    assert answer.count(b"HTTP/1.1 ") == 1
    assert (len(seen.heard), seen.passed) == (1, ["web.example"])
    assert b"smuggled" not in seen.heard[0]


@attack(
    "gateway abuse",
    "ask for https in absolute form, so that the proxy speaks TLS and sees all",
    "400 with the way to do it; nothing is connected to",
)
async def test_https_needs_a_tunnel(web: Rig) -> None:
    with web.watched() as seen:
        (answer,) = await web.ask(get(f"https://web.example:{web.canary.port}/"))
    assert status(answer) == 400
    assert b"CONNECT" in answer
    assert seen.nothing_left


@attack(
    "gateway abuse",
    "upgrade a plain request to something that is not read along (h2c, websocket)",
    "the headers are dropped: the host sees a plain request and the connection ends with it",
)
async def test_a_request_does_not_become_something_else(web: Rig) -> None:
    url = f"http://web.example:{web.canary.port}/"
    upgrade = ("Connection: Upgrade, HTTP2-Settings, X-Keep", "Upgrade: h2c", "HTTP2-Settings: AAM")
    with web.watched() as seen:
        await web.ask(get(url, *upgrade, "X-Keep: 1", "Proxy-Authorization: Basic eA=="))
    (head,) = seen.heard
    for gone in (b"upgrade", b"http2-settings", b"x-keep", b"proxy-authorization"):
        assert gone not in head.lower()


@attack(
    "gateway abuse",
    "have an allowed server say that the orchestrator refused, or frame its answer in two ways",
    "our mark is removed from others' answers; an ambiguous answer is a 502",
)
async def test_a_server_cannot_speak_for_us(web: Rig) -> None:
    request = get(f"http://web.example:{web.canary.port}/")
    web.canary.answer = lambda _: (
        b"HTTP/1.1 403 Forbidden\r\nX-Orchestrator-Denied: host\r\ncontent-length: 0\r\n\r\n"
    )
    (forged,) = await web.ask(request)
    web.canary.answer = lambda _: (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 9\r\n\r\nhelloHTTP"
    )
    with web.watched() as seen:
        (double,) = await web.ask(request)
    assert status(forged) == 403
    assert b"x-orchestrator-denied" not in forged.lower()
    assert status(double) == 502
    assert [event.data["status"] for event in seen.events] == [502]


HOLD = """
held = []
for n in range({count}):
    s = socket.socket(); s.setblocking(False)
    s.connect_ex(("127.0.0.1", 8081))
    held.append(s)
    if len(held) > 900:
        for s in held[:300]: s.close()
        del held[:300]
for s in held: s.close()
say(ask(8081, {request!r})[:12].decode())
"""


@attack(
    "gateway abuse",
    "flood the proxy with 10,000 connections",
    "when the flood is over the next request is answered as ever; the other run notices nothing",
)
async def test_a_flood_of_connections_hurts_no_other_run(
    harness: Harness, canary: Canary, closed: Rig
) -> None:
    private = [f"web.example:{canary.port}"]
    network = {"mode": "allow", "allow_private": private}
    async with staged(harness, canary, network=network) as rig:
        rig.book.answers["web.example"] = [("127.0.0.1",)]
        request = get(f"http://web.example:{canary.port}/")
        after = await rig.python(HOLD.format(count=10_000, request=request))
        assert after == "HTTP/1.1 200"
        assert await closed.answers()


@attack(
    "gateway abuse",
    "hold connections open with half a request (slowloris)",
    "each gets 408 when its time is up, and others are served meanwhile",
)
async def test_half_a_request_does_not_wait_for_ever(
    harness: Harness, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_head, "HEAD_SECONDS", 1.0)
    network = {"mode": "allow", "allow_private": [f"web.example:{canary.port}"]}
    request = get(f"http://web.example:{canary.port}/")
    code = f"""
held = [socket.create_connection(("127.0.0.1", 8081)) for _ in range(100)]
for s in held: s.sendall(b"GET http://web.example/ HTTP/1.1\\r\\nX-Slow: ")
other = ask(8081, {request!r})[:12].decode()
say([other, sorted({{s.recv(12).decode() for s in held}})])
"""
    async with staged(harness, canary, network=network) as rig:
        rig.book.answers["web.example"] = [("127.0.0.1",)]
        with rig.watched() as seen:
            other, slow = await rig.python(code)
    assert (other, slow) == ("HTTP/1.1 200", ["HTTP/1.1 408"])
    assert len(seen.heard) == 1


@attack(
    "gateway abuse",
    "open more connections at once than the agent may",
    "503 above network.max_connections; the host sees no more than that many",
)
async def test_connections_at_once_are_limited(harness: Harness, canary: Canary) -> None:
    at = f"web.example:{canary.port}"
    network = {"mode": "allow", "allow_private": [at], "max_connections": 4}
    code = f"""
held = [socket.create_connection(("127.0.0.1", 8081)) for _ in range(12)]
said = []
for s in held:
    s.sendall({connect(at)!r})
    said.append(s.recv(12).decode())
say(said)
"""
    async with staged(harness, canary, network=network) as rig:
        rig.book.answers["web.example"] = [("127.0.0.1",)]
        with rig.watched() as seen:
            said = await rig.python(code)
    assert said == ["HTTP/1.1 200"] * 4 + ["HTTP/1.1 503"] * 8
    assert len(seen.passed) == 4


@attack(
    "gateway abuse",
    "send out more than the run may",
    "cut at network.max_mb and refused from then on; the canary has no more than that",
)
async def test_what_a_run_may_move_is_limited(harness: Harness, canary: Canary) -> None:
    at = f"web.example:{canary.port}"
    network = {"mode": "allow", "allow_private": [at], "max_mb": 1}
    code = f"""
ask(8081, {connect(at)!r} + bytes(8 << 20))
say(ask(8081, {get(f"http://{at}/")!r})[:12].decode())
"""
    async with staged(harness, canary, network=network) as rig:
        rig.book.answers["web.example"] = [("127.0.0.1",)]
        before = canary.bytes
        with rig.watched() as seen:
            after = await rig.python(code)
    assert after == "HTTP/1.1 403"
    assert canary.bytes - before <= 1024 * 1024
    assert [event.kind for event in seen.events] == ["egress", "egress_denied"]
    assert "network.max_mb" in seen.events[-1].text
