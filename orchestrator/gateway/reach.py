"""All that a container can reach through its wire, and for which run."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import EGRESS_PORT, MODEL_PORT, PARENT_PORT, ROUTES_PORT
from orchestrator.gateway.egress.access import EgressAccess
from orchestrator.gateway.http.byte_stream import ByteStream
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.parent import ParentAccess
from orchestrator.gateway.secrets.routes import RouteAccess
from orchestrator.redaction import Sought


class Reach:
    """The services of one container. They answer for the run that they are bound to; before,
    between and after runs they refuse.
    """

    def __init__(self, model: ModelAccess, parent_tools: Sequence[str] = ()) -> None:
        self.model = model
        """Its token is in the container for good; what it opens is decided here."""
        self.egress: EgressAccess | None = None
        self.routes: RouteAccess | None = None
        self.parent = ParentAccess(tools=parent_tools)
        """There before a run is: the CLI looks for it when it starts."""
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
