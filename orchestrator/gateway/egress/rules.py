"""Network -> may this host be talked to? Names are judged before they are resolved. Pure.

Two questions, and both have to be answered with yes: is the name allowed, and is every address that
it has one that may be talked to. Whatever is not understood is denied: there are too many ways to
write 127.0.0.1.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from orchestrator.domain import Frozen
from orchestrator.domain.agent import Network
from orchestrator.domain.hosts import (
    PORTS,
    Address,
    HostRule,
    host_rule,
    ip_address,
    normal_host,
    written_host,
)
from orchestrator.gateway.egress import dial

INSIDE_NAMES = (
    *("localhost", "local", "internal", "intranet", "lan", "corp", "home", "private"),
    *("home.arpa", "in-addr.arpa", "ip6.arpa", "onion", "test", "invalid", "svc"),
)
"""Ends of names that do not exist in public; `network: open` does not allow them."""

SERVICE_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("169.254.0.0/16", "fe80::/10", "168.63.129.16/32", "100.100.100.200/32"),
        *("192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128"),
    )
)
"""Where clouds tell a machine its credentials. A name never leads there; its address has to."""

CLOSED_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15"),
        *("2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16"),
    )
)
"""Not public whatever the release of Python says of them."""

GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
COMPATIBLE = ipaddress.IPv6Network("::/96")

SHOWN_HOST_CHARS = 100
"""Of a host that is none."""

RETRY = "retrying will not help"


class HostVerdict(Frozen):
    """Whether a host may be talked to, and why."""

    allowed: bool
    host: str = ""
    """As it is dialled and told of: lower case, no brackets, no dot at the end."""
    rule: str = ""
    """The rule in agent.md that decided; "" when there is none."""
    why: str = ""
    """For the agent, when denied: what was denied, what is missing, what to do."""
    private: bool = False
    """The author said that this one is on the inside."""
    exact: bool = False
    """The author wrote this very name, and not something that it is below of."""


class EgressRules:
    """What agent.md says about the network, ready to be asked."""

    def __init__(self, network: Network, is_own: Callable[[str], bool] = dial.is_own) -> None:
        self._network = network
        self._is_own = is_own
        self._allow = tuple(map(host_rule, network.allow))
        self._private = tuple(map(host_rule, network.allow_private))
        self._deny = tuple(map(host_rule, network.deny))

    def name(self, host: str, port: int) -> HostVerdict:
        """Before anything is resolved: may this be talked to, going by what it is called?"""
        wanted = normal_host(host)
        if wanted is None or not 0 < port < 65536:
            shown = ascii(host)[1:-1][:SHOWN_HOST_CHARS]
            why = (
                f"{shown} blocked: not a plain host name with a port; write names in "
                f"ASCII and addresses in their usual form; {RETRY}"
            )
            return HostVerdict(allowed=False, host=shown, why=why)
        if self._network.mode == "none":
            verdict = _denied(
                f"{_shown(wanted, port)} blocked: this agent has no network (agent.md has no "
                f"`network`); {RETRY}"
            )
        elif isinstance(wanted, str):
            verdict = self._by_name(wanted, port)
        else:
            verdict = self._by_address(wanted, port)
        return verdict.model_copy(update={"host": str(wanted)})

    def addresses(self, host: str, port: int, addresses: Sequence[str]) -> HostVerdict:
        """Once resolved: may all of these be talked to? The name has been allowed already.

        None of them are there when the name is not known here, and only the operator's proxy could
        resolve it: whatever that leads to cannot be looked at.
        """
        by_name = self.name(host, port)
        if not by_name.allowed:
            return by_name
        wanted = normal_host(host)
        named = isinstance(wanted, str) and by_name.private
        if not addresses and not by_name.exact:
            return _denied(
                f"{host}:{port} blocked: the orchestrator cannot resolve the name, and what "
                "cannot be looked at is left to the operator's proxy only if agent.md has the name "
                f"itself under network.allow, not by a wildcard or `network: open`; {RETRY}"
            )
        for text in addresses:
            problem, rule = self._problem_with(text, port, named=named)
            if problem:
                return _denied(
                    f"{host}:{port} blocked: {problem}; {RETRY}",
                    rule=rule,
                )
        return by_name

    def vet(self, host: str, port: int) -> dial.Vet:
        """The second question, in the shape in which a Dialer asks it."""

        def look(addresses: tuple[str, ...]) -> None:
            verdict = self.addresses(host, port, addresses)
            if not verdict.allowed:
                raise dial.Denied(verdict.why)

        return look

    def summary(self) -> str:
        """What is allowed, in a few lines."""
        network = self._network
        lines = {
            "none": ["nothing is allowed"],
            "open": ["every public host is allowed, on ports 80 and 443"],
            "allow": [],
        }[network.mode]
        lines += [f"allowed: {text}" for text in network.allow]
        lines += [f"allowed, also on private addresses: {text}" for text in network.allow_private]
        lines += [f"denied: {text}" for text in network.deny]
        return "\n".join(lines)

    def _by_name(self, host: str, port: int) -> HostVerdict:
        shown = _shown(host, port)
        for rule in self._deny:
            if rule.matches(host) and rule.closes(port):
                return _denied(
                    f"{shown} blocked: {rule.text} is under network.deny in agent.md; {RETRY}",
                    rule=rule.text,
                )
        for rule in self._private:
            if rule.matches(host) and rule.opens(port):
                return HostVerdict(allowed=True, rule=rule.text, private=True)
        fitting = [rule for rule in self._allow if rule.matches(host) and rule.opens(port)]
        if fitting:
            rule = min(fitting, key=lambda rule: rule.below)
            # `allow: ["vm:8080"], allow_private: [vm]`: the one says which port, the other where.
            inside = any(each.matches(host) and each.closes(port) for each in self._private)
            return HostVerdict(allowed=True, rule=rule.text, private=inside, exact=not rule.below)
        if self._network.mode != "open":
            return _denied(f"{shown} blocked: not under network.allow in agent.md; {RETRY}")
        if port not in PORTS:
            return _denied(f"{shown} blocked: `network: open` means ports 80 and 443; {RETRY}")
        if "." not in host or any(f".{host}".endswith(f".{end}") for end in INSIDE_NAMES):
            return _denied(
                f"{shown} blocked: not a public name, and not under network.allow_private in "
                f"agent.md; {RETRY}"
            )
        return HostVerdict(allowed=True, rule="open")

    def _by_address(self, address: Address, port: int) -> HostVerdict:
        shown = _shown(address, port)
        faces = _faces(address)
        for rule in self._deny:
            if rule.closes(port) and any(rule.holds(face) for face in (address, *faces)):
                return _denied(
                    f"{shown} blocked: {rule.text} is under network.deny in agent.md; {RETRY}",
                    rule=rule.text,
                )
        for rule in self._private:
            if rule.opens(port) and all(_is_meant(rule, face) for face in faces):
                return HostVerdict(allowed=True, rule=rule.text, private=True)
        missing = str(address) if port in PORTS else shown
        return _denied(
            f"{shown} blocked: write a name; an address must be under network.allow_private in "
            f"agent.md ({missing}); {RETRY}"
        )

    def _problem_with(self, text: str, port: int, *, named: bool) -> tuple[str, str]:
        """What is wrong with one address of a name, if anything, and the rule that says so."""
        address = ip_address(text)
        if address is None:
            return "one of its addresses cannot be read", ""
        faces = _faces(address)
        for rule in self._deny:
            if rule.closes(port) and any(rule.holds(face) for face in (address, *faces)):
                return f"its address is in {rule.text}, denied in agent.md", rule.text
        for face in faces:
            if any(_is_meant(rule, face) and rule.closes(port) for rule in self._private):
                continue
            if any(face in network for network in SERVICE_NETWORKS) or _is_no_host(face):
                return f"it has the address {face}, which no name may lead to", ""
            if named:
                continue
            if not _is_public(face):
                return (
                    f"it has the private address {face}, and is not under network.allow_private "
                    "in agent.md"
                ), ""
            if self._is_own(str(face)) or self._is_own(str(address)):
                return "its address is one of the orchestrator's own machine", ""
        return "", ""


def _is_meant(rule: HostRule, address: Address) -> bool:
    """Whether a rule of the inside means an address. A range does not mean the service addresses
    that happen to be in it: an author who wants those names them.
    """
    if rule.network is None or not rule.holds(address):
        return False
    services = [network for network in SERVICE_NETWORKS if address in network]
    return all(_is_within(rule.network, network) for network in services)


def _is_within(inner: IPv4Network | IPv6Network, outer: IPv4Network | IPv6Network) -> bool:
    return inner[0] in outer and inner[-1] in outer


def _faces(address: Address) -> tuple[Address, ...]:
    """Whom one talks to by that address: IPv6 has many ways to say an IPv4 address."""
    return tuple(_unwrapped(address))


def _unwrapped(address: Address) -> Iterator[Address]:
    if isinstance(address, IPv4Address):
        yield address
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    elif address in NAT64 or (address in COMPATIBLE and int(address) > 1):
        yield IPv4Address(int(address) & 0xFFFFFFFF)
    else:
        yield address


def _is_no_host(address: Address) -> bool:
    return (
        address.is_multicast
        or address.is_unspecified
        or (isinstance(address, IPv4Address) and address.is_reserved)
    )


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in GLOBAL_V6:
        return False
    if any(address in network for network in CLOSED_NETWORKS):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _shown(host: str | Address, port: int) -> str:
    return f"{written_host(str(host))}:{port}"


def _denied(why: str, rule: str = "") -> HostVerdict:
    return HostVerdict(allowed=False, rule=rule, why=why)
