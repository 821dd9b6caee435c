"""A run's bill for its model: what it may spend, what it has spent, and whether it ran out."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from orchestrator.domain.result import Usage
from orchestrator.gateway.doorway import Observer
from orchestrator.gateway.model.metering import Tally


class ModelRequestSeen(Tally):
    """One request to the model that has ended, for the run's record.

    Its `error_type` is the API's word ("overloaded_error"), or ours: unreachable, redirected,
    stream_cut, client_gone, run_ended, budget_exceeded, too_many_requests.
    """

    status: int
    """As the container saw it; 499 when it did not wait for the answer."""
    duration_ms: int = 0
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

    def count(self, seen: ModelRequestSeen, ceiling_usd: float) -> None:
        """A request has ended that was admitted with that ceiling."""
        self.give_back(ceiling_usd)
        before = self.usage
        self.usage = Usage(
            requests=before.requests + 1,
            input_tokens=before.input_tokens + seen.input_tokens,
            output_tokens=before.output_tokens + seen.output_tokens,
            cache_read_tokens=before.cache_read_tokens + seen.cache_read_tokens,
            cache_write_tokens=before.cache_write_tokens + seen.cache_write_tokens,
            cost_usd=before.cost_usd + seen.cost_usd,
            estimated_usd=before.estimated_usd + seen.estimated_usd,
            unanswered_usd=before.unanswered_usd + seen.estimated_usd * seen.unanswered,
        )
        self._observer.tell(seen)

    def note_refusal(self) -> None:
        """A request came after the budget was spent. Only the run's first is told."""
        if not self.exhausted:
            self._observer.tell(ModelRequestSeen(status=400, error_type="budget_exceeded"))
        self.exhausted = True
