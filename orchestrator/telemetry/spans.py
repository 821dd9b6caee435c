"""What happens in a run -> the spans of a trace.

All spans are made when what they are about has ended, of the run's record, and hold no text of the
agent's or the caller's; with `content`, they hold what the record holds of it, which is without
secrets. Only the API of OpenTelemetry is used here: who exports the spans is not known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult, Tokens
from orchestrator.domain.task import Task
from orchestrator.domain.window import REQUEST_ID
from orchestrator.telemetry.names import Names

MAX_SPAN_NAME = 200
"""Characters of a name or an id; tools and models are named inside of containers."""

MAX_OPEN_CALLS = 256
"""Tool calls of one run that have no result yet. A CLI makes a dozen at once; what forges more gets
no spans for them."""

MAX_CONTENT = 16_000
"""Characters of one message, if content is wanted."""

_TOLD = ("schema_failed", "fallback", "nudged", "interrupted", "steered", "api_retry", "mcp_failed")
"""What else of a record is an event of the run's span, without its text."""

_W3C = TraceContextTextMapPropagator()

Attributes = dict[str, str | int | float | bool | tuple[str, ...]]


class Tracing:
    """A span for each run, and below it one for each thing that it did. A Watcher, as
    engine/tasks/watch.py has it.
    """

    def __init__(self, tracer: Tracer, *, content: bool = False) -> None:
        self._tracer = tracer
        self._content = content

    def begun(self, task: Task) -> RunSpan:
        return RunSpan(self._tracer, task, content=self._content)


class _Open(NamedTuple):
    """Something that has begun."""

    name: str
    at: float
    attributes: Attributes


