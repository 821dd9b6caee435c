"""`/` and `/assets/…`: the page for a browser. It holds nothing of anybody's; what it shows it asks
of `/v1`, where the person is known by a cookie.
"""

from __future__ import annotations

from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.surfaces.web.assets import (
    FOR_EVER,
    SAFE_HEADERS,
    Asset,
    current_page,
    page_files,
)


def with_page(first: ASGIApp, allowed: TransportSecuritySettings) -> ASGIApp:
    """The first, and the page for hosts and origins that are allowed."""
    place = TransportSecurityMiddleware(allowed)
    page = Router(page_routes())

    async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == "/" or path.startswith("/assets/")):
            await first(scope, receive, send)
            return
        refused = await place.validate_request(Request(scope, receive))
        await (page if refused is None else refused)(scope, receive, send)

    return chosen


def page_routes() -> list[Route]:
    """For the server's own host names: whoever composes them checks that first."""
    return [
        Route("/", _index, methods=["GET"]),
        Route("/assets/current", _current, methods=["GET"]),
        Route("/assets/{digest}/{name:path}", _file, methods=["GET"]),
    ]


async def _index(request: Request) -> Response:
    return _answer(request, page_files().start, "no-cache")


async def _current(_: Request) -> Response:
    headers = {**SAFE_HEADERS, "Cache-Control": "no-store"}
    return Response(current_page(), headers=headers, media_type="application/json")


async def _file(request: Request) -> Response:
    found = page_files()
    asset = found.files.get(request.path_params["name"])
    if asset is None or request.path_params["digest"] != found.digest:
        headers = {**SAFE_HEADERS, "Cache-Control": "no-store"}
        return Response("no such file; reload the page", 404, headers, "text/plain")
    return _answer(request, asset, FOR_EVER)


def _answer(request: Request, asset: Asset, kept: str) -> Response:
    headers = {**SAFE_HEADERS, "Cache-Control": kept, "ETag": asset.etag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    body = asset.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = asset.packed
    return Response(body, headers=headers, media_type=asset.media_type)
