"""How the real credential is found, and shown to the API alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from orchestrator.errors import OperatorError
from orchestrator.gateway.model.credential import Credential, all_credentials, credential_of
from orchestrator.settings import read_settings
from tests.gateway.model.model_stage import KEY


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("api_key", {"x-api-key": KEY, "anthropic-beta": "one"}),
        ("auth_token", {"authorization": f"Bearer {KEY}", "anthropic-beta": "one"}),
        (
            "oauth_token",
            {"authorization": f"Bearer {KEY}", "anthropic-beta": "one,oauth-2025-04-20"},
        ),
        ("openai_key", {"authorization": f"Bearer {KEY}", "anthropic-beta": "one"}),
        ("gemini_key", {"x-goog-api-key": KEY, "anthropic-beta": "one"}),
        ("google_key", {"x-goog-api-key": KEY, "anthropic-beta": "one"}),
    ],
)
def test_each_credential_is_shown_in_its_own_way(kind: str, expected: dict[str, str]) -> None:
    credential = Credential.model_validate({"kind": kind, "secret": KEY})
    assert dict(credential.added_to((("anthropic-beta", "one"),))) == expected
    assert KEY not in repr(credential) + str(credential) + credential.model_dump_json()


def test_a_credential_comes_from_the_settings_and_never_shows(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    both = {"CLAUDE_CODE_OAUTH_TOKEN": "o", "ANTHROPIC_AUTH_TOKEN": f"{KEY}\n"}
    settings = read_settings(home | both)
    assert credential_of(settings) == Credential(kind="auth_token", secret=SecretStr(KEY))
    assert KEY not in repr(settings) + settings.model_dump_json()
    assert credential_of(read_settings(home)) is None
    with pytest.raises(OperatorError, match="ANTHROPIC_API_KEY holds a character") as refused:
        credential_of(read_settings(home | {"ANTHROPIC_API_KEY": f"{KEY}\n{KEY}"}))
    assert KEY not in str(refused.value)


def test_each_provider_has_variables_of_its_own(tmp_path: Path) -> None:
    env = {"OPENAI_API_KEY": "o", "GOOGLE_API_KEY": "second", "GEMINI_API_KEY": "first"}
    settings = read_settings({"HOME": str(tmp_path), **env})
    found = all_credentials(settings)
    assert [(each.variable, each.secret.get_secret_value()) for each in found] == [
        ("OPENAI_API_KEY", "o"),
        ("GEMINI_API_KEY", "first"),
    ]
    assert credential_of(settings) is None
    with pytest.raises(OperatorError, match="GOOGLE_API_KEY holds a character"):
        credential_of(read_settings({"HOME": str(tmp_path), "GOOGLE_API_KEY": "a b"}), "google")
