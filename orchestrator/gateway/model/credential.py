"""Settings -> Credential: what the model API is paid with. It never enters a container."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, SecretStr

from orchestrator.domain import Frozen
from orchestrator.errors import OperatorError
from orchestrator.gateway.http.headers import Headers
from orchestrator.settings import Settings

OAUTH_BETA = "oauth-2025-04-20"
"""The API takes a login's token only together with this."""


CREDENTIAL_VARIABLE = {
    "api_key": "ANTHROPIC_API_KEY",
    "auth_token": "ANTHROPIC_AUTH_TOKEN",
    "oauth_token": "CLAUDE_CODE_OAUTH_TOKEN",
}
"""The variable that holds a credential of each kind."""

KEYS = "ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN or CLAUDE_CODE_OAUTH_TOKEN"

WITHOUT_A_MODEL = (
    "ORCHESTRATOR_SCRIPTED=1 has the script.yaml beside an agent.md play the model instead"
)
"""What those set who only want to try an agent."""


class Credential(Frozen):
    """A secret, and how it is shown to the API."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    kind: Literal["api_key", "auth_token", "oauth_token"]
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


def credential_of(settings: Settings) -> Credential | None:
    """The first of ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN and CLAUDE_CODE_OAUTH_TOKEN."""
    for kind, secret in (
        ("api_key", settings.anthropic_api_key),
        ("auth_token", settings.anthropic_auth_token),
        ("oauth_token", settings.claude_code_oauth_token),
    ):
        text = secret.get_secret_value().strip() if secret is not None else ""
        if not text:
            continue
        if not re.fullmatch(r"[\x21-\x7e]+", text):
            raise OperatorError(
                f"{CREDENTIAL_VARIABLE[kind]} holds a character that no HTTP header can carry, "
                "such as a space or a line break; copy it again"
            )
        return Credential.model_validate({"kind": kind, "secret": text})
    return None
