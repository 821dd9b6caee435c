"""Settings -> Credential: what a model API is paid with. It never enters a container."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, SecretStr

from orchestrator.domain import Frozen
from orchestrator.errors import OperatorError
from orchestrator.gateway.http.headers import Headers
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.providers import PROVIDERS
from orchestrator.settings import Settings

OAUTH_BETA = "oauth-2025-04-20"
"""The API takes a login's token only together with this."""


CredentialKind = Literal[
    "api_key", "auth_token", "oauth_token", "openai_key", "gemini_key", "google_key"
]

CREDENTIAL_VARIABLE: dict[CredentialKind, str] = {
    "api_key": "ANTHROPIC_API_KEY",
    "auth_token": "ANTHROPIC_AUTH_TOKEN",
    "oauth_token": "CLAUDE_CODE_OAUTH_TOKEN",
    "openai_key": "OPENAI_API_KEY",
    "gemini_key": "GEMINI_API_KEY",
    "google_key": "GOOGLE_API_KEY",
}
"""The variable that holds a credential of each kind."""

WITHOUT_A_MODEL = (
    "ORCHESTRATOR_SCRIPTED=1 has the script.yaml beside an agent.md play the model instead"
)
"""What is set by those who only want to try an agent."""


class Credential(Frozen):
    """A secret, and how it is shown to the API."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: CredentialKind
    secret: SecretStr

    @property
    def variable(self) -> str:
        """What the operator has set it with."""
        return CREDENTIAL_VARIABLE[self.kind]

    def added_to(self, headers: Headers) -> Headers:
        """The headers of a request, with the credential."""
        secret = self.secret.get_secret_value()
        if self.kind == "api_key":
            return (*headers, ("x-api-key", secret))
        if self.kind in ("gemini_key", "google_key"):
            return (*headers, ("x-goog-api-key", secret))
        if self.kind == "oauth_token":
            betas = [value for key, value in headers if key == "anthropic-beta"]
            names = [name.strip() for value in betas for name in value.split(",")]
            merged = ",".join(dict.fromkeys([*filter(None, names), OAUTH_BETA]))
            headers = (
                *(item for item in headers if item[0] != "anthropic-beta"),
                ("anthropic-beta", merged),
            )
        return (*headers, ("authorization", f"Bearer {secret}"))

    def removed_from(self, data: bytes) -> bytes:
        """Bytes that the container is about to see, without the secret."""
        return data.replace(self.secret.get_secret_value().encode(), b"[redacted]")


def credential_of(settings: Settings, provider: ProviderName = "anthropic") -> Credential | None:
    """The first of a provider's variables that is set."""
    for kind, secret in _secrets(settings, provider):
        text = secret.get_secret_value().strip() if secret is not None else ""
        if not text:
            continue
        if not re.fullmatch(r"[\x21-\x7e]+", text):
            raise OperatorError(
                f"{CREDENTIAL_VARIABLE[kind]} holds a character that no HTTP header can carry, "
                "such as a space or a line break; copy it again"
            )
        return Credential(kind=kind, secret=SecretStr(text))
    return None


def is_paid_for(settings: Settings, provider: ProviderName) -> bool:
    """Whether the operator has set a credential for a provider, be it a good one or not."""
    secrets = [secret for _, secret in _secrets(settings, provider) if secret is not None]
    return any(secret.get_secret_value().strip() for secret in secrets)


def all_credentials(settings: Settings) -> tuple[Credential, ...]:
    """Those of every provider: what has to stay out of every record."""
    found = [credential_of(settings, provider) for provider in PROVIDERS]
    return tuple(each for each in found if each is not None)


def _secrets(
    settings: Settings, provider: ProviderName
) -> tuple[tuple[CredentialKind, SecretStr | None], ...]:
    match provider:
        case "anthropic":
            return (
                ("api_key", settings.anthropic_api_key),
                ("auth_token", settings.anthropic_auth_token),
                ("oauth_token", settings.claude_code_oauth_token),
            )
        case "openai":
            return (("openai_key", settings.openai_api_key),)
        case "google":
            return (
                ("gemini_key", settings.gemini_api_key),
                ("google_key", settings.google_api_key),
            )
