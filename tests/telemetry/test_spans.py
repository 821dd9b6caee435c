"""What happens in a run -> spans: no container, no collector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult, Usage
from orchestrator.domain.task import Task
from orchestrator.domain.window import called_within, trace_id_of
from orchestrator.telemetry.exporting import CallsOnly
from orchestrator.telemetry.spans import MAX_OPEN_CALLS, MAX_SPAN_NAME, RunSpan, Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AGENT = AgentSpec(name="worker", description="Works.", prompt="Work, hunter2.", model="sonnet")


class Traced:
    """Runs that are traced, and the spans that came of it."""

    def __init__(self, **options: Any) -> None:
        self.kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.at = 1000.0

    def begin(self, task: Task | None = None, *, content: bool = False) -> RunSpan:
        task = task or Task(agent="worker", prompt="go, hunter2", traceparent=PARENT)
        tracing = Tracing(self.provider.get_tracer("test"), content=content)
        run = tracing.begun(task)
        run.planned(AGENT, "claude", "anthropic", lambda text: text.replace("hunter2", "***"))
        return run

    def tell(self, run: RunSpan, kind: EventKind, text: str = "", **data: object) -> None:
        self.at += 1
        run.saw(Event(run_id="r1", seq=1, at=self.at, kind=kind, text=text, data=data))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.kept.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.provider.shutdown()


def ended(**fields: Any) -> RunResult:
    values = {"status": "completed", "reason": "ok", **fields}
    return RunResult.model_validate({"run_id": "r1", "agent": "worker", "caller": "main", **values})


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    above = "" if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{span.context.trace_id:032x}", above


def test_a_run_is_part_of_its_callers_trace_and_what_it_hands_on_is_part_of_it(
    traced: Traced,
) -> None:
    run = traced.begin()
    assert trace_id_of(run.traceparent) == trace_id_of(PARENT)
    child = traced.begin(Task(agent="helper", prompt="x", traceparent=run.traceparent, depth=1))
    child.ended(ended())
    run.ended(ended())
    assert ids(traced.named("invoke_agent worker")) == (trace_id_of(PARENT), "b7ad6b7169203331")
    assert ids(traced.named("invoke_agent helper")) == (
        trace_id_of(PARENT),
        run.traceparent.split("-")[2],
    )


def test_a_run_without_a_caller_in_a_trace_begins_one(traced: Traced) -> None:
    run = traced.begin(Task(agent="worker", prompt="x"))
    run.ended(ended())
    assert ids(traced.named("invoke_agent worker")) == (trace_id_of(run.traceparent), "")


def test_what_failed_says_why_in_words_that_do_not_change(traced: Traced) -> None:
    run = traced.begin()
    traced.tell(run, "queued")
    traced.tell(run, "starting")
    traced.tell(run, "started", runner="claude", path="warm")
    traced.tell(run, "model_request", status=529, error_type="overloaded_error", provider="google")
    traced.tell(run, "model_request", status=400, error_type="budget_exceeded")
    traced.tell(run, "server_denied", server="it", tool="rm", code="DENIED_BY_POLICY", rule="deny")
    traced.tell(run, "server_call", server="it", tool="resource:file:///x", is_error=True)
    traced.tell(run, "approval_asked", call_id="c1", tool="Bash")
    traced.tell(run, "tool_call", id="t1", tool="Bash", input={})
    run.ended(ended(status="failed", reason="api_overloaded", usage=Usage(input_tokens=7)))

    found = {span.name: (span.attributes or {}).get("error.type") for span in traced.spans}
    assert found == {
        "chat sonnet": "budget_exceeded",  # the last of two
        "tools/call rm": "DENIED_BY_POLICY",
        "resources/read file:///x": "tool_error",
        "execute_tool Bash": "unfinished",
        "wait approval": "unfinished",
        "invoke_agent worker": "api_overloaded",
    }
    assert all(span.status.status_code is StatusCode.ERROR for span in traced.spans)
    first = traced.spans[0].attributes or {}
    assert (first["gen_ai.provider.name"], first["error.type"]) == (
        "gcp.gemini",
        "overloaded_error",
    )
    run_attributes = traced.named("invoke_agent worker").attributes or {}
    assert run_attributes["orchestrator.queue_seconds"] == 1
    assert run_attributes["orchestrator.start_seconds"] == 1
    assert run_attributes["orchestrator.start_path"] == "warm"


def test_a_task_that_is_refused_is_a_span_with_the_code(traced: Traced) -> None:
    Tracing(traced.provider.get_tracer("test")).begun(Task(agent="x", prompt="y")).refused(
        "agent_not_found"
    )
    attributes = traced.named("invoke_agent x").attributes or {}
    assert attributes["error.type"] == "agent_not_found"


def test_times_are_those_of_the_record(traced: Traced) -> None:
    run = traced.begin()
    traced.tell(run, "model_request", status=200, duration_ms=250, first_ms=50, asked_model="m")
    traced.tell(run, "tool_call", id="t1", tool="Bash", input={})
    traced.tell(run, "tool_result", id="t1", is_error=False)
    traced.tell(run, "approval_asked", call_id="c1", tool="Bash")
    traced.tell(run, "approval_decided", call_id="c1", decision="approved")
    run.ended(ended())
    spans = {span.name: (span.start_time, span.end_time) for span in traced.spans}
    assert spans["chat m"] == (1_000_750_000_000, 1_001_000_000_000)
    assert spans["execute_tool Bash"] == (1_002_000_000_000, 1_003_000_000_000)
    assert spans["wait approval"] == (1_004_000_000_000, 1_005_000_000_000)
    assert (traced.named("wait approval").attributes or {})["orchestrator.decision"] == "approved"


def test_input_tokens_include_those_of_the_cache(traced: Traced) -> None:
    run = traced.begin()
    tokens: Any = {"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 4}
    traced.tell(run, "model_request", status=200, cache_write_tokens=8, **tokens)
    attributes = traced.spans[0].attributes or {}
    assert attributes["gen_ai.usage.input_tokens"] == 13
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert attributes["gen_ai.usage.cache_creation.input_tokens"] == 8


def say_things(traced: Traced, *, content: bool) -> str:
    """A run in which all have something to say; everything that its spans hold."""
    run = traced.begin(content=content)
    traced.tell(run, "text", "the agent says")
    traced.tell(run, "tool_call", "Bash: ls /home", id="t1", tool="Bash", input={"c": "ls /home"})
    traced.tell(run, "tool_result", "thesis.txt", id="t1", is_error=False)
    traced.tell(run, "asked", "may I?", message_id="m1", default_answer="no")
    traced.tell(run, "answered", "you may", message_id="m1", by="caller")
    traced.tell(run, "steered", "faster")
    traced.tell(run, "schema_failed", "/n: 'three' is not a number")
    run.ended(ended(result={"answer": "forty-two"}, message="well done"))
    return json.dumps([json.loads(span.to_json()) for span in traced.spans])


SAID = ("go, ", "Work, ", "ls /home", "thesis.txt", "forty-two")
NEVER = ("hunter2", "the agent says", "may I?", "you may", "faster", "'three'", "well done")


def test_content_is_in_no_span(traced: Traced) -> None:
    held = say_things(traced, content=False)
    assert [text for text in (*SAID, *NEVER) if text in held] == []


def test_content_that_is_asked_for_is_there_without_secrets(traced: Traced) -> None:
    held = say_things(traced, content=True)
    assert [text for text in SAID if text not in held] == []
    assert [text for text in NEVER if text in held] == []
    assert "go, ***" in held
    run = traced.named("invoke_agent worker").attributes or {}
    assert json.loads(str(run["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": '{"answer": "forty-two"}'}]}
    ]


def test_what_an_agent_makes_up_is_bounded(traced: Traced) -> None:
    run = traced.begin()
    for n in range(2 * MAX_OPEN_CALLS):
        traced.tell(run, "tool_call", id=f"t{n}", tool="x" * 4000, input={})
        traced.tell(run, "egress_denied", host="h" * 300, port=443, method="CONNECT", status=403)
        traced.tell(run, "approval_asked", call_id=f"c{n}", tool="Bash")
    traced.tell(run, "tool_result", id="never called", is_error=True)
    traced.tell(run, "model_request", status="200", duration_ms=None, model=7, provider=[])
    run.ended(ended())
    assert len(traced.spans) == 2 * MAX_OPEN_CALLS + 2
    assert max(len(span.name) for span in traced.spans) <= MAX_SPAN_NAME + len("execute_tool ")
    assert len(traced.named("invoke_agent worker").events) <= 128


def test_a_run_that_is_not_sampled_makes_no_spans_and_keeps_its_trace() -> None:
    traced = Traced(sampler=ALWAYS_OFF)
    run = traced.begin()
    traced.tell(run, "model_request", status=200)
    run.ended(ended())
    assert traced.spans == []
    assert trace_id_of(run.traceparent) == trace_id_of(PARENT)
    assert run.traceparent.endswith("-00")
    traced.provider.shutdown()


def test_calls_that_the_mcp_sdk_makes_are_no_spans_and_tell_of_no_trace(traced: Traced) -> None:
    tracer = CallsOnly(traced.provider).get_tracer("mcp-python-sdk")
    with (
        tracer.start_as_current_span("tools/call run_subagent", kind=SpanKind.SERVER),
        tracer.start_as_current_span("MCP send tools/call x", kind=SpanKind.CLIENT) as span,
    ):
        assert not span.get_span_context().is_valid
        assert trace.get_current_span() is span
    assert [span.name for span in traced.spans] == ["tools/call run_subagent"]


def test_a_span_has_the_request_that_began_its_run() -> None:
    traced = Traced()
    with called_within(None, "req-1"):
        run = traced.begin()
    run.refused("caller_refused")
    attributes = traced.named("invoke_agent worker").attributes
    assert attributes is not None
    assert attributes["orchestrator.request_id"] == "req-1"
