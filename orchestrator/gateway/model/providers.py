"""Whose model APIs there are, and which settings lead to each."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.settings import (
    ANTHROPIC_BASE_URL,
    GOOGLE_GEMINI_BASE_URL,
    OPENAI_BASE_URL,
    Settings,
)


class Provider(NamedTuple):
    """One whose API is paid with a credential of the operator's."""

    label: str
    """As it is told to people."""
    key_variables: str
    """That could hold the credential, as they are told."""
    base_variable: str
    usual_base_url: str
    free_target: str
    """A list of models, which no account pays for, below the base URL."""


PROVIDERS: dict[ProviderName, Provider] = {
    "anthropic": Provider(
        "Anthropic",
        "ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN or CLAUDE_CODE_OAUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        ANTHROPIC_BASE_URL,
        "/v1/models?limit=1",
    ),
    "openai": Provider("OpenAI", "OPENAI_API_KEY", "OPENAI_BASE_URL", OPENAI_BASE_URL, "/models"),
    "google": Provider(
        "Google",
        "GEMINI_API_KEY or GOOGLE_API_KEY",
        "GOOGLE_GEMINI_BASE_URL",
        GOOGLE_GEMINI_BASE_URL,
        "/v1beta/models?pageSize=1",
    ),
}


def base_url_of(settings: Settings, provider: ProviderName) -> str:
    """Where requests to a provider go."""
    match provider:
        case "anthropic":
            return settings.anthropic_base_url
        case "openai":
            return settings.openai_base_url
        case "google":
            return settings.google_gemini_base_url
