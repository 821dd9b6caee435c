"""In which span the present call is, in W3C's words; with or without an SDK that makes spans."""

from __future__ import annotations

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator


def current_traceparent() -> str:
    """Of the span that is being made, or of the caller's, if no spans are made; "" for none."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")
