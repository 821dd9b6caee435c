"""Host rules as agent.md writes them: names, what is below a name, addresses and ranges. Pure.

Whatever is not understood is an error: there are too many ways to write 127.0.0.1.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

PORTS = (80, 443)
"""What a rule means that names no port."""

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class HostRule:
    """One line of agent.md: whom it means, and on which port."""

    text: str
    """As the author wrote it."""
    name: str = ""
    below: bool = False
    """It means what is below the name, and not the name itself."""
    network: IPv4Network | IPv6Network | None = None
    """Instead of a name."""
    port: int | None = None

    def matches(self, host: str) -> bool:
        return host.endswith(f".{self.name}") if self.below else host == self.name

    def holds(self, address: Address) -> bool:
        return self.network is not None and address in self.network

    def opens(self, port: int) -> bool:
        return port in PORTS if self.port is None else port == self.port

    def closes(self, port: int) -> bool:
        return self.port in (None, port)


def host_rule(text: str) -> HostRule:
    """What a rule means; ValueError, in words that go on after it, if it means nothing."""
    if "://" in text:
        host = re.split(r"[/?#]", text.partition("://")[2])[0].rpartition("@")[2]
        raise ValueError(f'is a URL; write the host alone: "{host or "api.github.com"}"')
    if text == "*":
        raise ValueError("allows every host; if that is meant, write `network: open`")
    host, port = (text, None) if _network(text) is not None else _split(text)
    if port == 0:
        raise ValueError("has no port between 1 and 65535")
    network = _network(host)
    if network is not None:
        return HostRule(text, network=network, port=port)
    name = normal_host(host.removeprefix("*."))
    if isinstance(name, str):
        return HostRule(text, name=name, below=host.startswith("*."), port=port)
    raise ValueError(
        'is neither a host, such as "api.github.com", "*.example.org" or "example.org:8443", nor '
        'an address in its usual form, such as "10.0.0.0/8" or "[fd00::1]"'
    )


def normal_host(host: str) -> str | Address | None:
    """A name as it is compared, or an address; None for what is neither.

    What ends in a number is an address to those who resolve it: 127.1, 0x7f.1, 2130706433.
    """
    if host.startswith("[") and host.endswith("]"):
        inside = ip_address(host[1:-1])
        return inside if isinstance(inside, IPv6Address) else None
    if ":" in host:
        return ip_address(host)
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if not name.isascii() or len(name) > 253:
        return None
    if not all(re.fullmatch(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", label) for label in labels):
        return None
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        return ip_address(name)
    return name


def written_host(host: str) -> str:
    """A host as a rule or a URL has it before a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def ip_address(text: str) -> Address | None:
    """An address in its usual form; None for anything else."""
    if "%" in text or not text.isascii():
        return None  # a zone is an interface of this machine
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _split(text: str) -> tuple[str, int | None]:
    """host:port -> both; port 0 when it is none."""
    found = re.fullmatch(r"(\[[^\[\]]*\]|[^:]*):([0-9]*)", text)
    if found is None:
        return text, None
    number = int(found[2]) if re.fullmatch(r"[0-9]{1,5}", found[2]) else 0
    return found[1], number if number < 65536 else 0


def _network(text: str) -> IPv4Network | IPv6Network | None:
    if not re.fullmatch(r"[0-9A-Fa-f.:\[\]]+(/[0-9]{1,3})?", text):
        return None  # a zone, or a mask that is written out
    try:
        return ipaddress.ip_network(text.removeprefix("[").removesuffix("]"), strict=False)
    except ValueError:
        return None
