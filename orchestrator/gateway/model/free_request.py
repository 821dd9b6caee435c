"""One request to the model API that costs nothing: does it answer, and take the credential?"""

from __future__ import annotations

import json
from typing import NamedTuple

import anyio

from orchestrator.gateway.http.headers import Headers
from orchestrator.gateway.model.credential import credential_of
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.providers import PROVIDERS, base_url_of
from orchestrator.gateway.model.upstream import HttpUpstream, UpstreamLost, UpstreamRequest
from orchestrator.settings import Settings

FREE_SECONDS = 15.0
"""For the whole of it."""

FREE_BYTES = 64 * 1024
"""Of the answer, that are read."""

API_VERSION = ("anthropic-version", "2023-06-01")


class FreeAnswer(NamedTuple):
    """What the API said; status 0 if it said nothing."""

    status: int
    said: str = ""


async def ask_for_free(settings: Settings, name: ProviderName = "anthropic") -> FreeAnswer:
    """Ask the API that the settings name for a list of its models, with their credential."""
    provider = PROVIDERS[name]
    upstream = HttpUpstream(base_url_of(settings, name), provider.base_variable)
    credential = credential_of(settings, name)
    headers: Headers = (("accept-encoding", "identity"),)
    headers = (API_VERSION, *headers) if name == "anthropic" else headers
    if credential is not None:
        headers = credential.added_to(headers)
    body = b""
    try:
        with anyio.fail_after(FREE_SECONDS):
            async with upstream.send(
                UpstreamRequest("GET", provider.free_target, headers)
            ) as answer:
                async for chunk in answer.body:
                    body += chunk
                    if len(body) > FREE_BYTES:
                        break
                status = answer.status
    except TimeoutError:
        return FreeAnswer(0, f"no answer in {FREE_SECONDS:.0f} s")
    except UpstreamLost as exc:
        return FreeAnswer(0, str(exc))
    finally:
        await upstream.aclose()
    if credential is not None:
        body = credential.removed_from(body)
    return FreeAnswer(status, _message(body) if status >= 400 else "")


def _message(body: bytes) -> str:
    """What an error says, in the shape that the API gives it, or in any."""
    try:
        said = json.loads(body)
        message = said["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return " ".join(str(message).split())[:200]
