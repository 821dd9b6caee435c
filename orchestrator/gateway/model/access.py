"""One container's way to the model: a run's token opens it, for one format and one budget."""

from __future__ import annotations

import hmac
import logging
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
from orchestrator.gateway.model.errors import ModelError
from orchestrator.gateway.model.exchange import ModelExchange, Road
from orchestrator.gateway.model.formats.contract import Format, Looked, ModelCall, Rules
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.given import IsOffered, every_tool, is_side_model, may_use
from orchestrator.gateway.model.request import Asked, Unreadable, read_body
from orchestrator.gateway.model.upstream import ModelWay, Upstream
from orchestrator.runners.contract import WireFormat

log = logging.getLogger(__name__)

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
        wire_format: WireFormat = "anthropic",
    ) -> None:
        self.way = way
        self.format = FORMATS[wire_format]
        self.token = "run-" + secrets.token_urlsafe(32)
        """Worth nothing outside this container."""
        self._road = Road(upstream, credential, way)
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
        answer = await self._considered(scope, request)
        return answer.in_shape(self.format) if isinstance(answer, ModelError) else answer

    async def _considered(
        self, scope: anyio.CancelScope, request: HttpRequest
    ) -> HttpResponse | ModelError:
        if self._waiting and self._shows_token(request):
            return model_errors.no_run_yet()
        if not self._is_known(request):
            return model_errors.unknown_token()
        call = self.format.call(request.path, request.query) if request.method == "POST" else None
        if call is None:
            log.info("refused to a container: %r", request)
            return model_errors.other_path(self.format.paths)
        if self._doorway.open_connections >= MAX_UNDER_WAY:
            return model_errors.too_many(MAX_UNDER_WAY)
        under_way = ExitStack()
        under_way.enter_context(self._at_work())
        self._doorway.enter(scope)
        under_way.callback(self._doorway.leave, scope)
        try:
            begun = await self._begun(request, call, under_way.close)
        except BaseException:
            under_way.close()
            raise
        if isinstance(begun, ModelError):
            under_way.close()
            return begun
        return await begun.answer()

    async def _begun(
        self, request: HttpRequest, call: ModelCall, leave: Callable[[], None]
    ) -> ModelExchange | ModelError:
        """The exchange of a request that may be made; or what is said instead."""
        bill = self.bill
        paid_from = None if call.is_free else bill
        remote, asked = await self._looked_through(request.body, call)
        if self._has_ended(bill):
            return model_errors.unknown_token()
        if remote:
            return model_errors.remote_feature(remote)
        provider = self.format.provider
        if self._model and not (asked.plain_model and may_use(self._model, asked.model, provider)):
            log.info("refused the model %r to a container", asked.model)
            return model_errors.other_model(asked.model, self._model)
        side_model = is_side_model(self._model, asked.model, provider) if self._model else False
        streak = bill.streak(side_model=side_model, offers_tools=asked.offers_tools)
        if hopeless := bill.gives_up(streak):
            return model_errors.too_many_failures(hopeless.verdict, hopeless.failed)
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

        exchange = ModelExchange(
            *(request, self.format, call, asked, self._road, paid_from, ended),
            side_model=side_model,
        )
        self._under_way.add(exchange)
        return exchange

    def _has_ended(self, bill: ModelBill) -> bool:
        """Whether the run with that bill ended while one of its requests waited."""
        return self._doorway.revoked or bill is not self.bill

    def _is_known(self, request: HttpRequest) -> bool:
        return self._shows_token(request) and not self._doorway.revoked

    def _shows_token(self, request: HttpRequest) -> bool:
        """Whether it comes with the run's token, in whichever header its client puts a key."""
        bearer = request.header("authorization").removeprefix("Bearer ")
        right = self.token.encode()
        keys = (request.header("x-api-key"), request.header("x-goog-api-key"), bearer)
        matches = [hmac.compare_digest(text.encode(), right) for text in keys]
        return any(matches)

    async def _looked_through(self, body: bytes, call: ModelCall) -> Looked:
        rules = Rules(self._server_tools, self._is_offered)
        if len(body) <= LOOK_BYTES:
            return look_through(body, rules, self.format, call)
        async with self._looking:
            await anyio.sleep_until(self._look_again_at)
            began = anyio.current_time()
            try:
                return await anyio.to_thread.run_sync(look_through, body, rules, self.format, call)
            finally:
                took = anyio.current_time() - began
                if took > LOOKING_SECONDS:
                    self._look_again_at = anyio.current_time() + rest_seconds(took)


def rest_seconds(took: float) -> float:
    """How long no look begins after such a one, so that looks take no more than their share."""
    return took / LOOKING_SHARE - took


def look_through(
    body: bytes,
    rules: Rules = Rules(),  # noqa: B008 a tuple
    api: Format = FORMATS["anthropic"],
    call: ModelCall = ModelCall(""),  # noqa: B008 a tuple
) -> Looked:
    """What a request would have done elsewhere, if anything, and what it asks the model for."""
    try:
        return api.look(read_body(body), len(body), call, rules)
    except Unreadable as exc:
        return Looked(str(exc), Asked())
    except RecursionError:
        return Looked("a body that is nested too deeply", Asked())
