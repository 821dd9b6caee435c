"""Attacks on metadata services and on this machine: addresses in disguise, and names that turn."""

from __future__ import annotations

import secrets

import pytest

from orchestrator.domain.agent import Network
from orchestrator.gateway.egress.rules import EgressRules
from tests.attacks.canary import Canary, own_addresses
from tests.attacks.mark import attack
from tests.attacks.rig import Rig, connect, get, staged, status
from tests.engine.harness import Harness

METADATA = "169.254.169.254"

SPELLINGS = {
    "as it is": METADATA,
    "with a dot at its end": f"{METADATA}.",
    "as one number": "2852039166",
    "in octal": "0251.0376.0251.0376",
    "in hexadecimal": "0xa9fea9fe",
    "in mixed parts": "0xa9.254.0251.254",
    "with fewer parts": "169.254.43518",
    "with leading zeros": "169.254.169.0254",
    "as mapped IPv6": f"[::ffff:{METADATA}]",
    "as mapped IPv6 in hexadecimal": "[::ffff:a9fe:a9fe]",
    "as compatible IPv6": f"[::{METADATA}]",
    "by NAT64": "[64:ff9b::a9fe:a9fe]",
    "by 6to4": "[2002:a9fe:a9fe::1]",
    "with a zone": "[fe80::a9fe:a9fe%25eth0]",
    "in IPv6 of a cloud": "[fd00:ec2::254]",
    "in full-width digits": "１６９.254.169.254",
    "percent-encoded": "%31%36%39.254.169.254",
    "with a user in front": f"web.example@{METADATA}",
    "with a NUL": f"{METADATA}%00.web.example",
}


@attack(
    "metadata and rebinding",
    "fetch the metadata service, written in octal, as one number, mapped, by NAT64 and so on",
    "refused for GET and CONNECT; nothing is resolved or connected to",
)
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
async def test_the_metadata_service_is_refused_however_it_is_written(
    web: Rig, spelling: str
) -> None:
    with web.watched() as seen:
        answers = await web.ask(
            [
                get(f"http://{spelling}/latest/meta-data/iam/security-credentials/"),
                connect(f"{spelling}:80"),
                connect(f"{spelling}:443"),
            ]
        )
    assert {status(answer) for answer in answers} <= {400, 403}, answers
    assert seen.nothing_left


OWN = (
    *("127.0.0.1", "127.1", "0", "0.0.0.0", "localhost", "[::1]", "[::]", "[::ffff:127.0.0.1]"),
    *("2130706433", "0x7f000001", "017700000001", "localhost.localdomain", "127.0.0.1."),
)


@attack(
    "metadata and rebinding",
    "have the proxy connect to the orchestrator's own loopback, in 13 spellings",
    "refused; the canary on it hears nothing",
)
async def test_the_hosts_loopback_is_refused_however_it_is_written(web: Rig) -> None:
    port = web.canary.port
    targets = [*OWN, *(address for address in own_addresses() if address not in OWN)]
    with web.watched() as seen:
        answers = await web.ask(
            [get(f"http://{host}:{port}/") for host in targets]
            + [connect(f"{host}:{port}") for host in targets]
        )
    assert {status(answer) for answer in answers} <= {400, 403}, answers
    assert seen.nothing_left


CLOUDS = (
    *("metadata.google.internal", "metadata", "metadata.azure.internal", "instance-data"),
    *("instance-data.ec2.internal", "kubernetes.default.svc", "host.docker.internal"),
)


@attack(
    "metadata and rebinding",
    "fetch metadata services by their names",
    "403 unresolved, for an agent with a list and for one with `network: open` alike",
)
async def test_names_of_metadata_services_are_refused_unresolved(web: Rig) -> None:
    with web.watched() as seen:
        answers = await web.ask(
            [get(f"http://{name}/", "Metadata-Flavor: Google") for name in CLOUDS]
        )
    assert {status(answer) for answer in answers} == {403}
    assert seen.nothing_left
    assert seen.denied == [*CLOUDS]
    rules = EgressRules(Network(mode="open"))
    assert [name for name in CLOUDS if rules.name(name, 80).allowed] == []


TURNS = {
    "the metadata service": (METADATA,),
    "loopback": ("127.0.0.1",),
    "a private network": ("10.0.0.7",),
    "carrier-grade NAT": ("100.64.0.1",),
    "mapped IPv6": ("::ffff:10.0.0.7",),
    "NAT64 of a private address": ("64:ff9b::a00:7",),
    "6to4 of a private address": ("2002:a00:7::1",),
    "a unique local address": ("fd12:3456::1",),
    "multicast": ("224.0.0.251",),
    "a public and a private address at once": ("93.184.216.34", "10.0.0.7"),
}


