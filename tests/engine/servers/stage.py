"""Servers of tools on stage: written beside an agent, pinned, and called by the real claude."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.catalog import KnownServer, load_catalog, write_lock
from orchestrator.gateway.tools.pool import Sharers, WantedServer
from tests.engine.harness import Harness

MISCHIEF = (Path(__file__).parents[2] / "gateway" / "tools" / "mischief.py").read_text()

SERVER: dict[str, Any] = {
    "command": ["python3", "-I", "server.py"],
    "files": ["server.py"],
    "secrets": [{"name": "token", "expose": "env"}],
    "resources": {"memory_mb": 128, "scratch_mb": 8},
}

TOKEN = "tok-2f1c9a7be04d4f6e8a55"


def write_server(harness: Harness, name: str = "it", text: str = MISCHIEF, **fields: Any) -> Path:
    """A server in its folder; the lock, if there is one, stays."""
    folder = harness.agents_dir / "servers" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.py").write_text(text)
    (folder / "server.yaml").write_text(json.dumps(SERVER | fields))
    harness.secrets["ORCHESTRATOR_SECRET_TOKEN"] = TOKEN
    return folder


def known_server(harness: Harness, name: str = "it") -> KnownServer:
    return load_catalog(harness.agents_dir).server(name)


async def pin(harness: Harness, name: str = "it") -> None:
    """What `orchestrator servers pin` does."""
    known = known_server(harness, name)
    scope = Sharers("run", f"pin {name}")
    async with harness.servers.pool.lease(WantedServer(known.server, None, scope)) as server:
        write_lock(known, await server.listed())
    await harness.servers.pool.end(scope)


def use(*allow: str, name: str = "it", **fields: object) -> dict[str, object]:
    return {"use": name, "allow": list(allow) or ["*"], **fields}


def mcp(tool: str, name: str = "it", **arguments: object) -> dict[str, object]:
    """A step in which the model calls a server's tool."""
    return {"tool": f"mcp__{name}__{tool}", "input": arguments}


LAST: dict[str, object] = {"text": "{last_tool_result}"}
"""A step in which the model says what it was told last."""
