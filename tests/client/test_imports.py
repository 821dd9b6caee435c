"""What a client loads: nothing that only a server needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

ONLY_SERVERS = ("docker", "mcp", "mcp_types", "uvicorn", "starlette", "requests", "sqlite3")

RELAY = (
    "import orchestrator.surfaces.connect.connecting, orchestrator.surfaces.connect.relay, "
    "orchestrator.surfaces.connect.stdio_lines, orchestrator.settings"
)


@pytest.mark.parametrize(
    ("imports", "more"),
    [
        ("from orchestrator.client import open_client, RemoteRun", ()),
        (RELAY, ("typer", "rich", "yaml", "jsonschema")),
    ],
    ids=["the client", "connect"],
)
def test_nothing_is_loaded_that_only_a_server_needs(imports: str, more: tuple[str, ...]) -> None:
    look = f"{imports}; import sys; print([m for m in {ONLY_SERVERS + more} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
