"""Settings -> the ways to the models, made once; each run gets an access of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.errors import OperatorError
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.credential import WITHOUT_A_MODEL, credential_of
from orchestrator.gateway.model.exchange import Road
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.providers import PROVIDERS, base_url_of
from orchestrator.gateway.model.upstream import HttpUpstream, ModelWay, Upstream
from orchestrator.runners.contract import WireFormat
from orchestrator.settings import Settings


def missing_credential(settings: Settings, wire_format: WireFormat) -> str:
    """The same as `ModelService.lacks_credential`, before there is one."""
    name = FORMATS[wire_format].provider
    provider = PROVIDERS[name]
    usual = base_url_of(settings, name) == provider.usual_base_url
    lacks = usual and credential_of(settings, name) is None and not settings.scripted
    return provider.key_variables if lacks else ""


class ModelService:
    """Gives out accesses to the models of each provider, or to others in their place."""

    def __init__(self, roads: Mapping[ProviderName, Road] | None = None) -> None:
        self._roads = roads or {}

    def lacks_credential(self, wire_format: WireFormat) -> str:
        """The variables of which one has to be set before this format leads anywhere; "" if it
        does.
        """
        provider = FORMATS[wire_format].provider
        return "" if provider in self._roads else PROVIDERS[provider].key_variables

    def access(
        self,
        *,
        wire_format: WireFormat = "anthropic",
        upstream: Upstream | None = None,
        server_tools: frozenset[str] = frozenset(),
    ) -> ModelAccess:
        """What one container may use. Another upstream, such as a scripted one, gets no credential.

        The format decides which paths there are, and whose API it is. `server_tools` are those of
        the API's own that it may have used, such as "web_search".
        """
        if upstream is not None:
            return ModelAccess(upstream, None, server_tools, wire_format=wire_format)
        if missing := self.lacks_credential(wire_format):
            raise OperatorError(
                f"there is no credential for the model API; set {missing}; {WITHOUT_A_MODEL}"
            )
        road = self._roads[FORMATS[wire_format].provider]
        return ModelAccess(road.upstream, road.credential, server_tools, road.way, wire_format)


@asynccontextmanager
async def open_model_service(settings: Settings) -> AsyncIterator[ModelService]:
    """Settings -> the real models. Of a provider without a credential, only accesses of another
    upstream work; unless it is at an address of the operator's, which may want none.
    """
    roads: dict[ProviderName, Road] = {}
    async with AsyncExitStack() as held:
        for name, provider in PROVIDERS.items():
            credential, base_url = credential_of(settings, name), base_url_of(settings, name)
            if credential is None and base_url == provider.usual_base_url:
                continue
            upstream = HttpUpstream(base_url, provider.base_variable)
            held.push_async_callback(upstream.aclose)
            variable = credential.variable if credential is not None else ""
            way = ModelWay(base_url, variable, provider.base_variable, provider.key_variables)
            roads[name] = Road(upstream, credential, way)
        yield ModelService(roads)
