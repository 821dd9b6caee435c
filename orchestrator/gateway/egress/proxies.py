"""The environment's proxy variables -> the way to a host: the operator's proxy, or none. Pure."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, repr=False)
class Proxy:
    """The operator's own way out."""

    host: str
    port: int
    authorization: str = ""
    """The header's value; never shown."""

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class Proxies:
    """HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, in either case."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def __repr__(self) -> str:
        return "Proxies()"  # a variable may hold a password

    def way_to(self, host: str, port: int, scheme: str) -> Proxy | None:
        """The proxy for a host, or None for the direct way; ValueError when it cannot be used."""
        value = self._variable(f"{scheme}_proxy") or self._variable("all_proxy")
        if not value or _is_exempt(self._variable("no_proxy"), host, port):
            return None
        proxy = _parsed(value)
        if proxy is None:
            raise ValueError(
                f"the orchestrator's own {scheme.upper()}_PROXY or ALL_PROXY cannot be used; "
                "the operator should write http://host:port"
            )
        return proxy

    def _variable(self, name: str) -> str:
        return self._variables.get(name) or self._variables.get(name.upper(), "")


def _parsed(value: str) -> Proxy | None:
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        port = parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or not parts.hostname:
        return None
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(parts.hostname, port, authorization)


def _is_exempt(no_proxy: str, host: str, port: int) -> bool:
    """NO_PROXY, as curl and Go read it: hosts with all below them, addresses and ranges."""
    for entry in no_proxy.replace(" ", ",").lower().split(","):
        if entry == "*":
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False):
                return True
            continue
        name, _, wanted = entry.partition(":")
        name = name.removeprefix("*").removeprefix(".")
        below = host == name or host.endswith(f".{name}")
        if name and below and wanted in ("", str(port)):
            return True
    return False
