"""A collector for tests: takes OTLP over HTTP on loopback, and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Value = str | int | float | bool | list[Any]


@dataclass(frozen=True)
class SpanSeen:
    """A span as a collector gets it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    """INTERNAL, SERVER, CLIENT."""
    start: int
    end: int
    attributes: dict[str, Value]
    events: list[tuple[str, dict[str, Value]]]
    failed: bool
    message: str
    scope: str
    resource: dict[str, Value]


class Collector:
    """What has come, and where it is to be sent."""

    def __init__(self) -> None:
        self.spans: list[SpanSeen] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> SpanSeen:
        """The one span of that name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(_seen(span, scope.scope.name, about))


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.headers.append({k.lower(): v for k, v in self.headers.items()})
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 likewise
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def _seen(span: Any, scope: str, resource: dict[str, Value]) -> SpanSeen:
    return SpanSeen(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[(event.name, _attributes(event.attributes)) for event in span.events],
        failed=span.status.code == span.status.STATUS_CODE_ERROR,
        message=span.status.message,
        scope=scope,
        resource=resource,
    )


def _attributes(pairs: Any) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Value:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    found: Value = getattr(value, kind)
    return found
