"""One request to the model: sent on with the credential, its answer passed back and metered."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

import anyio

from orchestrator.gateway.http.headers import CLIENT_GONE, Headers, end_to_end, first_value
from orchestrator.gateway.http.server import Cut, HttpRequest, HttpResponse
from orchestrator.gateway.model import errors as model_errors
from orchestrator.gateway.model.bill import ModelBill, ModelRequestSeen, Streak
from orchestrator.gateway.model.credential import Credential
from orchestrator.gateway.model.formats.contract import Format, ModelCall, PassedHeaders
from orchestrator.gateway.model.money.metering import Meter, Tally
from orchestrator.gateway.model.request import Asked
from orchestrator.gateway.model.upstream import (
    Delivery,
    ModelWay,
    Upstream,
    UpstreamLost,
    UpstreamRequest,
    UpstreamResponse,
)
from orchestrator.gateway.model.verdicts import ModelVerdict

log = logging.getLogger(__name__)

ERROR_BODY_BYTES = 1024 * 1024
"""Of an error's text: it is held until it has been searched for the credential."""


class Road(NamedTuple):
    """Where requests go, and what they are paid with."""

    upstream: Upstream
    credential: Credential | None = None
    way: ModelWay = ModelWay()
    """The same, as it is told to people."""


class ModelExchange:
    """A request on its way to the model, and what it comes to."""

    def __init__(
        self,
        request: HttpRequest,
        api: Format,
        call: ModelCall,
        asked: Asked,
        road: Road,
        bill: ModelBill | None,
        on_end: Callable[[ModelExchange], None],
        *,
        side_model: bool = False,
    ) -> None:
        self._request = request
        self._api = api
        self._call = call
        self._asked = asked
        self._road = road
        self._bill = bill
        """None for a request that costs nothing; it has admitted all others."""
        self._side_model = side_model
        self._failed_before = self._streak(bill).failed if bill is not None else 0
        self._on_end = on_end
        self._held = AsyncExitStack()
        self._meter = Meter(asked, api.reading())
        self._delivery = Delivery(began=False)
        self._began = time.monotonic()
        self._first_ms = 0
        self._status = 0
        self._ended = False

    def _streak(self, bill: ModelBill) -> Streak:
        """Asked again at the end: by then it may be known that the agent's requests offer tools."""
        offers_tools = self._asked.offers_tools
        return bill.streak(side_model=self._side_model, offers_tools=offers_tools)

    async def answer(self) -> HttpResponse:
        """What the container gets. Until its `close`, the exchange is under way."""
        headers = _sent_on(self._request.headers, self._api.sent_headers)
        if self._road.credential is not None:
            headers = self._road.credential.added_to(headers)
        body = self._request.body if self._asked.sent is None else self._asked.sent
        sent = UpstreamRequest("POST", self._call.target, headers, body)
        self._delivery = sent.delivery
        try:
            answer = await self._held.enter_async_context(self._road.upstream.send(sent))
        except UpstreamLost as exc:
            error = model_errors.unreachable(exc, self._road.way.base_variable)
            self._end(error.status, "unreachable")
            return error.in_shape(self._api)
        except anyio.get_cancelled_exc_class():
            self._end(CLIENT_GONE, "client_gone")
            raise
        except BaseException:
            self._end(502, "unreachable")
            raise
        try:
            return await self._passed_back(answer)
        except BaseException:
            await self._close()
            raise

    def cut(self) -> None:
        """Put what was used so far on the bill, now. The caller ends the rest."""
        self._end(CLIENT_GONE, "run_ended")

    async def _passed_back(self, answer: UpstreamResponse) -> HttpResponse:
        if 300 <= answer.status < 400:
            self._end(502, "redirected")
            await self._close()
            error = model_errors.redirected(answer.status, self._road.way.base_variable)
            return error.in_shape(self._api)
        self._status = answer.status
        self._meter.start(answer.status, first_value(answer.headers, "content-type"))
        passed = self._api.passed_headers.passes
        headers = tuple((key, value) for key, value in answer.headers if passed(key))
        body = self._metered(answer.body)
        if answer.status >= 400:
            return HttpResponse(answer.status, headers, await self._error_body(body), self._close)
        return HttpResponse(answer.status, headers, body, self._close)

    async def _metered(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body as it comes, read along."""
        try:
            async for chunk in body:
                self._first_ms = self._first_ms or max(1, self._milliseconds())
                self._meter.feed(chunk)
                yield chunk
        except UpstreamLost as exc:
            log.warning("a model's answer broke off: %s", exc)
            self._end(self._status, "stream_cut")
            raise Cut from None
        self._end(self._status, "stream_cut" if self._meter.broke_off else "")

    async def _error_body(self, body: AsyncIterator[bytes]) -> bytes:
        """All of it, since some proxies repeat the credential that they did not like."""
        whole = bytearray()
        try:
            async for chunk in body:
                whole += chunk[: ERROR_BODY_BYTES - len(whole)]
        except Cut:
            log.debug("an error of the model API broke off")
        return self._without_credential(bytes(whole))

    def _without_credential(self, data: bytes) -> bytes:
        credential = self._road.credential
        return data if credential is None else credential.removed_from(data)

    def _end(self, status: int, problem: str = "") -> None:
        """Write it down, once. Whatever was used before a problem counts."""
        if self._ended:
            return
        self._ended = True
        self._on_end(self)
        if self._bill is None:
            return
        # What has reached the API is worked on and billed there, also when the client has gone.
        free = problem == "redirected" or not self._delivery.began
        # Where it hung up by itself there was no answer to miss.
        whole = problem in ("", "unreachable")
        duration = self._milliseconds()
        tally = Tally() if free else self._meter.tally(whole=whole, seconds=duration / 1000)
        used = tally.model_dump(exclude={"error_type", "verdict"})
        error_type = tally.error_type or problem
        seen = ModelRequestSeen(
            status=status,
            provider=self._api.provider,
            asked_model=self._asked.model,
            duration_ms=duration,
            first_ms=self._first_ms,
            error_type=error_type,
            verdict=tally.verdict if tally.error_type else _VERDICTS.get(problem, tally.verdict),
            unanswered=problem == "unreachable",
            left_out=self._asked.left_out,
            **used,
        )
        said = self._without_credential(self._meter.error.message.encode(errors="replace"))
        self._bill.count(
            seen,
            self._asked.ceiling_usd,
            said=said.decode(errors="replace"),
            failed_before=self._failed_before,
            streak=self._streak(self._bill),
        )

    def _milliseconds(self) -> int:
        return round((time.monotonic() - self._began) * 1000)

    async def _close(self) -> None:
        """Let go of the upstream; a request that has not ended by now counts as given up."""
        try:
            await self._held.aclose()
        finally:
            self._end(CLIENT_GONE, "client_gone")


_VERDICTS: dict[str, ModelVerdict] = {
    "stream_cut": "cut",
    "unreachable": "unreachable",
    "redirected": "error",
}
"""What problems of ours mean."""


def _sent_on(headers: Headers, sent: PassedHeaders) -> Headers:
    kept = tuple((key, value) for key, value in end_to_end(headers) if sent.passes(key))
    # It was read as JSON; and nothing comes compressed, since it has to be read on the way.
    return (*kept, ("content-type", "application/json"), ("accept-encoding", "identity"))
