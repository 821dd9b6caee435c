"""A run's bill for its model: what it may spend and has spent, whether it ran out, and what the API
made of its requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import anyio

from orchestrator.domain.result import Usage
from orchestrator.gateway.doorway import Observer
from orchestrator.gateway.model.money.metering import Tally
from orchestrator.gateway.model.verdicts import ModelVerdict

FAILURES_IN_A_ROW = 3
"""Requests of one turn that fail one after the other, before the next is refused with a status that
ends the turn in every CLI. Some ask again without end: opencode 16 times a second after an answer
that broke off, gemini for minutes."""

FEWER_IN_A_ROW: dict[ModelVerdict, int] = {"quota": 1}
"""The same where asking again does not help."""

ANSWERED: frozenset[ModelVerdict] = frozenset(("", "length", "refusal"))
"""The API has answered, whatever the answer is."""

UNWAITED = ("client_gone", "run_ended")
"""Problems of requests that tell nothing of the API: the client did not wait for its answer."""


class LastAnswer(NamedTuple):
    """What the API made of the latest request whose answer was waited for."""

    verdict: ModelVerdict = ""
    status: int = 0
    said: str = ""
    """In the API's words, without the credential."""


class Streak:
    """Requests of one sort: what the API made of the latest, and how many have failed in a row."""

    def __init__(self) -> None:
        self.last: LastAnswer | None = None
        self.failed = 0
        """Since the CLI was told something. Those that were under way together count as one: a CLI
        that has its subagents work side by side meets an overload ten times at once."""

    def note(self, answer: LastAnswer, failed_before: int) -> None:
        self.last = answer
        failed = max(self.failed, failed_before + 1)
        self.failed = 0 if answer.verdict in ANSWERED else failed

    @property
    def verdict(self) -> ModelVerdict:
        return "" if self.last is None else self.last.verdict

    @property
    def is_hopeless(self) -> bool:
        return self.failed >= FEWER_IN_A_ROW.get(self.verdict, FAILURES_IN_A_ROW)


class ModelRequestSeen(Tally):
    """One request to the model that has ended, for the run's record.

    Its `error_type` is the API's word ("overloaded_error"), or ours: unreachable, redirected,
    stream_cut, client_gone, run_ended, budget_exceeded, too_many_requests, too_many_failures.
    """

    status: int
    """As the container saw it; 499 when it did not wait for the answer."""
    provider: str = ""
    """Whose API it is."""
    asked_model: str = ""
    """The model that the request named; the answer's may be called otherwise."""
    duration_ms: int = 0
    first_ms: int = 0
    """Until the first piece of the answer came; 0 if none did."""
    unanswered: bool = False
    """The API never answered: whether that has cost anything is not known."""
    left_out: tuple[str, ...] = ()
    """Parts of the request that were not sent on, as no agent is given them."""


OnRequest = Callable[[ModelRequestSeen], None]


