"""Who may be talked to: names before they are resolved, addresses after."""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.domain.agent import Network
from orchestrator.gateway.egress.rules import EgressRules


def rules(**fields: object) -> EgressRules:
    fields.setdefault("mode", "allow")
    return EgressRules(Network.model_validate(fields), is_own=lambda _: False)


OPEN = rules(mode="open")

PUBLIC = "93.184.216.34"


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "EXAMPLE.org.", 443, True),
        ("Example.ORG", "example.org", 443, True),
        ("example.org", "example.org", 8443, False),
        ("example.org", "example.org", 22, False),
        ("example.org", "www.example.org", 443, False),
        ("example.org", "evilexample.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
        ("example.org", "example.org..", 443, False),
        ("example.org:8443", "example.org", 8443, True),
        ("example.org:8443", "example.org", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("*.example.org", ".example.org", 443, False),
        ("*.example.org:8080", "www.example.org", 8080, True),
        ("_dmarc.example.org", "_dmarc.example.org", 443, True),
        ("example.org", "exämple.org", 443, False),
        ("example.org", "example.org\r\nx: y", 443, False),
        ("example.org", "user@example.org", 443, False),
        ("example.org", "", 443, False),
        ("example.org", "example.org", 0, False),
    ],
)
def test_a_rule_means_just_what_it_says(rule: str, host: str, port: int, allowed: bool) -> None:
    assert rules(allow=[rule]).name(host, port).allowed is allowed


def test_a_denial_says_what_was_denied_and_what_is_missing() -> None:
    verdict = rules(allow=["example.org"]).name("A.Example", 443)
    assert verdict.host == "a.example"
    assert verdict.why == (
        "a.example:443 blocked: not under network.allow in agent.md; retrying will not help"
    )
    other_port = rules(allow=["example.org"]).name("example.org", 8443)
    assert other_port.why.startswith("example.org:8443 blocked: not under network.allow")


def test_an_allowed_name_tells_its_rule() -> None:
    verdict = rules(allow=["a.example", "*.example.org"]).name("www.example.org", 443)
    assert (verdict.allowed, verdict.rule, verdict.private) == (True, "*.example.org", False)
    assert OPEN.name("example.org", 80).rule == "open"


def test_without_a_network_nothing_is_allowed() -> None:
    verdict = rules(mode="none").name("example.org", 443)
    assert not verdict.allowed
    assert "this agent has no network" in verdict.why


def test_deny_wins_over_everything() -> None:
    judge = rules(
        allow=["*.example.org"],
        allow_private=["db.example.org", "10.0.0.0/8"],
        deny=["db.example.org", "10.1.0.0/16", "*.bad.example.org:443"],
    )
    assert judge.name("db.example.org", 443).rule == "db.example.org"
    assert not judge.name("db.example.org", 80).allowed
    assert not judge.name("x.bad.example.org", 443).allowed
    assert judge.name("x.bad.example.org", 80).allowed
    assert judge.name("10.2.0.1", 80).allowed
    assert not judge.name("10.1.0.1", 80).allowed
    assert judge.addresses("a.example.org", 443, ["10.2.0.1"]).allowed
    assert not judge.addresses("a.example.org", 443, ["10.1.0.1"]).allowed
    assert not rules(mode="open", deny=["93.184.0.0/16"]).addresses("a.org", 443, [PUBLIC]).allowed


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("example.org", 443, True),
        ("example.org", 8443, False),
        ("localhost", 80, False),
        ("db", 80, False),
        ("printer.local", 80, False),
        ("metadata.google.internal", 80, False),
        (PUBLIC, 443, False),
    ],
)
def test_open_means_public_names_on_the_usual_ports(host: str, port: int, allowed: bool) -> None:
    assert OPEN.name(host, port).allowed is allowed


@pytest.mark.parametrize(
    "literal",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "0x7f000001", "0177.1", "127.0.0.1."),
        *(
            "0",
            "0x",
            "1.2.3.4",
            "example.1",
            "[::1]",
            "::1",
            "[::ffff:127.0.0.1]",
            "[fe80::1%eth0]",
        ),
        *("[127.0.0.1]", "127.0.0.1%lo", "１２７.0.0.1", "127。0。0。1", "0X7F.1", "4294967297"),
        *("[::]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "::127.0.0.1", "[::1].", "[[::1]]"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    ],
)
def test_addresses_in_any_spelling_are_refused(literal: str) -> None:
    for judge in (OPEN, rules(allow=["example.org", "*.example.org"])):
        assert not judge.name(literal, 80).allowed


def test_an_address_is_allowed_where_the_author_named_it() -> None:
    judge = rules(allow_private=["10.0.0.0/8", "192.168.1.5:8080", "[fd00::1]", "fd01::/16"])
    assert judge.name("10.1.2.3", 443).model_dump() == {
        "allowed": True,
        "host": "10.1.2.3",
        "rule": "10.0.0.0/8",
        "why": "",
        "private": True,
        "exact": False,
    }
    assert not judge.name("10.1.2.3", 22).allowed
    assert judge.name("192.168.1.5", 8080).allowed
    assert not judge.name("192.168.1.5", 80).allowed
    assert judge.name("[fd00::1]", 80).host == "fd00::1"
    assert judge.name("[fd01::7]", 80).allowed
    assert judge.name("[::ffff:10.0.0.1]", 80).allowed
    assert not judge.name("[::ffff:192.168.1.6]", 80).allowed
    assert judge.addresses("10.1.2.3", 443, ["10.1.2.3"]).allowed


