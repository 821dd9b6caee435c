"""Settings -> spans on their way to a collector, over OTLP. The only module that loads the SDK of
OpenTelemetry, and only where the operator names a collector.

A thread of the SDK's exports; what it cannot get rid of is dropped, and no run waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Tracer, TracerProvider

from orchestrator import __version__
from orchestrator.errors import OperatorError
from orchestrator.settings import Settings
from orchestrator.telemetry.names import Names
from orchestrator.telemetry.spans import Tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.sdk.trace.export import SpanExporter

LAST_SPANS_SECONDS = 2.0
"""For the last spans to get to the collector when the process ends; then they are lost."""

SERVICE = "subagent-orchestrator"
MCP_SDK = "mcp-python-sdk"
"""What the MCP SDK calls itself where it makes spans."""

log = logging.getLogger(__name__)

NO_COLLECTOR = (
    "OTEL_EXPORTER_OTLP_ENDPOINT={endpoint} is no address of a collector; correct it, such as "
    "http://127.0.0.1:4318, or unset it"
)

LOST_SPANS = "the last spans did not get to %s within %g s, and are lost"

NOT_INSTALLED = (
    "OTEL_EXPORTER_OTLP_ENDPOINT is set, and what exports traces is not installed ({missing}); "
    "install subagent-orchestrator[otel], or unset the variable"
)


@asynccontextmanager
async def open_tracing(settings: Settings) -> AsyncIterator[Tracing]:
    """Traces of all runs, to the collector of the settings; OperatorError if that cannot be."""
    check_exporter(settings)
    provider = sdk_provider(otlp_exporter(settings))
    # The MCP SDK finds it there: each call of ours is a span of its caller's trace.
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(CallsOnly(provider))
    try:
        yield Tracing(provider.get_tracer(SERVICE, __version__), content=settings.trace_content)
    finally:
        with anyio.CancelScope(shield=True):
            if not await flushed(provider, LAST_SPANS_SECONDS):
                log.warning(LOST_SPANS, settings.otlp_endpoint, LAST_SPANS_SECONDS)


def check_exporter(settings: Settings) -> None:
    """OperatorError if nothing can be exported: told before a server has a client that waits."""
    if not settings.otlp_endpoint.startswith(("http://", "https://")):
        raise OperatorError(NO_COLLECTOR.format(endpoint=settings.otlp_endpoint))
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace.export  # noqa: F401 it is there
    except ImportError as exc:
        raise OperatorError(NOT_INSTALLED.format(missing=exc.name)) from exc


def otlp_exporter(settings: Settings) -> SpanExporter:
    """Exports to the collector of the settings. What else OTEL_EXPORTER_OTLP_... says of how, the
    SDK reads by itself.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.util.re import parse_env_headers

    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # that it tries again, and again
    given = settings.otlp_headers
    text = given.get_secret_value() if given is not None else ""
    return OTLPSpanExporter(
        endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces",
        headers=parse_env_headers(text, liberal=True),
    )


def sdk_provider(exporter: SpanExporter) -> SdkProvider:
    """Makes spans and has an exporter take them, in batches, in a thread."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider as Provider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {Names.SERVICE_NAME: SERVICE, Names.SERVICE_VERSION: __version__}
    # Last: what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say wins.
    resource = Resource.create(named).merge(OTELResourceDetector().detect())
    provider = Provider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


async def flushed(provider: SdkProvider, seconds: float) -> bool:
    """Have the last spans exported, in so many seconds at most; whether they were."""
    ended = threading.Thread(target=provider.shutdown, name="the last spans", daemon=True)
    ended.start()
    await anyio.to_thread.run_sync(ended.join, seconds)
    return not ended.is_alive()


class CallsOnly(TracerProvider):
    """Gives the MCP SDK a tracer for the calls that it answers, and not for those that it makes:
    these are made for a run, of which it knows nothing, and have a span of the run's. So servers of
    tools are told of no trace either.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> Tracer:
        tracer = self._provider.get_tracer(instrumenting_module_name, *args, **kwargs)
        return _CallsOnlyTracer(tracer) if instrumenting_module_name == MCP_SDK else tracer


class _CallsOnlyTracer(Tracer):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> Span:
        return self._tracer.start_span(name, *args, **kwargs)

    def start_as_current_span(  # type: ignore[override]  # as the SDK of MCP calls it
        self, name: str, *args: Any, kind: SpanKind = SpanKind.INTERNAL, **kwargs: Any
    ) -> AbstractContextManager[Span]:
        if kind is SpanKind.CLIENT:
            return trace.use_span(INVALID_SPAN)
        kwargs["kind"] = kind
        return self._tracer.start_as_current_span(name, *args, **kwargs)
