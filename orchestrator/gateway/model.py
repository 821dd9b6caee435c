"""The model service: a run's token in, the real credential out, and the bill in between."""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from orchestrator.domain import Frozen
from orchestrator.domain.result import Usage
from orchestrator.errors import OperatorError
from orchestrator.gateway.credential import Credential, credential_of
from orchestrator.gateway.http_server import (
    ByteStream,
    Cut,
    Headers,
    Request,
    Response,
    Room,
    serve_http,
)
from orchestrator.gateway.metering import Meter, Tally
from orchestrator.gateway.remote_features import remote_features
from orchestrator.gateway.upstream import (
    HttpUpstream,
    Upstream,
    UpstreamLost,
    UpstreamRequest,
    UpstreamResponse,
)
from orchestrator.settings import ANTHROPIC_BASE_URL, Settings

log = logging.getLogger(__name__)

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
PATHS = (MESSAGES, COUNT_TOKENS)
"""All that an agent needs. Files, batches and the like belong to the account, not to a run."""

DENIED = "x-orchestrator-denied"
"""On answers of ours, so that nobody takes them for the API's."""

ERROR_BODY_BYTES = 1024 * 1024
"""Of an error's text: it is held until it has been searched for the credential."""

LOOK_BYTES = 64 * 1024
"""A request of more is looked through beside the event loop, where others wait for their turn."""

CLIENT_GONE = 499
"""The status of a request whose client did not wait for the answer."""

DROPPED_HEADERS = frozenset(
    (
        # hop by hop
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        # set anew for the other side
        *("host", "content-length", "accept-encoding"),
        # who somebody is, which is ours to say
        *("authorization", "x-api-key", "cookie", "forwarded", "via"),
    )
)
DROPPED_PREFIXES = ("proxy-", "x-forwarded-")

PASSED_HEADERS = frozenset(
    ("content-type", "retry-after", "retry-after-ms", "request-id", "x-should-retry")
)
PASSED_PREFIXES = ("anthropic-ratelimit-",)
"""Of the answer's headers; the others tell of the account, or of the way."""


class ModelRequestSeen(Frozen):
    """One request to the model that has ended, for the run's record."""

    status: int
    """As the container saw it; 499 when it did not wait for the answer."""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    duration_ms: int = 0
    error_type: str = ""
    """The API's word ("overloaded_error"), or ours: unreachable, redirected, stream_cut,
    client_gone, budget_exceeded."""


OnRequest = Callable[[ModelRequestSeen], None]


class _Bill:
    """What one run may spend, what it has spent, and who is told. A request stays on the bill that
    it was begun on, though the access may be another run's by the time it ends.
    """

    def __init__(self, budget_usd: float | None, on_request: OnRequest | None) -> None:
        self.budget_usd = budget_usd
        self.exhausted = False
        self.usage = Usage()
        self._on_request = on_request

    @property
    def is_spent(self) -> bool:
        return self.budget_usd is not None and self.usage.cost_usd >= self.budget_usd

    def count(self, seen: ModelRequestSeen) -> None:
        before = self.usage
        self.usage = Usage(
            requests=before.requests + 1,
            input_tokens=before.input_tokens + seen.input_tokens,
            output_tokens=before.output_tokens + seen.output_tokens,
            cache_read_tokens=before.cache_read_tokens + seen.cache_read_tokens,
            cache_write_tokens=before.cache_write_tokens + seen.cache_write_tokens,
            cost_usd=before.cost_usd + seen.cost_usd,
        )
        self.tell(seen)

    def tell(self, seen: ModelRequestSeen) -> None:
        if self._on_request is not None:
            try:
                self._on_request(seen)
            except Exception:  # the answer does not depend on who listens
                log.exception("a model request could not be recorded")


class ModelService:
    """The way to the model, made once; each run gets an access of its own."""

    def __init__(self, upstream: Upstream | None, credential: Credential | None = None) -> None:
        self._upstream = upstream
        self._credential = credential

    @property
    def has_model(self) -> bool:
        """There is a real model to talk to."""
        return self._upstream is not None

    def access(
        self,
        *,
        budget_usd: float | None = None,
        on_request: OnRequest | None = None,
        upstream: Upstream | None = None,
        server_tools: frozenset[str] = frozenset(),
    ) -> ModelAccess:
        """What one run may use. Another upstream, such as a scripted one, gets no credential."""
        if upstream is not None:
            return ModelAccess(
                upstream,
                None,
                budget_usd=budget_usd,
                on_request=on_request,
                server_tools=server_tools,
            )
        if self._upstream is None:
            raise OperatorError(
                "there is no credential for the model API; set ANTHROPIC_API_KEY, "
                "ANTHROPIC_AUTH_TOKEN or CLAUDE_CODE_OAUTH_TOKEN"
            )
        return ModelAccess(
            self._upstream,
            self._credential,
            budget_usd=budget_usd,
            on_request=on_request,
            server_tools=server_tools,
        )


