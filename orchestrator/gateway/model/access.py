"""One container's way to the model: a run's token opens it, for two paths and one budget."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

import anyio
import anyio.to_thread

from orchestrator.gateway.doorway import Decided, Doorway, undecided
from orchestrator.gateway.http.byte_stream import ByteStream
from orchestrator.gateway.http.server import BodyRoom, HttpRequest, HttpResponse, serve_http
from orchestrator.gateway.model import errors as model_errors
from orchestrator.gateway.model.bill import ModelBill, OnRequest
from orchestrator.gateway.model.credential import Credential
from orchestrator.gateway.model.exchange import ModelExchange
from orchestrator.gateway.model.given import IsOffered, every_tool, may_use
from orchestrator.gateway.model.remote_features import remote_features
from orchestrator.gateway.model.request import Asked, Unreadable, asked_for, read_body
from orchestrator.gateway.model.upstream import ModelWay, Upstream

log = logging.getLogger(__name__)

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
PATHS = (MESSAGES, COUNT_TOKENS)
"""All that an agent needs. Files, batches and the like belong to the account, not to a run."""

LOOK_BYTES = 64 * 1024
"""A longer request is looked through in a thread: the event loop serves other runs meanwhile."""

LOOKING_SECONDS = 0.005
LOOKING_SHARE = 0.2
"""Of all time, what the large requests of one container may take, if one takes longer than that: a
thread that computes keeps the event loop waiting, too."""

MAX_UNDER_WAY = 16
"""Requests of one container at once: the connections to the API are shared by all runs, and a CLI
that has its subagents work side by side needs about ten."""


class ModelAccess:
    """What one container may use of a model, for the run that it is bound to."""

    def __init__(
        self,
        upstream: Upstream,
        credential: Credential | None = None,
        server_tools: frozenset[str] = frozenset(),
        way: ModelWay = ModelWay(),  # noqa: B008 frozen
    ) -> None:
        self.way = way
        self.token = "run-" + secrets.token_urlsafe(32)
        """Worth nothing outside this container."""
        self._upstream = upstream
        self._credential = credential
        self._server_tools = server_tools
        """Which of the API's own tools may be used, such as "web_search"."""
        self.bill = ModelBill()
        """What the run that it is bound to may spend and has spent; replaced by `bind`."""
        self._doorway = Doorway()
        """Its open connections are of requests that are looked at, wait for their budget or are
        under way."""
        self._decided: Decided = undecided
        self._at_work: Callable[[], AbstractContextManager[None]] = nullcontext
        self._waiting = False
        self._model = ""
        """What the run's agent was given; "" for any."""
        self._is_offered: IsOffered = every_tool
        self._under_way: set[ModelExchange] = set()
        self._room = BodyRoom()
        self._looking = anyio.CapacityLimiter(1)
        """One container has one large request looked through at a time."""
        self._look_again_at = 0.0

    @property
    def is_idle(self) -> bool:
        """No request is under way: what was used is all in `bill.usage`."""
        return not self._under_way

    def wait(self) -> None:
        """The token opens nothing yet; the CLI is told so with a status that it does not retry."""
        self._waiting = True
        self._doorway.revoke()

    def bind(
        self,
        *,
        budget_usd: float | None,
        on_request: OnRequest | None,
        others_spent: Callable[[], bool] = lambda: False,
        at_work: Callable[[], AbstractContextManager[None]] = nullcontext,
        decided: Decided = undecided,
        model: str = "",
        most_requests: int | None = None,
        is_offered: IsOffered = every_tool,
    ) -> None:
        """Let the token open things for a run, whose bill begins at nothing.

        Each request is under way in a block of `at_work`; `decided` is waited for before a request
        is refused for want of money. `model` is the one that the run's agent was given; without it,
        any may be asked for. Tools that are not offered are taken out of its requests.
        """
        self._decided = decided
        self.bill = ModelBill(budget_usd, on_request, others_spent, most_requests)
        self._at_work = at_work
        self._model = model
        self._is_offered = is_offered
        self._waiting = False
        self._doorway.reopen()

    def revoke(self) -> None:
        """Cut everything; from now on the token opens nothing, until it is bound again.

        When this returns, `bill.usage` has all that the run has used.
        """
        self._waiting = False
        self._doorway.revoke()
        for exchange in tuple(self._under_way):
            exchange.cut()

    def __repr__(self) -> str:
        return f"ModelAccess(budget_usd={self.bill.budget_usd}, usage={self.bill.usage!r})"

    async def service(self, stream: ByteStream) -> None:
        """Answer a connection: `wire.listen(MODEL_PORT, "model", access.service)`."""

        async def serve(scope: anyio.CancelScope) -> None:
            await serve_http(stream, partial(self._answer, scope), self._room)

        await self._doorway.serve(stream, serve)

    async def _answer(self, scope: anyio.CancelScope, request: HttpRequest) -> HttpResponse:
        if (request.method, request.target) == ("HEAD", "/"):
            return HttpResponse(200)
        if self._waiting and self._shows_token(request):
            return model_errors.no_run_yet()
        if not self._is_known(request):
            return model_errors.unknown_token()
        if request.method != "POST" or request.path not in PATHS or not _is_plain(request.query):
            log.info("refused to a container: %r", request)
            return model_errors.other_path(PATHS)
        if self._doorway.open_connections >= MAX_UNDER_WAY:
            return model_errors.too_many(MAX_UNDER_WAY)
        under_way = ExitStack()
        under_way.enter_context(self._at_work())
        self._doorway.enter(scope)
        under_way.callback(self._doorway.leave, scope)
        try:
            begun = await self._begun(request, under_way.close)
        except BaseException:
            under_way.close()
            raise
        if isinstance(begun, HttpResponse):
            under_way.close()
            return begun
        return await begun.answer(self._upstream)

    async def _begun(
        self, request: HttpRequest, leave: Callable[[], None]
    ) -> ModelExchange | HttpResponse:
        """The exchange of a request that may be made; or what is said instead."""
        bill = self.bill
        paid_from = bill if request.path == MESSAGES else None
        remote, asked = await self._looked_through(request.body)
        if self._has_ended(bill):
            return model_errors.unknown_token()
        if remote:
            return model_errors.remote_feature(remote)
        if self._model and not (asked.plain_model and may_use(self._model, asked.model)):
            log.info("refused the model %r to a container", asked.model)
            return model_errors.other_model(asked.model, self._model)
        if not bill.takes_turn():
            return model_errors.out_of_turns(bill.most_requests)
        if paid_from is not None and not await paid_from.admit(asked.ceiling_usd):
            bill.note_refusal()
            await self._decided("budget", f"${bill.budget_usd or 0:g}", allowed=False)
            return model_errors.over_budget(bill.budget_usd)
        if self._has_ended(bill):  # those that were cut made place for this one
            if paid_from is not None:
                paid_from.give_back(asked.ceiling_usd)
            return model_errors.unknown_token()
        bill.begun = True

        def ended(exchange: ModelExchange) -> None:
            self._under_way.discard(exchange)
            leave()

        exchange = ModelExchange(request, asked, self._credential, paid_from, ended)
        self._under_way.add(exchange)
        return exchange

    def _has_ended(self, bill: ModelBill) -> bool:
        """Whether the run with that bill ended while one of its requests waited."""
        return self._doorway.revoked or bill is not self.bill

    def _is_known(self, request: HttpRequest) -> bool:
        return self._shows_token(request) and not self._doorway.revoked

    def _shows_token(self, request: HttpRequest) -> bool:
        bearer = request.header("authorization").removeprefix("Bearer ")
        right = self.token.encode()
        shown = [text.encode() for text in (request.header("x-api-key"), bearer)]
        matches = [hmac.compare_digest(text, right) for text in shown]
        return any(matches)

    async def _looked_through(self, body: bytes) -> tuple[str, Asked]:
        if len(body) <= LOOK_BYTES:
            return look_through(body, self._server_tools, self._is_offered)
        look = partial(look_through, body, self._server_tools, self._is_offered)
        async with self._looking:
            await anyio.sleep_until(self._look_again_at)
            began = anyio.current_time()
            try:
                return await anyio.to_thread.run_sync(look)
            finally:
                took = anyio.current_time() - began
                if took > LOOKING_SECONDS:
                    self._look_again_at = anyio.current_time() + rest_seconds(took)


def rest_seconds(took: float) -> float:
    """How long no look begins after such a one, so that looks take no more than their share."""
    return took / LOOKING_SHARE - took


def look_through(
    body: bytes, server_tools: frozenset[str], is_offered: IsOffered = every_tool
) -> tuple[str, Asked]:
    """What a request would have done elsewhere, if anything, and what it asks the model for."""
    try:
        asked = read_body(body)
    except Unreadable as exc:
        return str(exc), Asked()
    return remote_features(asked, server_tools), asked_for(asked, len(body), is_offered)


def _is_plain(query: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_.=&-]*", query) is not None
