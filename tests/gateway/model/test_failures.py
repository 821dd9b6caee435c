"""What is told of a model that gave no answer: from outside, with the variable to set."""

from __future__ import annotations

import pytest

from orchestrator.domain.result import Reason
from orchestrator.gateway.model.errors import unreachable
from orchestrator.gateway.model.failures import model_failure
from orchestrator.gateway.model.upstream import ModelWay, UpstreamLost

WAY = ModelWay("https://api.test", "ANTHROPIC_API_KEY")
NO_KEY = ModelWay("http://gateway:4000")
SCRIPT = ModelWay()


@pytest.mark.parametrize(
    ("reason", "said", "way", "told"),
    [
        (
            "api_auth",
            "401 invalid x-api-key",
            WAY,
            (
                "the model API at https://api.test does not accept ANTHROPIC_API_KEY (401 "
                "invalid x-api-key); set ANTHROPIC_API_KEY to one that it accepts. `orchestrator "
                "doctor` checks it"
            ),
        ),
        (
            "api_auth",
            "401 no key",
            NO_KEY,
            (
                "the model API at http://gateway:4000 wants a credential (401 no key); set "
                "ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN or CLAUDE_CODE_OAUTH_TOKEN. `orchestrator "
                "doctor` checks it"
            ),
        ),
        (
            "api_rate_limit",
            "429 slow down",
            WAY,
            (
                "the model API at https://api.test takes no more requests for now (429 slow "
                "down); run it again later, or fewer at once (ORCHESTRATOR_MAX_RUNS)"
            ),
        ),
        (
            "api_overloaded",
            "529 overloaded",
            WAY,
            (
                "the model API at https://api.test is overloaded (529 overloaded); run it again "
                "later"
            ),
        ),
        (
            "api_error",
            "500 oops",
            WAY,
            (
                "the model API at https://api.test failed (500 oops); run it again; if it goes "
                "on, check ANTHROPIC_BASE_URL"
            ),
        ),
        (
            "api_error",
            "404 model: claude-9",
            WAY,
            (
                "the model API at https://api.test does not know what was asked for (404 model: "
                "claude-9); check `model` in agent.md"
            ),
        ),
        (
            *("api_error", "400 prompt is too long", WAY),
            "the model API at https://api.test refused the request (400 prompt is too long)",
        ),
        (
            *("api_error", "500 scripted 500", SCRIPT),
            "the script that plays the model failed (500 scripted 500); run it again",
        ),
        (
            "max_tokens",
            "Claude's response exceeded the 32000 output token maximum",
            WAY,
            (
                "the model's answer was cut at its length limit (Claude's response exceeded the "
                "32000 output token maximum); ask for a shorter one, or for parts of it"
            ),
        ),
        ("stream_cut", "", WAY, "the model's answer broke off; run it again"),
        ("refusal", "", WAY, "the model refused; ask in another way, or with another model"),
        ("cli_crashed", "it fell over", WAY, "it fell over"),
    ],
)
def test_what_happened_is_told_with_what_to_do(
    reason: Reason, said: str, way: ModelWay, told: str
) -> None:
    assert model_failure(reason, said, way) == told


def test_an_account_that_is_used_up_is_told_as_that() -> None:
    assert model_failure("api_rate_limit", "429 quota", WAY, "quota") == (
        "the model API at https://api.test says that the account has nothing left to use (429 "
        "quota); wait until its limit is renewed, raise it, or name another `runner` in agent.md"
    )


def test_an_api_that_cannot_be_reached_is_told_in_our_own_words() -> None:
    answer = unreachable(UpstreamLost("connect error at http://127.0.0.1:9"))
    said = f"502 {answer.message}"
    assert model_failure("api_error", "the CLI's own words", WAY, "unreachable") == (
        "the orchestrator cannot reach the model API at https://api.test; check "
        "ANTHROPIC_BASE_URL, the network and the proxy settings"
    )
    assert model_failure("api_error", said, WAY).startswith(
        "the orchestrator cannot reach the model API (connect error at http://127.0.0.1:9); check "
        "ANTHROPIC_BASE_URL, the network and the proxy settings"
    )
