"""The model of tests/runners/claude/fake_model.py in the words of Gemini's generateContent."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.runners.claude.fake_model import Fail, FakeModel, Say, Step, Use, response


@dataclass
class FakeGemini(FakeModel):
    """Answers on …:streamGenerateContent."""

    def render(self, step: Step, number: int, *, streamed: bool) -> bytes:
        if isinstance(step, Fail):
            error = {"code": step.status, "message": f"scripted {step.status}", "status": "X"}
            return response(step.status, "application/json", json.dumps({"error": error}).encode())
        assert isinstance(step, Say | Use)
        part: dict[str, object] = {"text": step.text} if isinstance(step, Say) else {}
        if isinstance(step, Use):
            part = {"functionCall": {"name": step.tool, "args": step.input}}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
        content = {"role": "model", "parts": [part]}
        whole = {
            "candidates": [{"content": content, "finishReason": "STOP"}],
            "usageMetadata": usage,
        }
        return response(200, "text/event-stream", f"data: {json.dumps(whole)}\r\n\r\n".encode())
