"""The formats there are."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.gateway.model.formats.anthropic import AnthropicFormat
from orchestrator.gateway.model.formats.chat import ChatFormat
from orchestrator.gateway.model.formats.contract import Format
from orchestrator.gateway.model.formats.gemini import GeminiFormat
from orchestrator.gateway.model.formats.responses import ResponsesFormat
from orchestrator.runners.contract import WireFormat

FORMATS: Mapping[WireFormat, Format] = {
    "anthropic": AnthropicFormat(),
    "responses": ResponsesFormat(),
    "chat": ChatFormat(),
    "gemini": GeminiFormat(),
}