@asynccontextmanager
async def open_model_service(settings: Settings) -> AsyncIterator[ModelService]:
    """Settings -> the real model. Without a credential only accesses of another upstream work."""
    credential = credential_of(settings)
    if credential is None and settings.anthropic_base_url == ANTHROPIC_BASE_URL:
        yield ModelService(None)
        return
    upstream = HttpUpstream(settings.anthropic_base_url)
    try:
        yield ModelService(upstream, credential)
    finally:
        await upstream.aclose()


class ModelAccess:
    """One run's access to the model. Hold it by `with`: leaving the block revokes the token."""

    def __init__(
        self,
        upstream: Upstream,
        credential: Credential | None = None,
        *,
        budget_usd: float | None = None,
        on_request: OnRequest | None = None,
        server_tools: frozenset[str] = frozenset(),
    ) -> None:
        self.token = "run-" + secrets.token_urlsafe(32)
        """Worth nothing outside this run."""
        self._upstream = upstream
        self._credential = credential
        self._bill = _Bill(budget_usd, on_request)
        self._server_tools = server_tools
        """Which of the API's own tools the run may use, such as "web_search"."""
        self._revoked = False
        self._waiting = False
        self._under_way = 0
        self._room = Room()
        self._looking = anyio.CapacityLimiter(1)
        """One container has one large request looked through at a time."""

    @property
    def usage(self) -> Usage:
        """What the run has taken so far. A request under way counts when it ends."""
        return self._bill.usage

    @property
    def budget_usd(self) -> float | None:
        return self._bill.budget_usd

    @property
    def budget_exhausted(self) -> bool:
        """A request was refused for want of budget."""
        return self._bill.exhausted

    @property
    def is_idle(self) -> bool:
        """No request is under way: what was used is all in `usage`."""
        return not self._under_way

    def wait(self) -> None:
        """The token opens nothing yet, and says so in a way that nobody tries again for."""
        self._revoked = self._waiting = True

    def bind(self, *, budget_usd: float | None, on_request: OnRequest | None) -> None:
        """Let the token open things for a run, whose bill begins at nothing."""
        self._bill = _Bill(budget_usd, on_request)
        self._revoked = self._waiting = False

    def revoke(self) -> None:
        """From now on the token opens nothing, until it is bound again."""
        self._revoked = True
        self._waiting = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.revoke()

    def __repr__(self) -> str:
        return f"ModelAccess(budget_usd={self.budget_usd}, usage={self.usage!r})"

    async def service(self, stream: ByteStream) -> None:
        """Answer a connection: `wire.listen(MODEL_PORT, "model", access.service)`."""
        await serve_http(stream, self._answer, self._room)

    async def _answer(self, request: Request) -> Response:
        if (request.method, request.target) == ("HEAD", "/"):
            return Response(200)
        if self._waiting and self._shows_token(request):
            # Not 401: who hears that comes again, and again.
            why = "this container waits for a run; until then its token opens nothing"
            return _error(403, "permission_error", why, denied="token")
        if not self._is_known(request):
            return _unknown()
        if request.method != "POST" or request.path not in PATHS or not _plain(request.query):
            log.info("refused to a container: %r", request)
            why = f"refused by the orchestrator: an agent may only POST to {' and '.join(PATHS)}"
            return _error(403, "permission_error", why, denied="path")
        bill = self._bill
        remote = await self._remote_features(request.body)
        if self._revoked or bill is not self._bill:
            return _unknown()  # its run has ended meanwhile
        if remote:
            why = (
                f"refused by the orchestrator: {remote} would work outside the container, "
                "on the API's side; agent.md does not allow it"
            )
            return _error(403, "permission_error", why, denied="server_tool")
        if request.path == MESSAGES and bill.is_spent:
            return _over_budget(bill)
        return await self._forward(request, bill)

    async def _remote_features(self, body: bytes) -> str:
        if len(body) <= LOOK_BYTES:
            return remote_features(body, self._server_tools)
        look = partial(remote_features, body, self._server_tools)
        return await anyio.to_thread.run_sync(look, limiter=self._looking)

    def _is_known(self, request: Request) -> bool:
        return self._shows_token(request) and not self._revoked

    def _shows_token(self, request: Request) -> bool:
        bearer = request.header("authorization").removeprefix("Bearer ")
        right = self.token.encode()
        shown = [text.encode() for text in (request.header("x-api-key"), bearer)]
        matches = [hmac.compare_digest(text, right) for text in shown]
        return any(matches)

    async def _forward(self, request: Request, bill: _Bill) -> Response:
        exchange = _Exchange(self, bill, request)
        headers = _forwarded(request.headers)
        if self._credential is not None:
            headers = self._credential.added_to(headers)
        sent = UpstreamRequest("POST", request.target, headers, request.body)
        try:
            answer = await exchange.held.enter_async_context(self._upstream.send(sent))
        except UpstreamLost as exc:
            exchange.finish(502, "unreachable")
            return _unreachable(exc)
        except anyio.get_cancelled_exc_class():
            exchange.finish(CLIENT_GONE, "client_gone")
            raise
        try:
            return await self._passed_on(answer, exchange)
        except BaseException:
            await exchange.close()
            raise

    async def _passed_on(self, answer: UpstreamResponse, exchange: _Exchange) -> Response:
        if 300 <= answer.status < 400:
            exchange.finish(502, "redirected")
            await exchange.close()
            why = (
                f"the model API answered with a redirect ({answer.status}), which is not followed; "
                "ANTHROPIC_BASE_URL has to name the address it leads to"
            )
            return _error(502, "api_error", why)
        headers = tuple(
            (key, value)
            for key, value in answer.headers
            if key in PASSED_HEADERS or key.startswith(PASSED_PREFIXES)
        )
        exchange.start(answer)
        if answer.status >= 400:
            body = await self._error_body(answer, exchange)
            return Response(answer.status, headers, body, exchange.close)
        return Response(answer.status, headers, exchange.passing(answer.body), exchange.close)

    async def _error_body(self, answer: UpstreamResponse, exchange: _Exchange) -> bytes:
        """All of it, since some proxies repeat the credential that they did not like."""
        body = bytearray()
        try:
            async for chunk in exchange.passing(answer.body):
                body += chunk[: ERROR_BODY_BYTES - len(body)]
        except Cut:
            log.debug("an error of the model API broke off")
        if self._credential is None:
            return bytes(body)
        return self._credential.removed_from(bytes(body))


