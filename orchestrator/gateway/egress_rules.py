"""Network -> may this host be talked to? Names are judged before they are resolved. Pure.

Two questions, and both have to be answered with yes: is the name allowed, and is every address that
it has one that may be talked to. Whatever is not understood is denied: there are too many ways to
write 127.0.0.1.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from orchestrator.domain import Frozen
from orchestrator.domain.agent import Network
from orchestrator.errors import AgentInvalid
from orchestrator.gateway import dial

PORTS = (80, 443)
"""What a rule means that names no port."""

INSIDE_NAMES = (
    *("localhost", "local", "internal", "intranet", "lan", "corp", "home", "private"),
    *("home.arpa", "in-addr.arpa", "ip6.arpa", "onion", "test", "invalid"),
)
"""Ends of names that are nobody's in public; where every public host is allowed, these are not."""

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

SHOWN_CHARS = 100
"""Of a host that is none."""

Address = IPv4Address | IPv6Address

RETRY = "retrying will not help"


class Verdict(Frozen):
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


@dataclass(frozen=True)
class _Rule:
    text: str
    """As the author wrote it."""
    name: str = ""
    below: bool = False
    """It means what is below the name, and not the name itself."""
    network: IPv4Network | IPv6Network | None = None
    """Instead of a name."""
    port: int | None = None

    def matches(self, host: str) -> bool:
        if self.network is not None:
            return False
        return host.endswith(f".{self.name}") if self.below else host == self.name

    def holds(self, address: Address) -> bool:
        return self.network is not None and address in self.network

    def opens(self, port: int) -> bool:
        return port in PORTS if self.port is None else port == self.port

    def closes(self, port: int) -> bool:
        return self.port in (None, port)


class EgressRules:
    """What agent.md says about the network, ready to be asked."""

    def __init__(self, network: Network, is_own: Callable[[str], bool] = dial.is_own) -> None:
        self._network = network
        self._is_own = is_own
        self._allow = _parsed("allow", network.allow)
        self._private = _parsed("allow_private", network.allow_private)
        self._deny = _parsed("deny", network.deny)

    def name(self, host: str, port: int) -> Verdict:
        """Before anything is resolved: may this be talked to, going by what it is called?"""
        wanted = _normal(host)
        if wanted is None or not 0 < port < 65536:
            shown = ascii(host)[1:-1][:SHOWN_CHARS]
            why = (
                f"{shown} is not allowed: it is not a plain host name with a port; write names in "
                f"ASCII and addresses in their usual form; {RETRY}"
            )
            return Verdict(allowed=False, host=shown, why=why)
        if self._network.mode == "none":
            verdict = _denied(
                f"{_shown(wanted, port)} is not allowed: this agent has no network (agent.md has "
                f"no `network`); {RETRY}"
            )
        elif isinstance(wanted, str):
            verdict = self._by_name(wanted, port)
        else:
            verdict = self._by_address(wanted, port)
        return verdict.model_copy(update={"host": str(wanted)})

    def addresses(self, host: str, port: int, addresses: Sequence[str]) -> Verdict:
        """Once resolved: may all of these be talked to? The name has been allowed already."""
        by_name = self.name(host, port)
        if not by_name.allowed:
            return by_name
        wanted = _normal(host)
        named = isinstance(wanted, str) and by_name.private
        if not addresses:
            return _denied(f"{host}:{port} is not allowed: it has no address; {RETRY}")
        for text in addresses:
            problem, rule = self._problem_with(text, port, named=named)
            if problem:
                return _denied(
                    f"{host}:{port} is not allowed: {problem}; {RETRY}",
                    rule=rule,
                )
        return by_name

    def vet(self, host: str, port: int) -> dial.Vet:
        """The second question, as whoever dials asks it."""

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

    def _by_name(self, host: str, port: int) -> Verdict:
        shown = _shown(host, port)
        for rule in self._deny:
            if rule.matches(host) and rule.closes(port):
                return _denied(
                    f"{shown} is not allowed: agent.md denies {rule.text} under network.deny; "
                    f"{RETRY}",
                    rule=rule.text,
                )
        for rule in self._private:
            if rule.matches(host) and rule.opens(port):
                return Verdict(allowed=True, rule=rule.text, private=True)
        for rule in self._allow:
            if rule.matches(host) and rule.opens(port):
                return Verdict(allowed=True, rule=rule.text)
        missing = host if port in PORTS else shown
        if self._network.mode != "open":
            return _denied(
                f"{shown} is not allowed: agent.md does not have {missing} under network.allow; "
                f"{RETRY}"
            )
        if port not in PORTS:
            return _denied(
                f"{shown} is not allowed: `network: open` means ports 80 and 443; {RETRY}"
            )
        if "." not in host or any(f".{host}".endswith(f".{end}") for end in INSIDE_NAMES):
            return _denied(
                f"{shown} is not allowed: it is not a public name, and agent.md does not have "
                f"{missing} under network.allow_private; {RETRY}"
            )
        return Verdict(allowed=True, rule="open")

    def _by_address(self, address: Address, port: int) -> Verdict:
        shown = _shown(address, port)
        faces = _faces(address)
        for rule in self._deny:
            if rule.closes(port) and any(rule.holds(face) for face in (address, *faces)):
                return _denied(
                    f"{shown} is not allowed: agent.md denies {rule.text} under network.deny; "
                    f"{RETRY}",
                    rule=rule.text,
                )
        for rule in self._private:
            if rule.opens(port) and all(rule.holds(face) for face in faces):
                return Verdict(allowed=True, rule=rule.text, private=True)
        missing = str(address) if port in PORTS else shown
        return _denied(
            f"{shown} is not allowed: addresses are refused, names are wanted, unless agent.md has "
            f"{missing} under network.allow_private; {RETRY}"
        )

    def _problem_with(self, text: str, port: int, *, named: bool) -> tuple[str, str]:
        """What is wrong with one address of a name, if anything, and the rule that says so."""
        address = _address(text)
        if address is None:
            return "one of its addresses cannot be read", ""
        faces = _faces(address)
        for rule in self._deny:
            if rule.closes(port) and any(rule.holds(face) for face in (address, *faces)):
                return f"its address is in {rule.text}, denied in agent.md", rule.text
        for face in faces:
            if any(rule.holds(face) and rule.closes(port) for rule in self._private):
                continue
            if any(face in network for network in SERVICE_NETWORKS) or _is_nobody(face):
                return f"it has the address {face}, which no name may lead to", ""
            if named:
                continue
            if not _is_public(face):
                return (
                    f"it has the private address {face}, and agent.md does not have it under "
                    "network.allow_private"
                ), ""
            if self._is_own(str(face)) or self._is_own(str(address)):
                return "its address is one of the orchestrator's own machine", ""
        return "", ""


