"""What a container hears when its request did not reach the model; the format gives it the API's
own shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.gateway.http.headers import DENIED, Headers
from orchestrator.gateway.http.server import HttpResponse
from orchestrator.gateway.model.formats.contract import ErrorKind, Format
from orchestrator.gateway.model.upstream import UpstreamBusy, UpstreamLost
from orchestrator.gateway.model.verdicts import ModelVerdict

SOON = ("retry-after", "2")
"""Seconds, for a refusal that does not last."""


class ModelError(NamedTuple):
    """An error of ours."""

    status: int
    kind: ErrorKind
    message: str
    marks: Headers = ()

    def in_shape(self, api: Format) -> HttpResponse:
        """The answer with it, as clients of that API know errors."""
        headers = (("content-type", "application/json"), *self.marks)
        body = api.error(self.status, self.kind, self.message)
        return HttpResponse(self.status, headers, json.dumps(body).encode())


def unknown_token() -> ModelError:
    why = "the run's token is missing, wrong or no longer valid"
    return _refusal("token", 401, "authentication", why)


def no_run_yet() -> ModelError:
    # Not 401: a CLI retries that without end.
    why = "this container waits for a run; until then its token opens nothing"
    return _refusal("token", 403, "permission", why)


def other_path(allowed: Sequence[str]) -> ModelError:
    why = f"refused by the orchestrator: an agent may only POST to {' and '.join(allowed)}"
    return _refusal("path", 403, "permission", why)


def remote_feature(name: str) -> ModelError:
    why = (
        f"refused by the orchestrator: {name} would work outside the container, "
        "on the API's side; agent.md does not allow it"
    )
    return _refusal("server_tool", 403, "permission", why)


def other_model(asked: str, given: str) -> ModelError:
    why = (
        f"refused by the orchestrator: agent.md gives this agent the model {given!r}, and not "
        f"{asked!r}; its author can name another one"
    )
    return _refusal("model", 400, "invalid", why)


def out_of_turns(most: int | None) -> ModelError:
    why = (
        f"refused by the orchestrator: that were {most} requests, far more than max_turns needs; "
        "the run has no turns left"
    )
    return _refusal("turns", 400, "invalid", why)


def over_budget(budget_usd: float | None) -> ModelError:
    amount = "" if budget_usd is None else f" of ${budget_usd:g}"
    why = f"refused by the orchestrator: the run's budget{amount} is spent"
    # 400, since that is what a client does not try again.
    return _refusal("budget", 400, "invalid", why)


def too_many(limit: int) -> ModelError:
    why = (
        f"refused by the orchestrator: {limit} requests of this run are under way, which is all "
        "that it may have at once; try again when one has ended"
    )
    return _refusal("requests", 429, "rate_limit", why, SOON)


def too_many_failures(verdict: ModelVerdict, times: int) -> ModelError:
    # Not in words that a CLI could take for a conversation that is too long: it would go on.
    why = (
        f"refused by the orchestrator: {_FAILED.get(verdict, 'the model API failed')}"
        f"{f' {times} times in a row' if times > 1 else ''}; this turn ends here"
    )
    return _refusal("failures", 400, "invalid", why)


_FAILED: dict[ModelVerdict, str] = {
    "quota": "the model API says that the account has nothing left to use",
    "rate_limit": "the model API took no more requests",
    "overloaded": "the model API had no room",  # of "overloaded", opencode makes a new try
    "auth": "the model API did not accept the credential",
    "cut": "the model's answer broke off",
    "unreachable": "the model API could not be reached",
}


def unreachable(lost: UpstreamLost, base_variable: str = "ANTHROPIC_BASE_URL") -> ModelError:
    if isinstance(lost, UpstreamBusy):
        why = f"all of the orchestrator's connections to the model API are in use ({lost}); wait"
        return ModelError(503, "overloaded", why, (SOON,))
    why = (
        f"the orchestrator cannot reach the model API ({lost}); the operator should check "
        f"{base_variable}, the network and the proxy settings"
    )
    return ModelError(502, "api", why)


def redirected(status: int, base_variable: str = "ANTHROPIC_BASE_URL") -> ModelError:
    why = (
        f"the model API answered with a redirect ({status}), which is not followed; "
        f"{base_variable} has to name the address it leads to"
    )
    return ModelError(502, "api", why)


def _refusal(
    denied: str, status: int, kind: ErrorKind, message: str, *marks: tuple[str, str]
) -> ModelError:
    """An error that is marked as ours."""
    return ModelError(status, kind, message, ((DENIED, denied), *marks))