class _Exchange:
    """One request on its way to the model, and what it comes to."""

    def __init__(self, access: ModelAccess, bill: _Bill, request: Request) -> None:
        self.held = AsyncExitStack()
        self._access = access
        self._bill = bill
        self._counts = request.path == MESSAGES
        self._meter = Meter(request.body)
        self._began = time.monotonic()
        self._status = 0
        self._finished = False
        access._under_way += 1  # noqa: SLF001 the two halves of one thing

    def start(self, answer: UpstreamResponse) -> None:
        self._status = answer.status
        kind = next((value for key, value in answer.headers if key == "content-type"), "")
        self._meter.start(answer.status, kind)

    async def passing(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body as it comes, read along."""
        try:
            async for chunk in body:
                self._meter.feed(chunk)
                yield chunk
        except UpstreamLost as exc:
            log.warning("a model's answer broke off: %s", exc)
            self.finish(self._status, "stream_cut")
            raise Cut from None
        self.finish(self._status, "stream_cut" if self._meter.broke_off else "")

    def finish(self, status: int, problem: str = "") -> None:
        """Write it down, once. Whatever was used before a problem counts."""
        if self._finished:
            return
        self._finished = True
        self._access._under_way -= 1  # noqa: SLF001 as above
        if not self._counts:
            return
        unanswered = problem in ("unreachable", "redirected")
        tally = Tally() if unanswered else self._meter.tally()
        used = tally.model_dump(exclude={"error_type"})
        duration = round((time.monotonic() - self._began) * 1000)
        error_type = tally.error_type or problem
        seen = ModelRequestSeen(status=status, duration_ms=duration, error_type=error_type, **used)
        self._bill.count(seen)

    async def close(self) -> None:
        """Let go of the upstream; who was not finished by now will not be."""
        try:
            await self.held.aclose()
        finally:
            self.finish(CLIENT_GONE, "client_gone")


def _forwarded(headers: Headers) -> Headers:
    named = [value for key, value in headers if key == "connection"]
    hops = {name.strip().lower() for value in named for name in value.split(",")}
    kept = tuple(
        (key, value)
        for key, value in headers
        if key not in DROPPED_HEADERS and key not in hops and not key.startswith(DROPPED_PREFIXES)
    )
    # Nothing compressed, since it has to be read on the way.
    return (*kept, ("accept-encoding", "identity"))


def _plain(query: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_.=&-]*", query) is not None


def _unknown() -> Response:
    why = "the run's token is missing, wrong or no longer valid"
    return _error(401, "authentication_error", why, denied="token")


def _over_budget(bill: _Bill) -> Response:
    if not bill.exhausted:
        # Once: whoever goes on asking gets the answer, but no place in the record.
        bill.tell(ModelRequestSeen(status=400, error_type="budget_exceeded"))
    bill.exhausted = True
    why = f"refused by the orchestrator: the run's budget of ${bill.budget_usd:g} is spent"
    # 400, since that is what a client does not try again.
    return _error(400, "invalid_request_error", why, denied="budget")


def _unreachable(exc: UpstreamLost) -> Response:
    why = (
        f"the orchestrator cannot reach the model API ({exc}); whoever runs it should check "
        "ANTHROPIC_BASE_URL, the network and the proxy settings"
    )
    return _error(502, "api_error", why)


def _error(status: int, kind: str, message: str, *, denied: str = "") -> Response:
    """In the shape of the API's own errors."""
    headers = [("content-type", "application/json")]
    if denied:
        headers.append((DENIED, denied))
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return Response(status, tuple(headers), json.dumps(body).encode())
