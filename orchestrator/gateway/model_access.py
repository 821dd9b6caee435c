"""One container's way to the model: a run's token opens it, for two paths and one budget."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread

from orchestrator.domain.result import Usage
from orchestrator.gateway import model_errors
from orchestrator.gateway.credential import Credential
from orchestrator.gateway.http_server import ByteStream, Request, Response, Room, serve_http
from orchestrator.gateway.model_bill import ModelBill, OnRequest
from orchestrator.gateway.model_exchange import ModelExchange
from orchestrator.gateway.remote_features import remote_features
from orchestrator.gateway.upstream import Upstream

log = logging.getLogger(__name__)

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
PATHS = (MESSAGES, COUNT_TOKENS)
"""All that an agent needs. Files, batches and the like belong to the account, not to a run."""

LOOK_BYTES = 64 * 1024
"""A request of more is looked through beside the event loop, where others wait for their turn."""


class ModelAccess:
    """What one container may use of a model, for the run that it is bound to."""

    def __init__(
        self,
        upstream: Upstream,
        credential: Credential | None = None,
        server_tools: frozenset[str] = frozenset(),
    ) -> None:
        self.token = "run-" + secrets.token_urlsafe(32)
        """Worth nothing outside this container."""
        self._upstream = upstream
        self._credential = credential
        self._server_tools = server_tools
        """Which of the API's own tools may be used, such as "web_search"."""
        self._bill = ModelBill()
        self._revoked = False
        self._waiting = False
        self._under_way: set[ModelExchange] = set()
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
    def was_asked(self) -> bool:
        """The run has made a request: its CLI is in the middle of a turn, or was."""
        return self._bill.begun

    @property
    def is_idle(self) -> bool:
        """No request is under way: what was used is all in `usage`."""
        return not self._under_way

    def wait(self) -> None:
        """The token opens nothing yet, and says so in a way that nobody tries again for."""
        self._revoked = self._waiting = True

    def bind(
        self,
        *,
        budget_usd: float | None,
        on_request: OnRequest | None,
        others_spent: Callable[[], bool] = lambda: False,
    ) -> None:
        """Let the token open things for a run, whose bill begins at nothing."""
        self._bill = ModelBill(budget_usd, on_request, others_spent)
        self._revoked = self._waiting = False

    def revoke(self) -> None:
        """From now on the token opens nothing, until it is bound again."""
        self._revoked = True
        self._waiting = False

    def __repr__(self) -> str:
        return f"ModelAccess(budget_usd={self.budget_usd}, usage={self.usage!r})"

    async def service(self, stream: ByteStream) -> None:
        """Answer a connection: `wire.listen(MODEL_PORT, "model", access.service)`."""
        await serve_http(stream, self._answer, self._room)

    async def _answer(self, request: Request) -> Response:
        if (request.method, request.target) == ("HEAD", "/"):
            return Response(200)
        if self._waiting and self._shows_token(request):
            return model_errors.no_run_yet()
        if not self._is_known(request):
            return model_errors.unknown_token()
        if request.method != "POST" or request.path not in PATHS or not _is_plain(request.query):
            log.info("refused to a container: %r", request)
            return model_errors.other_path(PATHS)
        bill = self._bill
        remote = await self._remote_features(request.body)
        if self._revoked or bill is not self._bill:
            return model_errors.unknown_token()  # its run has ended meanwhile
        if remote:
            return model_errors.remote_feature(remote)
        if request.path == MESSAGES and bill.is_spent:
            bill.note_refusal()
            return model_errors.over_budget(bill.budget_usd)
        return await self._forward(request, bill)

    def _is_known(self, request: Request) -> bool:
        return self._shows_token(request) and not self._revoked

    def _shows_token(self, request: Request) -> bool:
        bearer = request.header("authorization").removeprefix("Bearer ")
        right = self.token.encode()
        shown = [text.encode() for text in (request.header("x-api-key"), bearer)]
        matches = [hmac.compare_digest(text, right) for text in shown]
        return any(matches)

    async def _remote_features(self, body: bytes) -> str:
        if len(body) <= LOOK_BYTES:
            return remote_features(body, self._server_tools)
        look = partial(remote_features, body, self._server_tools)
        return await anyio.to_thread.run_sync(look, limiter=self._looking)

    async def _forward(self, request: Request, bill: ModelBill) -> Response:
        paid_from = bill if request.path == MESSAGES else None
        bill.begun = True
        exchange = ModelExchange(request, self._credential, paid_from, self._under_way.discard)
        self._under_way.add(exchange)
        return await exchange.answer(self._upstream)


def _is_plain(query: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_.=&-]*", query) is not None
