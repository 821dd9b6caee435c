"""A small client of an orchestrator elsewhere: run agents there, on a directory that is here.

    async with open_client("http://127.0.0.1:8900", token) as client:
        run = await client.run("docs-reader", "Which Python is this?")

It imports nothing that only a server needs, and the half that a relay does not use only when asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.client.api import OrchestratorClient, open_client
    from orchestrator.client.documents import RemoteAgent, RemoteEvent, RemoteRun, WaitingWord

__all__ = [
    "OrchestratorClient",
    "RemoteAgent",
    "RemoteEvent",
    "RemoteRun",
    "WaitingWord",
    "open_client",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.client import api  # noqa: PLC0415 see above

    return getattr(api, name)