def test_a_name_under_allow_private_may_have_a_private_address() -> None:
    judge = rules(allow=["a.example"], allow_private=["*.corp.example:8080"])
    assert judge.name("git.corp.example", 8080).private
    assert judge.addresses("git.corp.example", 8080, ["10.0.0.1", "127.0.0.1"]).allowed
    assert not judge.addresses("a.example", 443, ["10.0.0.1"]).allowed


def test_ports_are_those_of_allow_where_allow_private_names_none() -> None:
    judge = rules(
        allow=["vm:18080", "*.corp.example:8443"], allow_private=["vm", "git.corp.example"]
    )
    assert judge.addresses("vm", 18080, ["192.168.0.7"]).allowed
    assert judge.addresses("vm", 443, ["192.168.0.7"]).allowed
    assert not judge.name("vm", 18081).allowed
    assert judge.addresses("git.corp.example", 8443, ["10.0.0.1"]).allowed
    assert not judge.addresses("x.corp.example", 8443, ["10.0.0.1"]).allowed
    other = rules(allow=["vm:18080"], allow_private=["vm:443"])
    assert not other.addresses("vm", 18080, ["192.168.0.7"]).allowed
    assert other.addresses("vm", 443, ["192.168.0.7"]).allowed
    ranged = rules(allow=["vm:18080", "vm"], allow_private=["192.168.0.0/16:18080"])
    assert ranged.addresses("vm", 18080, ["192.168.0.7"]).allowed
    assert not ranged.addresses("vm", 443, ["192.168.0.7"]).allowed
    assert ranged.name("192.168.0.7", 18080).allowed
    assert not ranged.name("192.168.0.7", 443).allowed


def test_a_range_under_allow_private_lets_allowed_names_lead_there() -> None:
    judge = rules(allow=["git.example:8443"], allow_private=["10.0.0.0/8"])
    assert judge.addresses("git.example", 8443, ["10.0.0.1", PUBLIC]).allowed
    assert not judge.addresses("git.example", 8443, ["10.0.0.1", "192.168.0.1"]).allowed


@pytest.mark.parametrize(
    ("written", "address", "allowed"),
    [
        ("100.64.0.0/10", "100.100.100.200", False),
        ("100.100.100.200", "100.100.100.200", True),
        ("100.64.0.0/10", "100.100.100.201", True),
        ("fd00::/8", "fd00:ec2::254", False),
        ("fd00::/8", "fd00:ec3::1", True),
        ("fd00:ec2::254", "fd00:ec2::254", True),
        ("fd00:ec2::/32", "fd00:ec2::254", True),
        ("0.0.0.0/0", "169.254.169.254", False),
        ("0.0.0.0/0", "::ffff:169.254.169.254", False),
        ("169.254.0.0/16", "169.254.169.254", True),
        ("::/0", "fe80::1", False),
    ],
)
def test_a_range_does_not_mean_the_metadata_services_in_it(
    written: str, address: str, allowed: bool
) -> None:
    judge = rules(allow=["a.example"], allow_private=[written])
    literal = f"[{address}]" if ":" in address else address
    assert judge.name(literal, 80).allowed is allowed
    assert judge.addresses("a.example", 80, [address]).allowed is allowed


@pytest.mark.parametrize(
    ("network", "allowed"),
    [
        ({"allow": ["a.example.org"]}, True),
        ({"allow": ["*.example.org", "a.example.org"]}, True),
        ({"allow": ["*.example.org"]}, False),
        ({"mode": "open"}, False),
    ],
)
def test_a_name_without_addresses_is_allowed_only_as_the_author_wrote_it(
    network: dict[str, object], allowed: bool
) -> None:
    verdict = rules(**network).addresses("a.example.org", 443, [])
    assert verdict.allowed is allowed
    if not allowed:
        assert "cannot resolve the name" in verdict.why
        assert "under network.allow" in verdict.why


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "168.63.129.16", "fd00:ec2::254", "0.0.0.0", "224.0.0.1", "::"]
)
def test_no_name_leads_to_a_machines_credentials(address: str) -> None:
    judge = rules(allow_private=["inside.example"])
    assert not judge.addresses("inside.example", 80, [address]).allowed
    assert rules(allow_private=["169.254.169.254"]).name("169.254.169.254", 80).allowed


def test_every_address_has_to_pass() -> None:
    assert OPEN.addresses("example.org", 443, [PUBLIC, "2606:2800:220:1::1"]).allowed
    verdict = OPEN.addresses("example.org", 443, [PUBLIC, "10.0.0.1"])
    assert not verdict.allowed
    assert "it has the private address 10.0.0.1" in verdict.why
    assert not OPEN.addresses("example.org", 443, []).allowed
    assert not OPEN.addresses("example.org", 443, ["no address"]).allowed
    assert not OPEN.addresses("example.org", 443, ["fe80::1%eth0"]).allowed