class ModelBill:
    """One run's. A request stays on the bill that it was begun on: by the time it ends, the access
    may be bound to another run.
    """

    def __init__(
        self,
        budget_usd: float | None = None,
        on_request: OnRequest | None = None,
        others_spent: Callable[[], bool] = lambda: False,
        most_requests: int | None = None,
    ) -> None:
        self.budget_usd = budget_usd
        self.most_requests = most_requests
        """That are admitted from one thing that the agent is told to the next."""
        self._others_spent = others_spent
        """Whether other runs that pay from the same budget have left nothing of it."""
        self.usage = Usage()
        self.begun = False
        """The CLI has made a request since it was last told something."""
        self.exhausted = False
        """A request was refused for want of budget."""
        self.out_of_turns = False
        """A request was refused because there were too many."""
        self._main, self._by_the_way = Streak(), Streak()
        """The agent's own requests, and others of the CLI's, such as for a title: neither tells
        anything of the other."""
        self._offers_tools = False
        """The agent's requests do."""
        self.gave_up = False
        """A request was refused because too many before it had failed."""
        self._admitted = 0
        self._observer = Observer(on_request, "a model request")
        self._reserved: list[float] = []
        """What each request under way can cost at most."""
        self._in_turn = anyio.Lock()
        self._some_ended = anyio.Event()

    def told(self) -> None:
        """The CLI was told something new: until it asks the model again, it has begun nothing."""
        self.begun = False
        self._admitted = 0
        self._main.failed = self._by_the_way.failed = 0
        self.gave_up = False

    @property
    def last(self) -> LastAnswer:
        """By which the engine decides whether another model, or another time, would help."""
        return self._main.last or self._by_the_way.last or LastAnswer()

    def streak(self, *, side_model: bool = False, offers_tools: bool = True) -> Streak:
        """Of requests of one sort: those to a side model, or without tools where others have some,
        are made by the way.
        """
        self._offers_tools |= offers_tools and not side_model
        by_the_way = side_model or (self._offers_tools and not offers_tools)
        return self._by_the_way if by_the_way else self._main

    def gives_up(self, streak: Streak) -> Streak | None:
        """The streak that has failed so often that no more requests are made for this turn, if one
        has: this one, or the agent's own.
        """
        hopeless = next((each for each in (self._main, streak) if each.is_hopeless), None)
        if hopeless is not None:
            if not self.gave_up:
                self._observer.tell(
                    ModelRequestSeen(
                        status=400, error_type="too_many_failures", verdict=hopeless.verdict
                    )
                )
            self.gave_up = True
        return hopeless

    def takes_turn(self) -> bool:
        """Count one more request; False if there were too many."""
        self._admitted += 1
        if self.most_requests is not None and self._admitted > self.most_requests:
            if not self.out_of_turns:
                self._observer.tell(ModelRequestSeen(status=400, error_type="too_many_requests"))
            self.out_of_turns = True
            return False
        return True

    @property
    def is_spent(self) -> bool:
        if self.budget_usd is not None and self.usage.budgeted_usd >= self.budget_usd:
            return True
        return self._others_spent()

    async def admit(self, ceiling_usd: float) -> bool:
        """A request may begin, until `count` or `give_back`; False if the budget is spent.

        Whatever it costs is known at its end only. One that could cost more than what those under
        way leave of the budget waits for them, in the order in which they came; alone, it may.
        """
        async with self._in_turn:
            while self._reserved and not self.is_spent and not self._has_room_for(ceiling_usd):
                self._some_ended = anyio.Event()
                await self._some_ended.wait()
            if self.is_spent:
                return False
            self._reserved.append(ceiling_usd)
            return True

    def give_back(self, ceiling_usd: float) -> None:
        """A request that was admitted does not count any more."""
        self._reserved.remove(ceiling_usd)
        self._some_ended.set()

    def _has_room_for(self, ceiling_usd: float) -> bool:
        if self.budget_usd is None:
            return True
        return self.usage.budgeted_usd + sum(self._reserved) + ceiling_usd <= self.budget_usd

    def count(
        self,
        seen: ModelRequestSeen,
        ceiling_usd: float,
        *,
        said: str = "",
        failed_before: int | None = None,
        streak: Streak | None = None,
    ) -> None:
        """A request has ended that was admitted with that ceiling, after so many of its streak had
        failed; `said` is what the API said of an error.
        """
        self.give_back(ceiling_usd)
        if seen.error_type not in UNWAITED:
            streak = streak or self._main
            before = streak.failed if failed_before is None else failed_before
            streak.note(LastAnswer(seen.verdict, seen.status, said), before)
        used = self.usage
        self.usage = Usage(
            requests=used.requests + 1,
            input_tokens=used.input_tokens + seen.input_tokens,
            output_tokens=used.output_tokens + seen.output_tokens,
            cache_read_tokens=used.cache_read_tokens + seen.cache_read_tokens,
            cache_write_tokens=used.cache_write_tokens + seen.cache_write_tokens,
            cost_usd=used.cost_usd + seen.cost_usd,
            estimated_usd=used.estimated_usd + seen.estimated_usd,
            unanswered_usd=used.unanswered_usd + seen.estimated_usd * seen.unanswered,
        )
        self._observer.tell(seen)

    def note_refusal(self) -> None:
        """A request came after the budget was spent. Only the run's first is told."""
        if not self.exhausted:
            self._observer.tell(ModelRequestSeen(status=400, error_type="budget_exceeded"))
        self.exhausted = True
