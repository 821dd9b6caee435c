"""A caller's trace, by whichever door it comes in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from orchestrator.domain.task import Task
from orchestrator.domain.window import TRACEPARENT
from orchestrator.surfaces.mcp.windows import within_trace
from tests.surfaces.http.api_stage import PATIENCE, on_api_stage

pytestmark = pytest.mark.anyio

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
META = "00-1111111111111111111111111111111c-2222222222222222-01"
SPAN = SpanContext(0x3333333333333333333333333333333C, 0x4444444444444444, True, TraceFlags(1))
CURRENT = "00-3333333333333333333333333333333c-4444444444444444-01"


@pytest.mark.parametrize(
    ("meta", "headers", "current", "expected"),
    [
        ({}, None, False, ""),
        ({}, None, True, CURRENT),
        ({}, {"traceparent": HEADER}, True, HEADER),
        ({"traceparent": META}, {"traceparent": HEADER}, True, CURRENT),
        ({"traceparent": "nonsense"}, {"traceparent": HEADER}, False, HEADER),
        ({"traceparent": 7}, {"traceparent": "x"}, False, ""),
    ],
)
async def test_an_mcp_call_is_in_the_span_of_its_own_or_of_what_its_caller_says(
    meta: dict[str, Any], headers: dict[str, str] | None, current: bool, expected: str
) -> None:
    """With `_meta`, the SDK has made the call's own span in the caller's trace by now."""
    request = None if headers is None else SimpleNamespace(headers=headers)
    context: Any = SimpleNamespace(meta=meta, request=request)

    async def call(_: object) -> str:
        return TRACEPARENT.get()

    token = attach(trace.set_span_in_context(NonRecordingSpan(SPAN))) if current else None
    try:
        assert await within_trace(context, call) == expected
    finally:
        if token is not None:
            detach(token)
    assert TRACEPARENT.get() == ""


async def test_a_request_of_the_api_says_it_in_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    async with on_api_stage(tmp_path) as stage:
        accept = stage.service.accept

        async def noting(task: Task, *args: Any, **kwargs: Any) -> Any:
            seen.append(TRACEPARENT.get())
            return await accept(task, *args, **kwargs)

        monkeypatch.setattr(stage.service, "accept", noting)
        body = {"agent": "for-main", "prompt": "go"}
        async with stage.client() as main:
            with anyio.fail_after(PATIENCE):
                for headers in ({"traceparent": HEADER}, {}):
                    answer = await main.post("/v1/runs", json=body, headers=headers)
                    await stage.ended(answer.json()["run_id"], "done")
    assert seen == [HEADER, ""]
