"""Decisions about agents outside, for a hundred thousand random sets of rules."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from orchestrator.domain.outside import OutsideRules
from tests.outside.random_rules import RULES, check_all


@settings(max_examples=100_000, database=None, suppress_health_check=list(HealthCheck))
@given(rules=RULES)
def test_a_decision_is_what_its_explanation_says_and_a_denial_wins(rules: OutsideRules) -> None:
    check_all(rules)
