"""Whatever goes wrong -> one body for all readers: a problem of RFC 9457 that also has the fields
`error`, `code` and `request_id`.
"""

from __future__ import annotations

from http import HTTPStatus

from pydantic import Field
from starlette.responses import Response

from orchestrator.domain import Frozen
from orchestrator.errors import (
    AgentNotFound,
    ApplyRefused,
    AskedBefore,
    AuthorError,
    CallerError,
    CallerMissing,
    CallerRefused,
    CallInvalid,
    CopyRefused,
    KeyReused,
    MountRefused,
    NameTaken,
    NotTrusted,
    OperatorError,
    OrchestratorError,
    RunNotFound,
    RunRefused,
    ServerNotFound,
    SessionRefused,
    ThreadRefused,
    WorkspaceNotFound,
)

PROBLEM_TYPE = "application/problem+json"

STATUSES: tuple[tuple[type[OrchestratorError], int], ...] = (
    (CallInvalid, 400),
    (CallerMissing, 401),
    (CallerRefused, 403),
    (NotTrusted, 403),
    (AgentNotFound, 404),
    (RunNotFound, 404),
    (WorkspaceNotFound, 404),
    (ServerNotFound, 404),
    (RunRefused, 409),
    (SessionRefused, 409),
    (ApplyRefused, 409),
    (NameTaken, 409),
    (ThreadRefused, 409),
    (AskedBefore, 409),
    (KeyReused, 409),
    (MountRefused, 422),
    (CopyRefused, 422),
    (AuthorError, 422),
    (CallerError, 400),
    (OperatorError, 503),
    (OrchestratorError, 500),
)
"""The first that fits."""


class ProblemBody(Frozen):
    """What any request may be answered with instead of what it is for."""

    type: str = "about:blank"
    title: str = Field(description="The status in words")
    status: int
    detail: str = Field(description="What happened, to what, and what to do next")
    instance: str = Field(description="The path that was asked for")
    error: str = Field(description="The same as detail")
    code: str = Field(description="For programs; it does not change between releases")
    request_id: str = Field(description="As X-Request-Id has it")


class HttpRefusal(Exception):
    """A request that is not done, for a reason of this surface's own."""

    def __init__(
        self, status: int, code: str, detail: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = headers or {}


def refusal_of(exc: OrchestratorError) -> HttpRefusal:
    """An error of ours as HTTP says it. Pure."""
    status = next(status for kind, status in STATUSES if isinstance(exc, kind))
    detail = str(exc)
    headers: dict[str, str] = {}
    if isinstance(exc, RunNotFound):
        detail = "there is no such run; GET /v1/runs lists yours"
    elif isinstance(exc, CallerMissing):
        headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(exc, AskedBefore) or status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1" if isinstance(exc, AskedBefore) else "10"
    return HttpRefusal(status, exc.code, detail, headers)


def problem_answer(refusal: HttpRefusal, path: str, request_id: str) -> Response:
    detail = str(refusal).encode(errors="replace").decode()
    body = ProblemBody(
        title=HTTPStatus(refusal.status).phrase,
        status=refusal.status,
        detail=detail,
        instance=path,
        error=detail,
        code=refusal.code,
        request_id=request_id,
    )
    return Response(
        body.model_dump_json(),
        refusal.status,
        refusal.headers,
        media_type=PROBLEM_TYPE,
    )
