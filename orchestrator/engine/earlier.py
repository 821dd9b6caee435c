"""What a run was told before its orchestrator was killed: it is asked of nobody a second time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.domain.exchange import Approval, ApprovalBy, Question
from orchestrator.output import fenced
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store

TOLD_AGAIN_CHARS = 50_000
"""Of what was asked and answered, that an agent is told when it goes on."""

TAKEN_UP = (
    "The orchestrator was killed while you waited for an answer to this task. If you see your "
    "earlier work above, go on from there; otherwise your container is new, and you begin again. "
    "This is what you were told before; do not ask for it again."
)

_AGAIN = {
    True: "You may do it now.",
    False: "It may have been carried out already; doing it again needs a new approval.",
}


@dataclass
class _Word:
    """A question with its answer, or a tool call with its decision, and whose they are."""

    agent: str
    exchange: Question | Approval
    fresh: bool
    """The agent has not got it."""


class Earlier:
    """The answers and decisions of a run's earlier life, and of those that worked for it then."""

    def __init__(self, run_id: str = "", words: Sequence[_Word] = ()) -> None:
        self._run_id = run_id
        self._words = list(words)
        self._text = "\n\n".join((TAKEN_UP, *self._lines()))[:TOLD_AGAIN_CHARS] if words else ""

    def context(self, given: str) -> str:
        """What the agent is told besides its task; `given` is what its caller wrote."""
        return "\n\n".join(filter(None, (given, self._text or TAKEN_UP)))

    def unheard(self) -> tuple[Question, ...]:
        """Questions that were answered, and whose answers no agent has got."""
        words = [word.exchange for word in self._words if word.fresh]
        return tuple(each for each in words if isinstance(each, Question))

    def answer(self, agent: str, question: str) -> Question | None:
        """The answer to a question of these very words, once."""
        for word in self._words:
            asked = word.exchange
            if isinstance(asked, Question) and (word.agent, asked.question) == (agent, question):
                self._words.remove(word)
                return asked
        return None

    def decision(
        self, agent: str, tool: str, given: dict[str, object], by: ApprovalBy
    ) -> Approval | None:
        """The decision on a call that is the very same, once. What was allowed counts if the agent
        has not got that before, and if whoever may allow it now has allowed it.
        """
        for word in self._words:
            asked = word.exchange
            if not isinstance(asked, Approval):
                continue
            if (word.agent, asked.tool, asked.input) != (agent, tool, given):
                continue
            if asked.approved and not (word.fresh and by in ("parent", asked.approval_by)):
                continue
            self._words.remove(word)
            return asked
        return None

    def _lines(self) -> Iterator[str]:
        for word in self._words:
            yield from _in_words(word, mine=word.exchange.run_id == self._run_id)


def _in_words(word: _Word, *, mine: bool) -> Iterator[str]:
    who = "You" if mine else f"The agent {word.agent}, which worked for you,"
    told = word.exchange
    if isinstance(told, Question):
        asked = told.question if mine else fenced(told.question, word.agent, told.run_id)
        yield f"{who} asked:\n{asked}\nThe answer was:\n{told.answer}"
        return
    given = json.dumps(told.input, ensure_ascii=False)
    given = given if mine else fenced(given, word.agent, told.run_id)
    if told.approved:
        yield f"{who} wanted to use {told.tool}:\n{given}\nThat was approved. {_AGAIN[word.fresh]}"
    else:
        yield f"{who} wanted to use {told.tool}:\n{given}\nThat was rejected: {told.message}"


async def read_earlier(store: Store, exchanges: Exchanges, run_id: str) -> Earlier:
    """What the store has of it. Defaults, timeouts and withdrawals were nobody's word."""
    words: list[_Word] = []
    for record in await store.family(run_id):
        words += [
            _Word(record.agent, asked, asked.status == "parent_replied")
            for asked in await exchanges.questions(record.run_id)
            if asked.answer is not None and asked.answered_by == "caller"
        ]
        untold = await exchanges.untold(record.run_id)
        words += [
            _Word(record.agent, call, call.call_id in untold)
            for call in await exchanges.approvals(record.run_id)
            if call.whom and call.decision in ("approved", "rejected")
        ]
    return Earlier(run_id, words)
