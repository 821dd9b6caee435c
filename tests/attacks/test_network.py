"""Attacks on the network: there is none, whichever way one asks the kernel for it."""

from __future__ import annotations

import pytest

from orchestrator.domain.container import EGRESS_PORT, ROUTES_PORT
from tests.attacks.canary import own_addresses
from tests.attacks.mark import attack
from tests.attacks.rig import Rig, connect, get

NO_WAY = {"ENETUNREACH", "EHOSTUNREACH", "EADDRNOTAVAIL"}


@attack(
    "network",
    "connect to every address of the host, docker0 included",
    "ENETUNREACH; the canary on all addresses hears nothing",
)
async def test_no_address_of_the_host_can_be_connected_to(closed: Rig) -> None:
    outside = [address for address in own_addresses() if not address.startswith("127.")]
    with closed.watched() as seen:
        answers = await closed.tries(
            *(f"lambda: tcp({address!r}, {closed.canary.port})" for address in outside),
            *(f"lambda: udp({address!r}, {closed.canary.port})" for address in outside),
        )
    assert outside
    assert set(answers.values()) <= NO_WAY, answers
    assert seen.nothing_left


@attack(
    "network",
    "find the host's services on loopback",
    "ECONNREFUSED: loopback is the container's own; the canary hears nothing",
)
async def test_loopback_is_not_the_hosts(closed: Rig) -> None:
    port = closed.canary.port
    with closed.watched() as seen:
        answers = await closed.tries(
            f"lambda: tcp('127.0.0.1', {port})",
            f"lambda: tcp('127.0.0.2', {port})",
            f"lambda: tcp('0.0.0.0', {port})",
            f"lambda: tcp('::1', {port}, socket.AF_INET6)",
            f"lambda: tcp('::ffff:127.0.0.1', {port}, socket.AF_INET6)",
        )
        await closed.tries(f"lambda: udp('127.0.0.1', {port})")
    assert set(answers.values()) <= {"ECONNREFUSED", *NO_WAY}, answers
    assert seen.nothing_left


@attack(
    "network",
    "connect to public addresses, past the proxy",
    "ENETUNREACH over IPv4 and IPv6; there is nothing but the loopback interface",
)
async def test_nothing_outside_can_be_connected_to_directly(allowed: Rig) -> None:
    answers = await allowed.tries(
        "lambda: tcp('192.0.2.1', 80)",
        "lambda: tcp('198.51.100.1', 443)",
        "lambda: tcp('2001:db8::1', 80, socket.AF_INET6)",
        "lambda: udp('192.0.2.1', 53)",
        "lambda: udp('224.0.0.1', 9999)",
        "lambda: udp('255.255.255.255', 9999)",
        "lambda: udp('ff02::1', 9999, family=socket.AF_INET6)",
    )
    interfaces = await allowed.python("say([name for _, name in socket.if_nameindex()])")
    assert set(answers.values()) <= {*NO_WAY, "EACCES"}, answers
    assert interfaces == ["lo"]


@attack(
    "network",
    "unset the proxy variables and try again",
    "no name resolves and nothing connects; the canary hears nothing",
)
async def test_going_around_the_proxy_leads_nowhere(web: Rig) -> None:
    url = f"http://web.example:{web.canary.port}/"
    with web.watched() as seen:
        through = await web.sh(f"curl -s {url}")
    with web.watched() as around:
        said = await web.sh(
            f"curl -sS --noproxy '*' {url}; env -u http_proxy -u HTTP_PROXY "
            f"-u all_proxy -u ALL_PROXY curl -sS {url}"
        )
    assert (through, len(seen.heard)) == ("canary", 1)
    assert said.count("Could not resolve host") == 2, said
    assert around.nothing_left


RAW = {
    "ICMP, raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
    "ICMP, for ping": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)",
    "IP with headers of one's own": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)",
    "all packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)",
    "SCTP": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)",
}


@attack(
    "network",
    "open raw, packet and ping sockets",
    "EPERM from the seccomp profile; nothing is sent",
)
async def test_raw_sockets_cannot_be_made(closed: Rig) -> None:
    answers = await closed.tries(*(f"lambda: {made}" for made in RAW.values()))
    assert set(answers.values()) == {"EPERM"}, answers


