"""What a container hears when its request did not reach the model, in the API's own shape."""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.gateway.http.headers import DENIED
from orchestrator.gateway.http.server import HttpResponse
from orchestrator.gateway.model.upstream import UpstreamBusy, UpstreamLost

SOON = ("retry-after", "2")
"""Seconds, for a refusal that does not last."""


def unknown_token() -> HttpResponse:
    why = "the run's token is missing, wrong or no longer valid"
    return _refusal("token", 401, "authentication_error", why)


def no_run_yet() -> HttpResponse:
    # Not 401: a CLI retries that without end.
    why = "this container waits for a run; until then its token opens nothing"
    return _refusal("token", 403, "permission_error", why)


def other_path(allowed: Sequence[str]) -> HttpResponse:
    why = f"refused by the orchestrator: an agent may only POST to {' and '.join(allowed)}"
    return _refusal("path", 403, "permission_error", why)


def remote_feature(name: str) -> HttpResponse:
    why = (
        f"refused by the orchestrator: {name} would work outside the container, "
        "on the API's side; agent.md does not allow it"
    )
    return _refusal("server_tool", 403, "permission_error", why)


def other_model(asked: str, given: str) -> HttpResponse:
    why = (
        f"refused by the orchestrator: agent.md gives this agent the model {given!r}, and not "
        f"{asked!r}; its author can name another one"
    )
    return _refusal("model", 400, "invalid_request_error", why)


def out_of_turns(most: int | None) -> HttpResponse:
    why = (
        f"refused by the orchestrator: that were {most} requests, far more than max_turns needs; "
        "the run has no turns left"
    )
    return _refusal("turns", 400, "invalid_request_error", why)


def over_budget(budget_usd: float | None) -> HttpResponse:
    amount = "" if budget_usd is None else f" of ${budget_usd:g}"
    why = f"refused by the orchestrator: the run's budget{amount} is spent"
    # 400, since that is what a client does not try again.
    return _refusal("budget", 400, "invalid_request_error", why)


def too_many(limit: int) -> HttpResponse:
    why = (
        f"refused by the orchestrator: {limit} requests of this run are under way, which is all "
        "that it may have at once; try again when one has ended"
    )
    return _refusal("requests", 429, "rate_limit_error", why, SOON)


def unreachable(lost: UpstreamLost) -> HttpResponse:
    if isinstance(lost, UpstreamBusy):
        why = f"all of the orchestrator's connections to the model API are in use ({lost}); wait"
        return _error(503, "overloaded_error", why, (SOON,))
    why = (
        f"the orchestrator cannot reach the model API ({lost}); the operator should check "
        "ANTHROPIC_BASE_URL, the network and the proxy settings"
    )
    return _error(502, "api_error", why)


def redirected(status: int) -> HttpResponse:
    why = (
        f"the model API answered with a redirect ({status}), which is not followed; "
        "ANTHROPIC_BASE_URL has to name the address it leads to"
    )
    return _error(502, "api_error", why)


def _refusal(
    denied: str, status: int, kind: str, message: str, *marks: tuple[str, str]
) -> HttpResponse:
    """An error that is marked as ours."""
    return _error(status, kind, message, ((DENIED, denied), *marks))


def _error(
    status: int, kind: str, message: str, marks: tuple[tuple[str, str], ...] = ()
) -> HttpResponse:
    headers = (("content-type", "application/json"), *marks)
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return HttpResponse(status, headers, json.dumps(body).encode())