@attack(
    "metadata and rebinding",
    "own an allowed name and point it at metadata, loopback, private networks, disguised or mixed",
    "403 after resolving, nothing is connected to; the record says which address",
)
@pytest.mark.parametrize("addresses", TURNS.values(), ids=TURNS)
async def test_an_allowed_name_leads_to_public_addresses_only(
    web: Rig, addresses: tuple[str, ...]
) -> None:
    name = f"{secrets.token_hex(4)}.wild.example"  # of one host, so many denials are told
    web.book.answers[name] = [addresses]
    with web.watched() as seen:
        answers = await web.ask([get(f"http://{name}/"), connect(f"{name}:443")])
    assert {status(answer) for answer in answers} == {403}
    assert (seen.asked, seen.passed, seen.heard) == ([name] * 2, [], [])
    assert seen.denied == [name] * 2
    assert all("address" in event.text for event in seen.events)


@attack(
    "metadata and rebinding",
    "point a name that may be private at the metadata service",
    "403: no name leads there, whatever agent.md says of the name",
)
async def test_a_name_that_may_be_private_does_not_lead_to_metadata(web: Rig) -> None:
    web.book.answers["turncoat.example"] = [(METADATA,)]
    with web.watched() as seen:
        (answer,) = await web.ask(get(f"http://turncoat.example:{web.canary.port}/"))
    assert status(answer) == 403
    assert (seen.passed, seen.heard, seen.denied) == ([], [], ["turncoat.example"])


@attack(
    "metadata and rebinding",
    "answer well the first time and with the metadata service the next (rebinding)",
    "each request is resolved once, judged and pinned: the first passes, the second is refused",
)
async def test_a_name_that_turns_is_judged_each_time(web: Rig) -> None:
    web.book.answers["turncoat.example"] = [("127.0.0.1",), (METADATA,)]
    request = get(f"http://turncoat.example:{web.canary.port}/")
    with web.watched() as seen:
        answers = await web.ask([request, request])
    assert [status(answer) for answer in answers] == [200, 403]
    assert seen.asked == ["turncoat.example"] * 2
    assert (len(seen.heard), seen.passed) == (1, ["turncoat.example"])


@attack(
    "metadata and rebinding",
    "turn between the check and the connection",
    "there is nothing between: one question to the resolver, and the answer is what is dialled",
)
async def test_what_was_judged_is_what_is_connected_to(web: Rig) -> None:
    web.book.answers["turncoat.example"] = [("127.0.0.1",), ("127.0.0.99",)]
    with web.watched() as seen:
        (answer,) = await web.ask(get(f"http://turncoat.example:{web.canary.port}/"))
    assert status(answer) == 200
    assert seen.asked == ["turncoat.example"]
    assert web.dialer.passed[-1] == ("turncoat.example", ("127.0.0.1",))
    assert len(seen.heard) == 1


@attack(
    "metadata and rebinding",
    "have an allowed host redirect to the metadata service",
    "the proxy follows nothing; curl's second request is refused like any other",
)
async def test_a_redirect_is_a_new_request(web: Rig) -> None:
    there = f"http://{METADATA}/latest/meta-data/"
    web.canary.answer = lambda _: (
        f"HTTP/1.1 302 Found\r\nlocation: {there}\r\ncontent-length: 0\r\n\r\n".encode()
    )
    with web.watched() as seen:
        said = await web.sh(f"curl -sSL -D - http://web.example:{web.canary.port}/")
    assert "302" in said
    assert "403" in said
    assert (len(seen.heard), seen.passed, seen.denied) == (1, ["web.example"], [METADATA])


@attack(
    "metadata and rebinding",
    "with `network: open`, own a public name and point it at the orchestrator's machine",
    "403: private, loopback and the machine's own addresses are closed to open networks as well",
)
async def test_an_open_network_is_open_to_the_public_only(harness: Harness, canary: Canary) -> None:
    async with staged(harness, canary, network="open") as rig:
        for number, address in enumerate((*own_addresses(), METADATA, "10.1.2.3", "::1")):
            name = f"public{number}.example.org"
            rig.book.answers[name] = [(address,)]
            with rig.watched() as seen:
                answers = await rig.ask([get(f"http://{name}/"), connect(f"{name}:443")])
            assert {status(answer) for answer in answers} == {403}, address
            assert (seen.passed, seen.heard, seen.denied) == ([], [], [name, name])