def test_this_machine_is_not_public_even_by_its_public_address() -> None:
    judge = EgressRules(Network(mode="open"), is_own=lambda address: address == PUBLIC)
    assert not judge.addresses("example.org", 443, [PUBLIC]).allowed
    assert not judge.addresses("example.org", 443, [f"::ffff:{PUBLIC}"]).allowed
    assert judge.addresses("example.org", 443, ["93.184.216.35"]).allowed


@pytest.mark.parametrize(
    "fields",
    [
        {"allow": ["example.org:0"]},
        {"allow": ["example.org:99999"]},
        {"allow": ["127.1"]},
        {"allow": ["10.0.0.1"]},
        {"allow": ["10.0.0.0/8"]},
        {"allow": ["a..b"]},
        {"allow": ["a:b:c"]},
        {"allow_private": ["10.0.0.0/99"]},
        {"allow_private": ["0x7f.1"]},
        {"allow": ["a.example"], "deny": ["example.org:"]},
    ],
)
def test_a_rule_that_means_nothing_is_an_error_and_not_ignored(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        rules(**fields)


def test_the_summary_says_what_is_allowed() -> None:
    judge = rules(allow=["a.example"], allow_private=["10.0.0.0/8"], deny=["b.example"])
    assert judge.summary().splitlines() == [
        "allowed: a.example",
        "allowed, also on private addresses: 10.0.0.0/8",
        "denied: b.example",
    ]


# No spelling of a private address is ever allowed.

PRIVATE_V4 = st.one_of(
    *(
        st.ip_addresses(v=4, network=network)
        for network in (
            *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
            *("100.64.0.0/10", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "198.18.0.0/15"),
        )
    )
)

PRIVATE_V6 = st.one_of(
    *(
        st.ip_addresses(v=6, network=network)
        for network in ("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "2001:db8::/32", "::/127")
    )
)


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """An IPv4 address as inet_aton would read it."""
    value = int(draw(PRIVATE_V4))
    parts = draw(st.integers(1, 4))
    numbers = [(value >> (24 - 8 * n)) & 255 for n in range(parts - 1)]
    numbers.append(value & ((1 << (8 * (5 - parts))) - 1))
    written = []
    for number in numbers:
        shape = draw(st.sampled_from(["%d", "0x%x", "0X%X", "0%o", "0x000%x", "0000%o"]))
        written.append(shape % number)
    return ".".join(written) + draw(st.sampled_from(["", "."]))


@st.composite
def wrapped(draw: st.DrawFn) -> str:
    """A private address within an IPv6 address."""
    inner = int(draw(PRIVATE_V4))
    wrap = draw(st.sampled_from([0xFFFF << 32, 0x64FF9B << 96, 0x2002 << 112, 0]))
    value = wrap | (inner << 80 if wrap >> 112 == 0x2002 else inner)
    address = IPv6Address(value)
    return draw(st.sampled_from([str(address), address.exploded, str(address).upper()]))


JUDGES = st.sampled_from(
    [OPEN, rules(allow=["*.example.org", "example.org"]), rules(allow_private=["git.example.org"])]
)


@given(JUDGES, spellings(), st.sampled_from([80, 443, 8080]))
def test_no_spelling_of_a_private_address_is_allowed(
    judge: EgressRules, host: str, port: int
) -> None:
    assert not judge.name(host, port).allowed


@given(JUDGES, st.one_of(wrapped(), PRIVATE_V6.map(str)), st.booleans())
def test_no_wrapping_of_a_private_address_is_allowed(
    judge: EgressRules, address: str, bracketed: bool
) -> None:
    assert not judge.name(f"[{address}]" if bracketed else address, 443).allowed


@given(st.one_of(wrapped(), PRIVATE_V6.map(str), PRIVATE_V4.map(str)), st.integers(0, 2))
def test_no_public_name_leads_to_a_private_address(address: str, at: int) -> None:
    addresses = ["93.184.216.34", "2606:2800:220:1::1"]
    addresses.insert(at, address)
    assert not OPEN.addresses("example.org", 443, addresses).allowed


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_is_allowed_is_public(address: IPv4Address | IPv6Address) -> None:
    if OPEN.addresses("example.org", 443, [str(address)]).allowed:
        inner = address
        if isinstance(address, IPv6Address):
            low = ipaddress.ip_address(int(address) & 0xFFFFFFFF)
            inner = address.ipv4_mapped or address.sixtofour or address
            inner = low if address in ipaddress.ip_network("64:ff9b::/96") else inner
        assert inner.is_global
        assert not inner.is_multicast


@given(JUDGES, st.text(max_size=300), st.integers(-1, 70000))
def test_whatever_is_allowed_is_a_plain_name(judge: EgressRules, host: str, port: int) -> None:
    verdict = judge.name(host, port)
    if verdict.allowed:
        assert re.fullmatch(r"[a-z0-9_.-]+", verdict.host)
    else:
        assert verdict.why.isascii()
        assert verdict.why.isprintable()