def _parsed(field: str, texts: Sequence[str]) -> tuple[_Rule, ...]:
    return tuple(_rule(field, text) for text in texts)


def _rule(field: str, text: str) -> _Rule:
    host, port = (text, None) if _network(text) is not None else _split(text)
    if port == 0:
        raise AgentInvalid(f"network.{field}: {text!r} has no port between 1 and 65535")
    network = _network(host) if port is None or "/" not in host else None
    if network is not None and field == "allow":
        raise AgentInvalid(
            f"network.allow: {text!r} is an address; allow takes names, write it under "
            "allow_private"
        )
    if network is not None:
        return _Rule(text, network=network, port=port)
    below = host.startswith("*.")
    name = _normal(host.removeprefix("*."))
    if not isinstance(name, str):
        raise AgentInvalid(
            f"network.{field}: {text!r} is neither a host nor an address in its usual form; write "
            '"api.example.org", "*.example.org", "example.org:8443", "10.0.0.0/8" or "[fd00::1]"'
        )
    return _Rule(text, name=name, below=below, port=port)


def _split(text: str) -> tuple[str, int | None]:
    """host:port -> both; port 0 when it is none."""
    found = re.fullmatch(r"(\[[^\[\]]*\]|[^:]*):([0-9]*)", text)
    if found is None:
        return text, None
    number = int(found[2]) if re.fullmatch(r"[0-9]{1,5}", found[2]) else 0
    return found[1], number if number < 65536 else 0


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ipaddress.ip_network(text.removeprefix("[").removesuffix("]"), strict=False)
    except ValueError:
        return None


def _normal(host: str) -> str | Address | None:
    """A name as it is compared, or an address; None for what is neither.

    What ends in a number is an address to those who resolve it: 127.1, 0x7f.1, 2130706433.
    """
    if host.startswith("[") and host.endswith("]"):
        inside = _address(host[1:-1])
        return inside if isinstance(inside, IPv6Address) else None
    if ":" in host:
        return _address(host)
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if not name.isascii() or len(name) > 253:
        return None
    if not all(re.fullmatch(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", label) for label in labels):
        return None
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        return _address(name)
    return name


def _address(text: str) -> Address | None:
    if "%" in text or not text.isascii():
        return None  # a zone is an interface of this machine
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


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


def _is_nobody(address: Address) -> bool:
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
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"


def _denied(why: str, rule: str = "") -> Verdict:
    return Verdict(allowed=False, rule=rule, why=why)
