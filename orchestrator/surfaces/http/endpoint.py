"""What one route is: what it takes, what it answers, and what it does. The API and its description
are made of these.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import anyio
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from orchestrator.domain import Frozen
from orchestrator.domain.task import Once
from orchestrator.errors import RunNotFound
from orchestrator.surfaces.http.problems import HttpRefusal
from orchestrator.surfaces.mcp.arguments import wrong_arguments

if TYPE_CHECKING:
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.event_feed import EventFeed
    from orchestrator.engine.tasks.tasks import Tasks
    from orchestrator.settings import Settings
    from orchestrator.store.page_logins import PageLogins
    from orchestrator.surfaces.http.askers import Asker

MAX_WAIT_SECONDS = 300
"""That `Prefer: wait=N` can ask for."""

KEY_HEADER = "idempotency-key"

_REQUEST_KEY = re.compile(r"[!-~]{1,255}")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FRACTION = re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,9})?")
_WAIT = re.compile(r"\s*wait\s*=\s*([0-9]{1,9})\s*", re.IGNORECASE)


class NoQuery(Frozen):
    """Nothing can be asked for."""


@dataclass(frozen=True)
class ApiParts:
    """What routes translate for."""

    settings: Settings
    service: Service
    tasks: Tasks
    feed: EventFeed
    logins: PageLogins
    leaving: anyio.Event
    """Set when all streams are to end."""


@dataclass(frozen=True)
class ApiCall:
    """One request, checked."""

    request: Request
    parts: ApiParts
    asker: Asker
    query: Any
    body: Any
    raw: bytes

    @property
    def run_id(self) -> str:
        return self.named("run_id")

    def named(self, name: str) -> str:
        """What the path has in the place of a name."""
        return str(self.request.path_params[name])

    @property
    def wait_seconds(self) -> int | None:
        """For how long `Prefer: wait=N` wants to wait; None if it does not."""
        for part in self.request.headers.get("prefer", "").split(","):
            if found := _WAIT.fullmatch(part):
                return min(int(found[1]), MAX_WAIT_SECONDS)
        return None

    @property
    def once(self) -> Once | None:
        """What the request is known by, if it has a key; a HttpRefusal for one that is none."""
        key = self.request.headers.get(KEY_HEADER)
        if key is None:
            return None
        if not _REQUEST_KEY.fullmatch(key):
            raise HttpRefusal(
                400, "invalid_request", "Idempotency-Key has 1 to 255 ASCII characters, no blanks"
            )
        return Once(
            asker=self.asker.key,
            method=self.request.method,
            path=self.request.url.path,
            key=key,
            sha256=hashlib.sha256(self.raw).hexdigest(),
        )

    async def check_seen(self, run_id: str) -> None:
        """RunNotFound unless who asks may see a run; of a person, unless it is the project's."""
        service = self.parts.service
        if not self.asker.person:
            await self.parts.tasks.book.check(run_id, self.asker.caller)
            return
        record = await service.store.run(run_id)
        if record is None or record.project != service.project:
            raise RunNotFound(f"there is no run {run_id!r} in this project")

    async def newest_seen(self) -> str:
        """The run that the path stands for: of an agent made at call time, the last that went on
        under its id. RunNotFound as above.
        """
        await self.check_seen(self.run_id)
        return await self.parts.tasks.book.newest(self.run_id, self.asker.sees_as)


@dataclass(frozen=True)
class ApiReply:
    """What a request is answered with; no body is none."""

    body: BaseModel | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        if self.body is None:
            return Response(status_code=self.status, headers=dict(self.headers))
        text = self.body.model_dump_json()
        return Response(text, self.status, dict(self.headers), media_type="application/json")


AnswerBody = type[BaseModel] | str | None
"""Of an answer: its model; the media type of what is no JSON; none."""

Handle = Callable[[ApiCall], Awaitable[ApiReply | Response]]


@dataclass(frozen=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    handle: Handle
    summary: str
    answers: Mapping[int, AnswerBody]
    """By status."""
    refusals: tuple[int, ...] = ()
    """Statuses of problems, besides those that any request can have."""
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    streams: bool = False
    """Also answers with server-sent events."""
    waits: bool = False
    """Heeds `Prefer: wait=N`."""
    takes: tuple[str, ...] = ()
    """Media types of a body that is no JSON; the handler reads it."""
    open: bool = False
    """For all that ask."""
    person: bool = False
    """Only for the person at the page."""
    keyed: bool = True
    """A POST that has its answer kept under an Idempotency-Key; a run's is in its transaction."""


def read_query(model: type[BaseModel], params: QueryParams) -> BaseModel:
    """Query parameters -> values; a HttpRefusal for what is wrong with them. Pure."""
    given: dict[str, Any] = {}
    for name in dict.fromkeys(params):
        texts = params.getlist(name)
        known = model.model_fields.get(name)
        if known is None:
            given[name] = texts
        elif _is_of(known.annotation, tuple):
            given[name] = tuple(texts)
        elif len(texts) > 1:
            raise HttpRefusal(
                400, "invalid_request", f"{name} is there {len(texts)} times; once is it"
            )
        else:
            given[name] = _value(known.annotation, texts[0])
    try:
        return model.model_validate(given, strict=True)
    except ValidationError as exc:
        raise HttpRefusal(400, "invalid_request", f"the query: {wrong_arguments(exc)}") from exc


def read_body(model: type[BaseModel], raw: bytes) -> BaseModel:
    """A JSON body -> values; a HttpRefusal for what is wrong with it. Pure."""
    try:
        return model.model_validate_json(raw or b"{}", strict=True)
    except ValidationError as exc:
        raise HttpRefusal(400, "invalid_request", f"the body: {wrong_arguments(exc)}") from exc


def _is_of(annotation: Any, kind: type) -> bool:
    names = (annotation, getattr(annotation, "__origin__", None), *get_args(annotation))
    return any(each is kind or getattr(each, "__origin__", None) is kind for each in names)


def _value(annotation: Any, text: str) -> object:
    if _is_of(annotation, bool):
        return {"true": True, "false": False}.get(text, text)
    if _is_of(annotation, int) and _NUMBER.fullmatch(text):
        return int(text)
    if _is_of(annotation, float) and _FRACTION.fullmatch(text):
        return float(text)
    return text
