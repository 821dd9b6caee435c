"""Why a turn ended without an answer -> what its caller and the operator are told. Pure.

A CLI tells it from inside its container, where the gateway is the API, at 127.0.0.1, and variables
can be set that no operator has.
"""

from __future__ import annotations

import re

from orchestrator.domain.result import Reason
from orchestrator.gateway.model.upstream import ModelWay
from orchestrator.gateway.model.verdicts import ModelVerdict

UNREACHABLE = "the orchestrator cannot reach the model API"
"""How the gateway's own answer begins (gateway/model/errors.py)."""


VERDICT_REASONS: dict[ModelVerdict, Reason] = {
    "quota": "api_rate_limit",
    "rate_limit": "api_rate_limit",
    "overloaded": "api_overloaded",
    "auth": "api_auth",
    "cut": "stream_cut",
    "length": "max_tokens",
    "refusal": "refusal",
}
"""Why a turn has no answer, by what the gateway has seen of its last request; any other is an
api_error."""


def reason_of(verdict: ModelVerdict) -> Reason:
    """What a turn came to whose last request came to that."""
    return "ok" if verdict == "" else VERDICT_REASONS.get(verdict, "api_error")


def model_failure(reason: Reason, said: str, way: ModelWay, verdict: ModelVerdict = "") -> str:
    """What happened, to what, and what to do; `said` is what the CLI passed on of it, and the
    verdict what the gateway has seen.
    """
    where = f"the model API at {way.address}" if way.address else "the script that plays the model"
    words = f" ({said})" if said else ""
    match reason:
        case "api_auth" if way.address:
            mend = f"set {way.variable} to one that it accepts"
            mend = mend if way.variable else f"set {way.key_variables}"
            what = f"does not accept {way.variable}" if way.variable else "wants a credential"
            return f"{where} {what}{words}; {mend}. `orchestrator doctor` checks it"
        case "api_auth":
            return f"{where} does not accept the credential{words}"
        case "api_rate_limit" if verdict == "quota":
            return (
                f"{where} says that the account has nothing left to use{words}; wait until its "
                "limit is renewed, raise it, or name another `runner` in agent.md"
            )
        case "api_rate_limit":
            return (
                f"{where} takes no more requests for now{words}; run it again later, or fewer at "
                "once (ORCHESTRATOR_MAX_RUNS)"
            )
        case "api_overloaded":
            return f"{where} is overloaded{words}; run it again later"
        case "api_error" if verdict == "unreachable" and UNREACHABLE not in said:
            return (
                f"{UNREACHABLE} at {way.address}; check {way.base_variable}, the network and the "
                "proxy settings"
            )
        case "api_error":
            return _api_error(where, said, way)
        case "max_tokens":
            return (
                f"the model's answer was cut at its length limit{words}; ask for a shorter one, or "
                "for parts of it"
            )
        case "stream_cut":
            return (
                f"{said or BROKE_OFF}; run it again"
                if BROKE_OFF in said or not said
                else f"{BROKE_OFF}{words}"
            )
        case "refusal":
            return said or "the model refused; ask in another way, or with another model"
        case "max_turns":
            return "the agent used up its turns; raise max_turns, or ask for less"
    return said or reason


def _api_error(where: str, said: str, way: ModelWay) -> str:
    if UNREACHABLE in said:  # our own words, from the beginning of them
        return said[said.index(UNREACHABLE) :].replace("the operator should check", "check")
    status = re.match(r"(\d{3})\b", said)
    code = int(status[1]) if status else 0
    words = f" ({said})" if said else ""
    if code == 404 and way.address:
        return f"{where} does not know what was asked for{words}; check `model` in agent.md"
    if 400 <= code < 500:
        return f"{where} refused the request{words}"
    base = f"; if it goes on, check {way.base_variable}" if way.address else ""
    return f"{where} failed{words}; run it again{base}"


BROKE_OFF = "the model's answer broke off"
