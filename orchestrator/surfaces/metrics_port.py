"""A port of its own for whoever collects metrics, so that it can be closed to others apart from the
server's. It answers GET /metrics, and nothing else.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.errors import OperatorError

if TYPE_CHECKING:
    from orchestrator.telemetry.metrics import Metrics

METRICS_PATH = "/metrics"

HIGHEST_PORT = 65535


@contextmanager
def metrics_listener(address: str) -> Iterator[socket.socket | None]:
    """HOST:PORT -> a socket there, from which nothing is answered yet; None for no address.
    OperatorError if there cannot be one: told before anything is served.
    """
    if not address:
        yield None
        return
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) <= HIGHEST_PORT):
        raise OperatorError(f"--metrics {address} is not HOST:PORT, such as 127.0.0.1:9464")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family)
    except OSError as exc:
        raise OperatorError(
            f"--metrics {address} cannot be listened on: {exc.strerror}; choose another"
        ) from exc
    with listener:
        shown = f"[{host}]" if ":" in host else host
        where = f"http://{shown}:{listener.getsockname()[1]}{METRICS_PATH}"
        print(f"metrics at {where}", file=sys.stderr, flush=True)
        yield listener


async def serve_metrics(listener: socket.socket, metrics: Metrics) -> None:
    """Answer on that socket until cancelled."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from orchestrator.surfaces.held_connections import HeldConnection
    from orchestrator.surfaces.mcp.transports.http import QuietWeb
    from orchestrator.telemetry.metrics import CONTENT_TYPE

    async def answer(_: Request) -> Response:
        return Response(await metrics.exposition(), media_type=CONTENT_TYPE)

    app = Starlette(routes=[Route(METRICS_PATH, answer, methods=["GET"])])
    config = uvicorn.Config(
        app, http=HeldConnection, log_level="warning", log_config=None, lifespan="off"
    )
    await QuietWeb(config).serve([listener])
