"""Settings -> the way to the model, made once; each run gets an access of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.errors import OperatorError
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.credential import (
    KEYS,
    WITHOUT_A_MODEL,
    Credential,
    credential_of,
)
from orchestrator.gateway.model.upstream import HttpUpstream, ModelWay, Upstream
from orchestrator.settings import ANTHROPIC_BASE_URL, Settings


class ModelService:
    """Gives out accesses to one model, or to others in its place."""

    def __init__(
        self, upstream: Upstream | None, credential: Credential | None = None, address: str = ""
    ) -> None:
        self._upstream = upstream
        self._credential = credential
        variable = credential.variable if credential is not None else ""
        self._way = ModelWay(address, variable)

    def access(
        self, *, upstream: Upstream | None = None, server_tools: frozenset[str] = frozenset()
    ) -> ModelAccess:
        """What one container may use. Another upstream, such as a scripted one, gets no credential.

        `server_tools` are those of the API's own that it may have used, such as "web_search".
        """
        credential, way = None, ModelWay()
        if upstream is None:
            upstream, credential, way = self._upstream, self._credential, self._way
        if upstream is None:
            raise OperatorError(
                f"there is no credential for the model API; set {KEYS}; {WITHOUT_A_MODEL}"
            )
        return ModelAccess(upstream, credential, server_tools, way)


@asynccontextmanager
async def open_model_service(settings: Settings) -> AsyncIterator[ModelService]:
    """Settings -> the real model. Without a credential only accesses of another upstream work."""
    credential = credential_of(settings)
    if credential is None and settings.anthropic_base_url == ANTHROPIC_BASE_URL:
        yield ModelService(None)
        return
    upstream = HttpUpstream(settings.anthropic_base_url)
    try:
        yield ModelService(upstream, credential, settings.anthropic_base_url)
    finally:
        await upstream.aclose()