class RunSpan:
    """One run, as a RunWatch has it."""

    def __init__(self, tracer: Tracer, task: Task, *, content: bool) -> None:
        self._tracer = tracer
        self._task = task
        self._content = content
        attributes: Attributes = {
            Names.OPERATION_NAME: Names.INVOKE_AGENT,
            Names.AGENT_NAME: _short(task.agent),
            Names.RUN_ID: task.run_id,
            Names.CALLER: _short(task.caller),
        }
        if task.parent_run_id:
            attributes[Names.PARENT_RUN_ID] = task.parent_run_id
        if request_id := REQUEST_ID.get():
            attributes[Names.REQUEST_ID] = request_id
        above = _W3C.extract({"traceparent": task.traceparent}, Context())
        name = f"{Names.INVOKE_AGENT} {_short(task.agent)}"
        self._span: Span = tracer.start_span(name, above, attributes=attributes)
        self._within = set_span_in_context(self._span, Context())
        self._provider = ""
        self._model = ""
        self._conversation = ""
        self._clean: Callable[[str], str] = str
        self._queued = self._starting = 0.0
        self._calls: dict[str, _Open] = {}
        self._waits: dict[str, _Open] = {}

    @property
    def traceparent(self) -> str:
        """As W3C has it; "" where the SDK is switched off."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, self._within)
        return carrier.get("traceparent", "")

    def planned(
        self, agent: AgentSpec, runner: str, provider: str, clean: Callable[[str], str]
    ) -> None:
        self._provider = Names.PROVIDERS.get(provider, provider)
        self._model = agent.model
        attributes: Attributes = {
            Names.PROVIDER_NAME: self._provider,
            Names.AGENT_DESCRIPTION: agent.description,
            Names.AGENT_VERSION: agent.digest,
            Names.OUTPUT_TYPE: agent.output_format,
            Names.RUNNER: runner,
        }
        if agent.model:
            attributes[Names.REQUEST_MODEL] = _short(agent.model)
        if self._content and self._span.is_recording():
            said = clean(self._task.message[:MAX_CONTENT])
            attributes[Names.INPUT_MESSAGES] = _message("user", said)
            instructions = [{"type": "text", "content": clean(agent.prompt[:MAX_CONTENT])}]
            attributes[Names.SYSTEM_INSTRUCTIONS] = json.dumps(instructions, ensure_ascii=False)
        self._span.set_attributes(attributes)

    def saw(self, event: Event) -> None:
        if not self._span.is_recording():
            return
        data = event.data
        match event.kind:
            case "queued":
                self._queued = event.at
            case "starting":
                self._starting = self._starting or event.at
            case "started":
                self._started(event)
            case "ready":
                self._conversation = _text(data, "session_id")
            case "model_request":
                self._chat(event)
            case "tool_call":
                self._tool_called(event)
            case "tool_result":
                self._tool_answered(event)
            case "server_call" | "server_denied":
                self._server_called(event)
            case "egress" | "egress_denied" | "secret_used":
                self._left(event)
            case "asked" | "approval_asked":
                self._waits_for(event)
            case "answered" | "approval_decided":
                self._was_told(event)
            case kind if kind in _TOLD:
                told = {key: data[key] for key in ("runner", "next", "reason") if key in data}
                self._note(event, {f"orchestrator.{key}": str(told[key]) for key in told})

    def ended(self, result: RunResult) -> None:
        self._close_open()
        attributes: Attributes = {
            Names.STATUS: result.status,
            Names.REASON: result.reason,
            Names.ATTEMPTS: result.attempts,
            Names.REQUESTS: result.usage.requests,
            Names.COST_USD: result.cost_usd,
            Names.ESTIMATED_USD: result.estimated_usd,
            Names.SCRIPTED: result.scripted,
            **_usage(result.usage),
        }
        if result.model:
            attributes[Names.RESPONSE_MODEL] = _short(result.model)
        if result.runner:
            attributes[Names.RUNNER] = result.runner
        if self._conversation:
            attributes[Names.CONVERSATION_ID] = self._conversation
        if self._content and result.status == "completed":
            said = result.result
            said = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
            attributes[Names.OUTPUT_MESSAGES] = _message("assistant", said[:MAX_CONTENT])
        self._span.set_attributes(attributes)
        if result.status != "completed":
            _fail(self._span, result.reason)
        self._span.end()

    def refused(self, code: str) -> None:
        _fail(self._span, code)
        self._span.end()

    # One by one

    def _started(self, event: Event) -> None:
        self._span.set_attributes(
            {
                Names.QUEUE_SECONDS: round(max(0.0, self._starting - self._queued), 6),
                Names.START_SECONDS: round(max(0.0, event.at - self._starting), 6),
                Names.START_PATH: _text(event.data, "path"),
            }
        )

    def _chat(self, event: Event) -> None:
        data = event.data
        asked = _text(data, "asked_model") or _short(self._model)
        status = _number(data, "status")
        attributes: Attributes = {
            Names.OPERATION_NAME: Names.CHAT,
            Names.PROVIDER_NAME: Names.PROVIDERS.get(_text(data, "provider"), self._provider),
            Names.HTTP_RESPONSE_STATUS_CODE: int(status),
            Names.COST_USD: _number(data, "cost_usd"),
            Names.ESTIMATED_USD: _number(data, "estimated_usd"),
            **_usage(Tokens(**{key: int(_number(data, key)) for key in Tokens.model_fields})),
        }
        if asked:
            attributes[Names.REQUEST_MODEL] = asked
        if self._conversation:
            attributes[Names.CONVERSATION_ID] = self._conversation
        for name, key in (
            (Names.RESPONSE_MODEL, "model"),
            (Names.RESPONSE_ID, "answer_id"),
        ):
            if text := _text(data, key):
                attributes[name] = text
        if stop := _text(data, "stop"):
            attributes[Names.RESPONSE_FINISH_REASONS] = (stop,)
        if first := _number(data, "first_ms"):
            attributes[Names.RESPONSE_TIME_TO_FIRST_CHUNK] = first / 1000
        error = _text(data, "error_type") or (str(int(status)) if status >= 400 else "")
        self._span_of(
            f"{Names.CHAT} {asked}".rstrip(), event, attributes, error=error, kind=SpanKind.CLIENT
        )

    def _tool_called(self, event: Event) -> None:
        if len(self._calls) >= MAX_OPEN_CALLS:
            return
        tool, call_id = _text(event.data, "tool"), _text(event.data, "id")
        attributes: Attributes = {
            Names.OPERATION_NAME: Names.EXECUTE_TOOL,
            Names.TOOL_NAME: tool,
            Names.TOOL_CALL_ID: call_id,
            Names.TOOL_TYPE: Names.EXTENSION if tool.startswith("mcp__") else Names.FUNCTION,
        }
        if self._content:
            given = json.dumps(event.data.get("input"), ensure_ascii=False)
            attributes[Names.TOOL_CALL_ARGUMENTS] = given[:MAX_CONTENT]
        self._calls[call_id] = _Open(f"{Names.EXECUTE_TOOL} {tool}", event.at, attributes)

    def _tool_answered(self, event: Event) -> None:
        call = self._calls.pop(_text(event.data, "id"), None)
        if call is None:
            return
        if self._content:
            call.attributes[Names.TOOL_CALL_RESULT] = event.text[:MAX_CONTENT]
        error = Names.TOOL_ERROR if event.data.get("is_error") is True else ""
        self._span_of(call.name, event, call.attributes, error=error, since=call.at)

    def _server_called(self, event: Event) -> None:
        data, target = event.data, _text(event.data, "tool")
        what, _, name = target.partition(":")
        method = Names.METHODS.get(what, Names.TOOLS_CALL)
        attributes: Attributes = {
            Names.MCP_METHOD_NAME: method,
            Names.SERVER: _text(data, "server"),
            Names.DIRECT: data.get("direct") is True,
            Names.DECISION: "allowed" if event.kind == "server_call" else "denied",
        }
        if method == Names.TOOLS_CALL:
            attributes |= {Names.OPERATION_NAME: Names.EXECUTE_TOOL, Names.TOOL_NAME: target}
        elif method == Names.PROMPTS_GET:
            attributes[Names.PROMPT_NAME] = target = name
        else:
            attributes[Names.MCP_RESOURCE_URI] = target = name
        for attribute, key in (
            (Names.NETWORK_TRANSPORT, "transport"),
            (Names.MCP_PROTOCOL_VERSION, "protocol"),
            (Names.DECIDING_RULE, "rule"),
        ):
            if text := _text(data, key):
                attributes[attribute] = text
        error = Names.TOOL_ERROR if data.get("is_error") is True else ""
        if event.kind == "server_denied":
            error = _text(data, "code") or "denied"
        self._span_of(f"{method} {target}", event, attributes, error=error, kind=SpanKind.CLIENT)

    def _left(self, event: Event) -> None:
        """A host was reached, or was not: an event, since an agent may reach for thousands."""
        data = event.data
        attributes: Attributes = {
            Names.SERVER_ADDRESS: _text(data, "host"),
            Names.HTTP_REQUEST_METHOD: _text(data, "method"),
            Names.HTTP_RESPONSE_STATUS_CODE: int(_number(data, "status")),
            Names.DECISION: "denied" if event.kind == "egress_denied" else "allowed",
        }
        for name, key in ((Names.DECIDING_RULE, "rule"), (Names.SECRET, "secret")):
            if text := _text(data, key):
                attributes[name] = text
        for name, key in (
            (Names.SERVER_PORT, "port"),
            (Names.BYTES_OUT, "bytes_out"),
            (Names.BYTES_IN, "bytes_in"),
        ):
            if number := _number(data, key):
                attributes[name] = int(number)
        self._note(event, attributes)

    def _waits_for(self, event: Event) -> None:
        if len(self._waits) >= MAX_OPEN_CALLS:
            return
        what, key = ("question", "message_id") if event.kind == "asked" else ("approval", "call_id")
        wait_id = _text(event.data, key)
        attributes: Attributes = {Names.WAIT_ID: wait_id}
        if what == "approval":
            attributes[Names.TOOL_NAME] = _text(event.data, "tool")
        self._waits[f"{what} {wait_id}"] = _Open(f"{Names.WAIT} {what}", event.at, attributes)

    def _was_told(self, event: Event) -> None:
        what, key = (
            ("question", "message_id") if event.kind == "answered" else ("approval", "call_id")
        )
        wait = self._waits.pop(f"{what} {_text(event.data, key)}", None)
        if wait is None:  # it was asked in an earlier life of the run
            return
        if by := _text(event.data, "by"):
            wait.attributes[Names.ANSWERED_BY] = by
        if decision := _text(event.data, "decision"):
            wait.attributes[Names.DECISION] = decision
        self._span_of(wait.name, event, wait.attributes, since=wait.at)

    # How spans are made

    def _close_open(self) -> None:
        for left in (*self._calls.values(), *self._waits.values()):
            span = self._tracer.start_span(
                left.name, self._within, attributes=left.attributes, start_time=_ns(left.at)
            )
            _fail(span, Names.UNFINISHED)
            span.end()
        self._calls.clear()
        self._waits.clear()

    def _span_of(
        self,
        name: str,
        event: Event,
        attributes: Attributes,
        *,
        error: str = "",
        since: float | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        """A span of what has ended with an event, that says how long it took or not."""
        began = event.at - _number(event.data, "duration_ms") / 1000 if since is None else since
        span = self._tracer.start_span(
            name, self._within, kind, attributes=attributes, start_time=_ns(began)
        )
        if error:
            _fail(span, error)
        span.end(_ns(event.at))

    def _note(self, event: Event, attributes: Attributes) -> None:
        self._span.add_event(Names.EVENT.format(kind=event.kind), attributes, _ns(event.at))


def _fail(span: Span, error: str) -> None:
    span.set_attribute(Names.ERROR_TYPE, _short(error))
    span.set_status(Status(StatusCode.ERROR))


def _usage(tokens: Tokens) -> Attributes:
    cached = tokens.cache_read_tokens + tokens.cache_write_tokens
    return {
        Names.USAGE_INPUT_TOKENS: tokens.input_tokens + cached,
        Names.USAGE_OUTPUT_TOKENS: tokens.output_tokens,
        Names.USAGE_CACHE_READ_INPUT_TOKENS: tokens.cache_read_tokens,
        Names.USAGE_CACHE_CREATION_INPUT_TOKENS: tokens.cache_write_tokens,
    }


def _message(role: str, text: str) -> str:
    parts = [{"type": "text", "content": text}]
    return json.dumps([{"role": role, "parts": parts}], ensure_ascii=False)


def _short(text: str) -> str:
    return text[:MAX_SPAN_NAME]


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    return _short(value) if isinstance(value, str) else ""


def _number(data: Mapping[str, object], key: str) -> float:
    value = data.get(key)
    return value if isinstance(value, int | float) else 0


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