@attack(
    "network",
    "reach the hypervisor or the host by AF_VSOCK",
    "EPERM; the socket does not come to be",
)
async def test_vsock_is_closed(closed: Rig) -> None:
    answers = await closed.tries(*(f"lambda: socket.socket(40, {kind})" for kind in (1, 2, 5)))
    assert set(answers.values()) == {"EPERM"}, answers


@attack(
    "network",
    "load kernel modules by way of rare socket families",
    "EPERM for all 40 families but unix, inet, inet6 and route netlink",
)
async def test_rare_families_are_closed(closed: Rig) -> None:
    told = await closed.python(
        "say({f: attempt(lambda: socket.socket(f, k)) for f in range(3, 46)"
        " if f not in (10, 16) for k in (1, 2, 3)})"
    )
    assert set(told.values()) == {"EPERM"}, told


ADD_LINK = """
import fcntl
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
name = struct.pack("HH", 9, 3) + b"evil\\0" + bytes(3)
kind = struct.pack("HH", 10, 1) + b"dummy\\0" + bytes(2)
info = struct.pack("HH", 4 + len(kind), 18) + kind
body = struct.pack("BBHiII", 0, 0, 0, 0, 0, 0) + name + info
s.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
answer = s.recv(4096)
code = -struct.unpack("i", answer[16:20])[0]
def up():
    with socket.socket() as t:
        fcntl.ioctl(t, 0x8914, struct.pack("16sH", b"lo", 1 | 64 | 256) + bytes(22))
say([errno.errorcode.get(code, code), attempt(up), [n for _, n in socket.if_nameindex()]])
"""


@attack(
    "network",
    "make a network interface by netlink or ioctl",
    "EPERM; lo stays the only one",
)
async def test_no_interface_can_be_made(closed: Rig) -> None:
    assert await closed.python(ADD_LINK) == ["EPERM", "EPERM", ["lo"]]


@attack(
    "network",
    "make a user and network namespace, to be root there",
    "EPERM for unshare, setns and clone; ENOSYS for clone3",
)
async def test_no_namespace_can_be_made(closed: Rig) -> None:
    answers = await closed.tries(
        "c('unshare', 0x10000000)",
        "c('unshare', 0x50000000)",
        "c('setns', os.open('/proc/self/ns/net', 0), 0x40000000)",
        "syscall(56, 0x50000000 | 17, 0, 0, 0, 0)",
    )
    clone3 = await closed.tries("syscall(435, None, 0)")
    assert set(answers.values()) == {"EPERM"}, answers
    assert set(clone3.values()) == {"ENOSYS"}


@attack(
    "network",
    "use io_uring, whose sockets no filter sees",
    "EPERM for all three of its calls",
)
async def test_io_uring_is_closed(closed: Rig) -> None:
    answers = await closed.tries(*(f"syscall({number}, 1, None)" for number in (425, 426, 427)))
    assert set(answers.values()) == {"EPERM"}, answers


@attack(
    "network",
    "connect to the host's abstract unix sockets",
    "ECONNREFUSED: they belong to a network namespace; the canary's hears nothing",
)
async def test_abstract_sockets_of_the_host_are_not_there(closed: Rig) -> None:
    name = f"\0canary-{closed.canary.port}"
    with closed.watched() as seen:
        answers = await closed.tries(f"lambda: socket.socket(socket.AF_UNIX).connect({name!r})")
    assert set(answers.values()) == {"ECONNREFUSED"}, answers
    assert seen.nothing_left


@attack(
    "network",
    "use the proxy and the routes of an agent that has no network",
    "connections to both ports are reset, with no answer and no name resolved",
)
@pytest.mark.parametrize("port", [EGRESS_PORT, ROUTES_PORT])
async def test_an_agent_without_a_network_has_no_proxy(closed: Rig, port: int) -> None:
    with closed.watched() as seen:
        answers = await closed.ask(
            [get("http://web.example/"), connect("web.example:443"), b"GET / HTTP/1.1\r\n\r\n"],
            port,
        )
    assert answers == [b"", b"", b""]
    assert seen.nothing_left
