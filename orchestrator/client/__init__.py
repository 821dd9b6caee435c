"""A small client of an orchestrator elsewhere: run agents there, on a directory that is here.

    async with open_client("http://127.0.0.1:8900", token) as client:
        run = await client.run("docs-reader", "Which Python is this?")

It imports nothing that only a server needs.
"""

from __future__ import annotations

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
