"""The API as a program that a web server runs: finds the route, checks who asks and what, answers.

Nothing that goes wrong here leaves as anything but a problem (problems.py).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.domain.task import Once
from orchestrator.domain.window import WINDOW, called_within
from orchestrator.errors import OrchestratorError
from orchestrator.surfaces.http.askers import Asker, Askers, window_of
from orchestrator.surfaces.http.bodies import Run
from orchestrator.surfaces.http.endpoint import (
    ApiCall,
    ApiParts,
    ApiReply,
    Endpoint,
    read_body,
    read_query,
)
from orchestrator.surfaces.http.openapi import description
from orchestrator.surfaces.http.problems import HttpRefusal, problem_answer, refusal_of
from orchestrator.surfaces.http.routes import (
    agents,
    events,
    machine,
    records,
    runs,
    server,
    servers,
    talk,
    workspaces,
)
from orchestrator.surfaces.http.run_bodies import run_body
from orchestrator.surfaces.http.sessions_facade.session_routes import SESSION_ENDPOINTS

if TYPE_CHECKING:
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.tasks import Tasks
    from orchestrator.settings import Settings

log = logging.getLogger(__name__)

JSON_BODY_BYTES = 4 * 1024 * 1024

JSON_BODY_SECONDS = 60.0
"""For all of a body to come."""

JSON_TYPE = "application/json"

API_ENDPOINTS: tuple[Endpoint, ...] = (
    *server.SERVER_ENDPOINTS,
    *runs.RUN_ENDPOINTS,
    *talk.TALK_ENDPOINTS,
    *events.EVENT_ENDPOINTS,
    *agents.AGENT_ENDPOINTS,
    *servers.SERVER_LIST_ENDPOINTS,
    *records.RECORD_ENDPOINTS,
    *workspaces.WORKSPACE_ENDPOINTS,
    *machine.MACHINE_ENDPOINTS,
    *SESSION_ENDPOINTS,
)

OPENAPI_PATH = "/v1/openapi.json"

STRANGERS = {
    "unauthorized": "no token, or one that is not known",
    "caller_missing": "no token, and every caller must have a name",
    "forbidden_origin": "an origin that is not allowed",
    "wrong_host": "a host name that is not this server's",
}
"""Refusals that the audit notes, by their codes."""

SAFE_ANSWER = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""With each answer: agents wrote some of it, so no browser shows it as a page, keeps it, or lets
another page have it."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True)
class Behind:
    """What the API stands on, which is there once `open` has returned."""

    settings: Settings
    service: Service
    tasks: Tasks
    open: Callable[[], Awaitable[None]]
    note_stranger: Callable[[str, str], Awaitable[None]]


class Api:
    """All routes of /v1. Have `serve_events` run beside it."""

    def __init__(
        self,
        behind: Behind,
        allowed: TransportSecuritySettings,
        endpoints: Sequence[Endpoint] = API_ENDPOINTS,
    ) -> None:
        self._behind = behind
        self._askers = Askers(behind.settings, allowed)
        self._described = description(endpoints)
        self._routes: list[tuple[Route, dict[str, Endpoint]]] = []
        self._leaving = anyio.Event()
        self._parts: ApiParts | None = None
        self._under_way: set[Once] = set()
        by_path: dict[str, dict[str, Endpoint]] = {}
        for each in endpoints:
            by_path.setdefault(each.path, {})[each.method] = each
        for path, methods in by_path.items():
            if "GET" in methods:
                methods.setdefault("HEAD", methods["GET"])
            self._routes.append((Route(path, _never), methods))

    def leave(self) -> None:
        """All streams are to end: the server is about to."""
        self._leaving.set()

    async def serve_events(self) -> None:
        """Hand out events, for ever."""
        await (await self._opened()).feed.serve()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], *_headers(request_id)]
            await send(message)

        try:
            response = await self._answer(request, request_id)
            await response(scope, receive, sending)
        except (events.ReaderCut, ClientDisconnect):
            log.info("request %s: its reader was cut, or has left", request_id)
        except Exception as exc:
            if begun:
                raise
            refusal = await self._refusal(request, exc, request_id)
            await problem_answer(refusal, request.url.path, request_id)(scope, receive, sending)

    async def _refusal(self, request: Request, exc: Exception, request_id: str) -> HttpRefusal:
        """What to say of what went wrong; what concerns strangers is in the audit before."""
        if isinstance(exc, OrchestratorError):
            refusal = refusal_of(exc)
        elif isinstance(exc, HttpRefusal):
            refusal = exc
        else:
            log.error("request %s failed", request_id, exc_info=exc)
            refusal = HttpRefusal(
                500, "internal_error", "this is a fault of the server's; see its log"
            )
        if refusal.code in STRANGERS:
            where = request.client.host if request.client else "unknown"
            await self._behind.note_stranger(where, STRANGERS[refusal.code])
        return refusal

    async def _answer(self, request: Request, request_id: str) -> Response:
        await self._askers.check_place(request)
        endpoint = self._found(request)
        if endpoint is None:
            return JSONResponse(self._described)
        if endpoint.path == "/v1/health":  # needs nothing that is opened later
            return (await server.health(_NO_CALL)).response()
        parts = await self._opened()
        asker = (
            Asker(caller="") if endpoint.open else await self._askers.asker(request, parts.logins)
        )
        if endpoint.person and not asker.person:
            raise HttpRefusal(403, "person_needed", "this is for the person at the page alone")
        query = read_query(endpoint.query, request.query_params)
        raw = b"" if endpoint.takes else await _body(request)
        body = None
        if endpoint.body is not None:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != JSON_TYPE and (raw or kind):
                raise HttpRefusal(415, "unsupported_media_type", f"send the body as {JSON_TYPE}")
            body = read_body(endpoint.body, raw)
        call = ApiCall(request, parts, asker, query, body, raw)
        token = WINDOW.set(window_of(request, asker))
        try:
            with called_within(request.headers.get("traceparent"), request_id):
                return await self._handled(endpoint, call)
        finally:
            WINDOW.reset(token)

    async def _handled(self, endpoint: Endpoint, call: ApiCall) -> Response:
        once = call.once if endpoint.method == "POST" and not endpoint.open else None
        if once is None:
            return _response(await endpoint.handle(call))
        key = once.model_copy(update={"sha256": ""})  # whatever it asks for
        if key in self._under_way:
            said = "a request with this key is under way; ask again in a moment"
            raise HttpRefusal(409, "idempotency_key_in_use", said, {"Retry-After": "1"})
        self._under_way.add(key)
        try:
            if not endpoint.keyed:
                return _response(await endpoint.handle(call))
            return await self._once(endpoint, call, once)
        finally:
            self._under_way.discard(key)

    async def _once(self, endpoint: Endpoint, call: ApiCall, once: Once) -> Response:
        keys, project = call.parts.service.store.request_keys, call.parts.service.project
        kept = await keys.find(project, once)
        tells_run = endpoint.answers.get(200) is Run
        if kept is not None:
            said: dict[str, Any] = json.loads(kept.answer)
            headers = {**said["headers"], "Idempotency-Replayed": "true"}
            if tells_run:  # as it is now, and only to whom may still see it
                body = await run_body(call, call.run_id)
                return ApiReply(body, said["status"], headers).response()
            return Response(said["body"], said["status"], headers, media_type=JSON_TYPE)
        response = _response(await endpoint.handle(call))
        headers = {k: v for k, v in response.headers.items() if k == "location"}
        text = "" if tells_run else bytes(response.body).decode()
        answer = {"status": response.status_code, "headers": headers, "body": text}
        run_id = str(call.request.path_params.get("run_id", ""))  # with which the answer goes
        await keys.keep(project, once, json.dumps(answer), run_id)
        return response

    def _found(self, request: Request) -> Endpoint | None:
        """The endpoint of a request; None for that which describes them all."""
        if request.url.path == OPENAPI_PATH and request.method in ("GET", "HEAD"):
            return None
        for route, methods in self._routes:
            match, child = route.matches({**request.scope, "method": "GET"})
            if match is Match.NONE:
                continue
            if request.method not in methods:
                allow = {"Allow": ", ".join(sorted(methods))}
                said = f"{request.url.path} does not take {request.method[:20]}"
                raise HttpRefusal(405, "method_not_allowed", said, allow)
            request.scope["path_params"] = child["path_params"]
            return methods[request.method]
        raise HttpRefusal(
            404, "not_found", f"there is nothing here; {OPENAPI_PATH} names all there is"
        )

    async def _opened(self) -> ApiParts:
        behind = self._behind
        await behind.open()
        if self._parts is None:
            from orchestrator.engine.tasks.event_feed import EventFeed
            from orchestrator.store.page_logins import PageLogins

            store, project = behind.service.store, behind.service.project
            self._parts = ApiParts(
                settings=behind.settings,
                service=behind.service,
                tasks=behind.tasks,
                feed=EventFeed(store, project),
                logins=PageLogins(store.database, project),
                leaving=self._leaving,
            )
        return self._parts


def beside(first: ASGIApp, api: ASGIApp, prefix: str = "/v1") -> ASGIApp:
    """The first, but for what begins with a prefix."""

    async def chosen(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        ours = scope["type"] == "http" and (path == prefix or path.startswith(f"{prefix}/"))
        await (api if ours else first)(scope, receive, send)

    return chosen


async def _body(request: Request) -> bytes:
    """All of a body, if it is not too long, and comes in time."""
    found = bytearray()
    with anyio.move_on_after(JSON_BODY_SECONDS):
        async for chunk in request.stream():
            found += chunk
            if len(found) > JSON_BODY_BYTES:
                raise HttpRefusal(413, "too_large", f"a body has at most {JSON_BODY_BYTES} bytes")
        return bytes(found)
    said = f"the body did not come within {JSON_BODY_SECONDS:.0f} s; send it again"
    raise HttpRefusal(408, "too_slow", said, {"Connection": "close"})


def _response(reply: Any) -> Response:
    return reply if isinstance(reply, Response) else reply.response()


def _headers(request_id: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-request-id", request_id.encode()),
        *SAFE_ANSWER,
    ]


async def _never(_: Request) -> Response:
    raise AssertionError  # only its path is used


_NO_CALL: Any = None
