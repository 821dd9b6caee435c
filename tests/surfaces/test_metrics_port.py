"""The port for metrics: bound before anything is served, and for nothing else."""

from __future__ import annotations

import socket

import anyio
import httpx
import pytest

from orchestrator.errors import OperatorError
from orchestrator.surfaces.metrics_port import metrics_listener, serve_metrics
from orchestrator.telemetry.metrics import CONTENT_TYPE, Metrics

pytestmark = pytest.mark.anyio

PATIENCE = 60


@pytest.mark.parametrize("address", ["9464", ":9464", "127.0.0.1", "127.0.0.1:x", "[::1]:70000"])
def test_what_is_no_address_is_told(address: str) -> None:
    with pytest.raises(OperatorError, match="is not HOST:PORT, such as"), metrics_listener(address):
        pass


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(OperatorError, match=r"cannot be listened on: .*; choose another"),
            metrics_listener(address),
        ):
            pass


def test_no_address_is_no_port(capsys: pytest.CaptureFixture[str]) -> None:
    with metrics_listener("") as listener:
        assert listener is None
    assert capsys.readouterr() == ("", "")


async def test_it_answers_one_path_and_ends_with_the_server(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with anyio.fail_after(PATIENCE), metrics_listener("127.0.0.1:0") as listener:
        assert listener is not None
        url = capsys.readouterr().err.removeprefix("metrics at ").strip()
        async with anyio.create_task_group() as tasks, httpx.AsyncClient() as web:
            tasks.start_soon(serve_metrics, listener, Metrics())
            told = await web.get(url)
            assert (told.status_code, told.headers["content-type"]) == (200, CONTENT_TYPE)
            assert "orchestrator_build_info{" in told.text
            assert (await web.get(url.replace("/metrics", "/"))).status_code == 404
            assert (await web.post(url)).status_code == 405
            tasks.cancel_scope.cancel()
