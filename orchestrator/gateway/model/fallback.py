"""Which runner goes on with a run, where the one before could not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from orchestrator.domain.result import Reason, TriedRunner
from orchestrator.gateway.model.failures import reason_of
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.providers import PROVIDERS
from orchestrator.gateway.model.verdicts import ModelVerdict
from orchestrator.runners.choice import RunnerWay

OF_THE_PROVIDER: frozenset[ModelVerdict] = frozenset(("quota", "rate_limit", "overloaded", "auth"))
"""What does not hold for another provider: there the same task may well be answered."""

_OF_THE_ACCOUNT: dict[ModelVerdict, str] = {
    "quota": "whose account has nothing left to use",
    "auth": "which does not accept the credential",
}
"""What holds for every runner that would ask the same provider, today; and how it is told."""

Failed = Mapping[ProviderName, ModelVerdict]
"""What those said that a run has asked in vain, each the last time."""


class NextWays(NamedTuple):
    """The ways that a run could go on, in order, and those that would come to nothing."""

    ways: tuple[RunnerWay, ...]
    passed_over: tuple[TriedRunner, ...] = ()


def provider_of(way: RunnerWay) -> ProviderName:
    """Whose model a runner asks."""
    return FORMATS[way.wire_format].provider


def next_ways(others: Sequence[RunnerWay], failed: Failed) -> NextWays:
    """Of the runners that are left: not those whose provider has nothing for this account, and the
    ones whose provider is busy last.
    """
    ways, passed_over = list[RunnerWay](), list[TriedRunner]()
    for way in others:
        provider = provider_of(way)
        verdict = failed.get(provider, "")
        if why := _OF_THE_ACCOUNT.get(verdict):
            message = f"passed over: it would ask {PROVIDERS[provider].label} too, {why}"
            passed_over.append(_passed_over(way, reason_of(verdict), message))
        else:
            ways.append(way)
    ways.sort(key=lambda way: provider_of(way) in failed)  # a stable sort
    return NextWays(tuple(ways), tuple(passed_over))


def _passed_over(way: RunnerWay, reason: Reason, message: str) -> TriedRunner:
    return TriedRunner(
        runner=way.runner, model=way.model, reason=reason, message=message, passed_over=True
    )
