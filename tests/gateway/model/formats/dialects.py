"""The four formats as a container speaks them: where to ask, how, and what an answer looks like."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orchestrator.gateway.model.access import ModelAccess, look_through
from orchestrator.gateway.model.formats.contract import Looked, Rules
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.runners.contract import WireFormat
from tests.gateway.near import Answer, Client, connection

DATA = "data:image/png;base64,iVBORw0K"


@dataclass(frozen=True)
class Dialect:
    name: WireFormat
    model: str
    path: str
    header: str
    """The one that its clients put the key into."""
    plain: dict[str, Any]
    """A small request; without `stream`, where the body says it."""

    def body(self, **more: object) -> bytes:
        return json.dumps({**self.plain, **more}).encode()

    def look(self, body: dict[str, Any], rules: Rules = Rules()) -> Looked:  # noqa: B008 a tuple
        """What the gateway makes of a request."""
        api = FORMATS[self.name]
        path, _, query = self.path.partition("?")
        call = api.call(path, query)
        assert call is not None
        return look_through(json.dumps(body).encode(), rules, api, call)

    async def post(
        self, access: ModelAccess, body: bytes, path: str = "", **headers: str
    ) -> Answer:
        shown = "Bearer " * (self.header == "authorization") + access.token
        async with connection(access.service) as stream:
            asked = {self.header: shown, **headers}
            return await Client(stream).ask("POST", path or self.path, asked, body)


ANTHROPIC = Dialect(
    "anthropic",
    "claude-sonnet-4-5",
    "/v1/messages?beta=true",
    "x-api-key",
    {
        "model": "claude-sonnet-4-5",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
    },
)
RESPONSES = Dialect(
    "responses",
    "gpt-5.5",
    "/v1/responses",
    "authorization",
    {
        "model": "gpt-5.5",
        "stream": True,
        "store": False,
        "input": [
            {"role": "user", "type": "message", "content": [{"type": "input_text", "text": "hi"}]}
        ],
    },
)
CHAT = Dialect(
    "chat",
    "gpt-5.5",
    "/v1/chat/completions",
    "authorization",
    {
        "model": "gpt-5.5",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
    },
)
GEMINI = Dialect(
    "gemini",
    "gemini-2.5-pro",
    "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
    "x-goog-api-key",
    {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
)
DIALECTS = (ANTHROPIC, RESPONSES, CHAT, GEMINI)
OTHERS = (RESPONSES, CHAT, GEMINI)
