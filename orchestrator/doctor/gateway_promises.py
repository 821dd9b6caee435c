"""What we promise of the gateway, tried out with a host on loopback: nothing goes out."""

from __future__ import annotations

import secrets
from typing import Literal

from pydantic import SecretStr

from orchestrator.containers.runtime import Container
from orchestrator.doctor.promise import Finding, Promise, ask
from orchestrator.domain.agent import Network, Secret
from orchestrator.gateway.egress.access import EgressAccess
from orchestrator.gateway.egress.dial import Addresses, Dialer, Vet
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.http.socket_stream import SocketStream
from orchestrator.gateway.secrets.routes import RouteAccess

ALLOWED, OTHER = "allowed.doctor.test", "other.doctor.test"

METADATA = "169.254.169.254"
"""Where clouds keep credentials."""

REFUSED = 403


class _Host:
    """A host that remembers who asked, and answers with a word and what it was shown."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.shown: list[str] = []
        self.word = secrets.token_hex(8)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request.header("host"))
        self.shown.append(request.header("authorization"))
        said = f"{self.word} {request.header('authorization')}"
        return HttpResponse(200, (("content-type", "text/plain"),), said.encode())


class _Nearby(Dialer):
    """Connects to a host on loopback, whatever name is asked for; it has no TLS key."""

    def __init__(self, port: int) -> None:
        super().__init__(_loopback)
        self._port = port

    async def dial(
        self,
        host: str,
        port: int,
        vet: Vet,
        *,
        tls: bool = False,
        scheme: Literal["http", "https"] = "https",
        direct: bool = False,
    ) -> SocketStream:
        del port, tls, direct
        return await super().dial(host, self._port, vet, scheme=scheme, direct=True)


async def _loopback(_host: str, _port: int) -> Addresses:
    return ("127.0.0.1",)


async def _egress(container: Container) -> Finding:
    host = _Host()
    async with serve_on_loopback(host.answer) as url:
        port = int(url.rpartition(":")[2])
        good = f"http://{ALLOWED}:{port}/"
        bad = [f"http://{name}:{port}/" for name in (OTHER, f"{OTHER}.{ALLOWED}", "127.0.0.1")]
        bad += [f"http://[::1]:{port}/", f"http://{METADATA}/latest/meta-data/", "CONNECT"]
        network = Network(mode="allow", allow_private=(f"{ALLOWED}:{port}",))
        with EgressAccess(network, Dialer(_loopback)) as access:
            inside = await container.listen(0, "doctor-egress", access.service)
            seen = await ask(container, "proxy", str(inside), f"{OTHER}:443", good, *bad)
    passed = [target for target in bad if seen[target]["status"] != REFUSED]
    if passed:
        return False, f"not refused: {', '.join(passed)}"
    if host.word not in seen[good]["body"] or len(host.asked) != 1:
        return False, f"{ALLOWED} was asked {len(host.asked)} times, and said: {seen[good]['body']}"
    return True, f"an allowed host answers; {len(bad)} others refused ({REFUSED})"


async def _secret(container: Container) -> Finding:
    host, value = _Host(), secrets.token_hex(20)
    secret = Secret(name="doctor", hosts=(ALLOWED,), paths=("/allowed/**",))
    values = {secret.name: SecretStr(value)}
    async with serve_on_loopback(host.answer) as url:
        dialer = _Nearby(int(url.rpartition(":")[2]))
        routes = RouteAccess((secret,), values, dialer, vet=lambda _host, _port, _addresses: None)
        try:
            inside = await container.listen(0, "doctor-routes", routes.service)
            paths = [f"/{ALLOWED}/allowed/x", f"/{ALLOWED}/other", f"/{OTHER}/allowed/x"]
            seen = await ask(container, "fetch", str(inside), *paths)
        finally:
            routes.revoke()
    # Backwards, so that what searches for it does not bring it along.
    places = [t.target for t in container.spec.tmpfs] + [m.target for m in container.spec.mounts]
    found = (await ask(container, "search", *places, data=value[::-1].encode()))["found"]
    if found or value in str(seen):
        return False, f"the secret is inside: {', '.join(found) or 'in an answer'}"
    if host.shown != [f"Bearer {value}"] or host.word not in seen[paths[0]]["body"]:
        return False, f"the host was asked {len(host.shown)} times, and not with the secret alone"
    passed = [path for path in paths[1:] if seen[path]["status"] != REFUSED]
    if passed:
        return False, f"not refused: {', '.join(passed)}"
    return True, "a host was shown it; no file, variable, argument or answer inside holds it"


_OUR_FAULT = (
    "this is the orchestrator's own doing, not the engine's: report it, and do not run agents"
)

GATEWAY: tuple[Promise[Container], ...] = (
    Promise(
        "egress",
        "of the network, only hosts that agent.md allows can be reached",
        _egress,
        f"{_OUR_FAULT} that have a network until it is mended",
    ),
    Promise(
        "secrets",
        "a secret is used outside, and never gets inside",
        _secret,
        f"{_OUR_FAULT} that have secrets until it is mended",
    ),
)
