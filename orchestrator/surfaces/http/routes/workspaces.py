"""Workspaces that callers send, and changes that they fetch (decisions/0091)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.responses import Response, StreamingResponse

from orchestrator.engine.workspaces.sent_workspaces import pieces_of
from orchestrator.surfaces.http.bodies import UploadBody
from orchestrator.surfaces.http.endpoint import ApiCall, ApiReply, Endpoint
from orchestrator.surfaces.http.problems import HttpRefusal

if TYPE_CHECKING:
    from orchestrator.workspace.archives.uploads import Upload

TAR_TYPE = "application/x-tar"

GZIP_TYPE = "application/gzip"


async def send(call: ApiCall) -> ApiReply:
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (TAR_TYPE, GZIP_TYPE):
        raise HttpRefusal(415, "unsupported_media_type", f"send it as {TAR_TYPE} or {GZIP_TYPE}")
    upload = await call.parts.service.sent.receive(
        call.asker.caller, pieces_of(call.request.stream()), gzipped=kind == GZIP_TYPE
    )
    headers = {"Location": f"/v1/workspaces/{upload.workspace}"}
    return ApiReply(_body(upload), 201, headers)


async def look(call: ApiCall) -> ApiReply:
    found = await call.parts.service.sent.find(call.asker.caller, call.named("workspace"))
    return ApiReply(_body(found))


async def remove(call: ApiCall) -> ApiReply:
    await call.parts.service.sent.remove(call.asker.caller, call.named("workspace"))
    return ApiReply(status=204)


async def changes(call: ApiCall) -> Response:
    pieces = await call.parts.service.sent.changes(await call.newest_seen())
    return StreamingResponse(_read(pieces), media_type=TAR_TYPE)


async def _read(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """What a thread reads, piece by piece."""
    while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
        yield piece


def _body(upload: Upload) -> UploadBody:
    return UploadBody(**upload.model_dump())


WORKSPACE_ENDPOINTS = (
    Endpoint(
        *("POST", "/v1/workspaces", send, "Send a workspace as an archive"),
        {201: UploadBody},
        (413, 422),
        takes=(TAR_TYPE, GZIP_TYPE),
        keyed=False,
    ),
    Endpoint(
        *("GET", "/v1/workspaces/{workspace}", look, "Ask whether a sent workspace is there"),
        {200: UploadBody},
        (404,),
    ),
    Endpoint(
        *("DELETE", "/v1/workspaces/{workspace}", remove, "Remove a sent workspace"),
        {204: None},
        (404, 409),
    ),
    Endpoint(
        *("GET", "/v1/runs/{run_id}/changes", changes, "Fetch what a run changed"),
        {200: TAR_TYPE},
        (404, 409),
    ),
)
