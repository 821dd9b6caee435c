"""Where spans go: nowhere unless they are asked for, and no run waits for it."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from pydantic import SecretStr

from orchestrator.domain.task import Task
from orchestrator.errors import OperatorError
from orchestrator.settings import Settings, read_settings
from orchestrator.telemetry import exporting
from orchestrator.telemetry.exporting import (
    check_exporter,
    flushed,
    otlp_exporter,
    sdk_provider,
)
from tests.telemetry.collector import collecting

pytestmark = pytest.mark.anyio

PATIENCE = 60


def settings_for(endpoint: str) -> Settings:
    found = read_settings({"HOME": "/nowhere", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, Path("/"))
    return found.model_copy(update={"otlp_headers": SecretStr("x-key=a%20b")})


QUIET = """
import sys, anyio
from orchestrator.app import open_watching
from orchestrator.settings import read_settings
from orchestrator.surfaces.mcp.transports import served, stdio, http
from orchestrator.surfaces.cli import main

async def look():
    async with open_watching(read_settings({"HOME": sys.argv[1]})) as watching:
        print(len(watching.watchers))

anyio.run(look)
print(*sorted(name for name in sys.modules
    if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "prometheus_client"))))
"""


def test_nothing_is_loaded_that_nobody_asked_for(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", QUIET, str(tmp_path)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said == "0\n\n"


def test_an_endpoint_without_the_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_for("http://127.0.0.1:4318")
    check_exporter(settings)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(OperatorError, match=r"install subagent-orchestrator\[otel\], or unset"):
        check_exporter(settings)


def test_an_endpoint_that_is_no_address_is_told() -> None:
    with pytest.raises(OperatorError, match=r"OTLP_ENDPOINT=127\.0\.0\.1:4317 is no address of a"):
        check_exporter(settings_for("127.0.0.1:4317"))


async def test_spans_come_with_the_operators_headers_before_the_process_ends() -> None:
    with collecting() as collector:
        provider = sdk_provider(otlp_exporter(settings_for(f"{collector.url}/")))
        with provider.get_tracer("test").start_as_current_span("last"):
            pass
        with anyio.fail_after(PATIENCE):
            assert await flushed(provider, PATIENCE)
    assert collector.named("last").resource["service.name"] == "subagent-orchestrator"
    assert collector.headers[0]["x-key"] == "a b"


async def test_a_collector_that_is_away_is_told_in_a_line_and_holds_up_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    provider = sdk_provider(otlp_exporter(settings_for(f"http://127.0.0.1:{port}")))
    tracer = provider.get_tracer("test")
    with caplog.at_level(logging.WARNING):
        for n in range(3000):  # more than wait for it at most
            tracer.start_span(f"span {n}").end()
        with anyio.fail_after(PATIENCE):
            assert await flushed(provider, PATIENCE)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert told
    assert not [record for record in told if record.exc_info], "a traceback would be a report"


class Stuck(SpanExporter):
    """An exporter that does not come back until it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.gate.wait(PATIENCE)
        return SpanExportResult.SUCCESS


async def test_spans_that_are_lost_at_the_end_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck()
    monkeypatch.setattr(exporting, "otlp_exporter", lambda _: stuck)
    monkeypatch.setattr(exporting, "LAST_SPANS_SECONDS", 0.05)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)  # it can be set once
    with anyio.fail_after(PATIENCE):
        async with exporting.open_tracing(settings_for("http://collector:1")) as tracing:
            tracing.begun(Task(agent="a", prompt="x")).refused("x")
    (told,) = caplog.messages
    assert told == "the last spans did not get to http://collector:1 within 0.05 s, and are lost"
    stuck.gate.set()


async def test_the_end_of_a_process_waits_for_the_last_spans_no_longer_than_it_may() -> None:
    stuck = Stuck()
    provider = sdk_provider(stuck)
    provider.get_tracer("test").start_span("last").end()
    with anyio.fail_after(PATIENCE):
        assert not await flushed(provider, 0.05)
    stuck.gate.set()


async def test_only_the_environment_says_where_traces_go(tmp_path: Path) -> None:
    (tmp_path / "orchestrator.yaml").write_text("otlp_endpoint: http://evil.example\n")
    with pytest.raises(OperatorError, match="otlp_endpoint is not read from a file"):
        read_settings({"HOME": str(tmp_path)}, tmp_path)
