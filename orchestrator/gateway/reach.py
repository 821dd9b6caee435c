"""All that a container can reach through its wire, and for which run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import SecretStr

from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import Network, Secret
from orchestrator.domain.container import (
    EGRESS_PORT,
    MODEL_PORT,
    PARENT_PORT,
    ROUTES_PORT,
    TOOLS_PORT,
)
from orchestrator.domain.tool_lock import Brokered
from orchestrator.gateway.doorway import Decided
from orchestrator.gateway.egress.access import EgressAccess, OnEgressSeen
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.egress.rules import EgressRules
from orchestrator.gateway.http.byte_stream import ByteStream
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.parent import ParentAccess
from orchestrator.gateway.secrets.routes import RouteAccess, RouteSeen
from orchestrator.gateway.tools.access import ToolAccess
from orchestrator.gateway.tools.front import ToolFront
from orchestrator.redaction import Sought


class Reach:
    """The services of one container. They answer for the run that they are bound to; before,
    between and after runs they refuse.
    """

    def __init__(
        self,
        model: ModelAccess,
        parent_tools: Sequence[str] = (),
        brokered: Sequence[Brokered] = (),
    ) -> None:
        self.model = model
        """Its token is in the container for good; what it opens is decided here."""
        self.egress: EgressAccess | None = None
        self.routes: RouteAccess | None = None
        self.parent = ParentAccess(tools=parent_tools)
        """There before a run is: the CLI looks for it when it starts."""
        self.tools = ToolAccess(brokered)
        """The same: it is asked what there is before a run is there that may call it."""
        self._front = ToolFront(self.tools)
        self.sought = Sought(model.token)
        """The token, ready to be found in the run's record: making this takes milliseconds, for
        which no run should wait."""
        model.wait()

    async def offer(self, container: Container) -> None:
        """Listen on the container's loopback."""
        await container.listen(MODEL_PORT, "model", self.model.service)
        await container.listen(EGRESS_PORT, "egress", self._serve_egress)
        await container.listen(ROUTES_PORT, "routes", self._serve_routes)
        await container.listen(PARENT_PORT, "parent", self.parent.service)
        if self.tools.servers:
            await container.listen(TOOLS_PORT, "tools", self._front.service)

    def bind(self, egress: EgressAccess | None, routes: RouteAccess | None) -> None:
        """What the run may use besides its model, which is bound by itself."""
        self.egress, self.routes = egress, routes

    def revoke(self) -> None:
        """From now on the container reaches nothing."""
        self.model.revoke()
        if self.egress is not None:
            self.egress.revoke()
        if self.routes is not None:
            self.routes.revoke()
        self.parent.revoke()
        self.tools.revoke()

    @property
    def denied_hosts(self) -> tuple[str, ...]:
        """host:port of what egress refused."""
        return () if self.egress is None else self.egress.denied_hosts

    async def _serve_egress(self, stream: ByteStream) -> None:
        if self.egress is None:
            stream.reset()
        else:
            await self.egress.service(stream)

    async def _serve_routes(self, stream: ByteStream) -> None:
        if self.routes is None:
            stream.reset()
        else:
            await self.routes.service(stream)


def ways_out(
    network: Network,
    secrets: tuple[Secret, ...],
    values: Mapping[str, SecretStr],
    dialer: Dialer,
    *,
    on_egress: OnEgressSeen,
    on_route: Callable[[RouteSeen], None],
    decided: Decided,
) -> tuple[EgressAccess | None, RouteAccess | None]:
    """What leads out of a container: a proxy, if it has a network; and hosts that a secret is
    added for, if it has such secrets.
    """
    egress = routes = None
    if network.mode != "none":
        egress = EgressAccess(network, dialer, on_egress, decided=decided)
    if any(secret.hosts for secret in secrets):
        rules = EgressRules(_route_network(network, secrets))
        routes = RouteAccess(
            secrets,
            values,
            dialer,
            on_route,
            decided=decided,
            vet=lambda host, port, addresses: rules.vet(host, port)(addresses),
            is_direct=lambda host, port: rules.name(host, port).private,
        )
    return egress, routes


def _route_network(network: Network, secrets: tuple[Secret, ...]) -> Network:
    """Where secrets may go: to their hosts, at a private address only if their user says so."""
    hosts = tuple(dict.fromkeys(host for secret in secrets for host in secret.hosts))
    private = network.allow_private
    return Network(mode="allow", allow=hosts, allow_private=private, deny=network.deny)
