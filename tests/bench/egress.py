"""What the way out costs: the same program, in a container through egress, and on the host."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread

from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import Network
from orchestrator.domain.container import EGRESS_PORT, EGRESS_URL, Launch
from orchestrator.gateway.egress.access import EgressAccess
from orchestrator.gateway.egress.dial import Dialer
from tests.bench.row import Row, Target
from tests.bench.stage import COMMAND_SECONDS, Stage

MEGABYTE = 1_000_000

HOST = "bench.example"

SERVER = """
import socketserver

class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            data = self.request.recv(65536)
            if not data:
                return
            head += data
        left = int(head.split()[1].rpartition(b"/")[2])
        said = b"HTTP/1.1 200 OK\\r\\nconnection: close\\r\\ncontent-length: %d\\r\\n\\r\\n" % left
        if left < 65536:
            self.request.sendall(said + bytes(left))
            return
        self.request.sendall(said)
        piece = bytes(1 << 20)
        while left:
            self.request.sendall(piece[:left])
            left -= min(left, len(piece))

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

with Server(("127.0.0.1", 0), Answer) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""

CLIENT = """
import http.client, json, sys, time

host, port, target, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
times = []
for _ in range(count):
    began = time.perf_counter()
    connection = http.client.HTTPConnection(host, port)
    connection.request("GET", target)
    answer = connection.getresponse()
    assert answer.status == 200 and len(answer.read()) == 100
    connection.close()
    times.append(time.perf_counter() - began)
print(json.dumps(times))
"""


async def egress(stage: Stage) -> tuple[Row, ...]:
    """Small requests one after the other, and one large answer; with and without us between."""
    async with _served() as port, _opened(stage, port) as container:
        added, ours, theirs = await _latency(stage, container, port)
        return (
            Row(
                name="HTTP request through egress",
                against="on the host",
                unit="ms",
                ours=ours,
                theirs=theirs,
            ),
            Row(
                name="what egress adds to a request",
                unit="ms",
                ours=added,
                target=Target(of="ours", how="<=", value=3),
            ),
            await _throughput(stage, container, port),
        )


async def _latency(stage: Stage, container: Container, port: int) -> tuple[float, float, float]:
    times: dict[str, list[float]] = defaultdict(list)
    count = str(stage.times(100, 50))
    script = ("-c", CLIENT)
    near = ("127.0.0.1", str(EGRESS_PORT), f"http://{HOST}:{port}/100", count)
    far = ("127.0.0.1", str(port), "/100", count)
    for _ in range(stage.times(5, 2)):
        done = await container.run(Launch(argv=("python3", *script, *near)))
        assert done.code == 0, done.stderr
        times["ours"] += json.loads(done.stdout)
        times["theirs"] += json.loads(await _output((sys.executable, *script, *far)))
    ours, theirs = (statistics.median(times[who]) * 1000 for who in ("ours", "theirs"))
    return ours - theirs, ours, theirs


async def _throughput(stage: Stage, container: Container, port: int) -> Row:
    rates: dict[str, list[float]] = defaultdict(list)
    size = stage.times(200, 50) * MEGABYTE
    curl = ("curl", "-sS", "-o", "/dev/null", "-w", "%{speed_download} %{size_download}")
    near = (*curl, "--proxy", EGRESS_URL, f"http://{HOST}:{port}/{size}")
    for _ in range(stage.times(5, 3)):
        done = await container.run(Launch(argv=near))
        assert done.code == 0, done.stderr
        rates["ours"].append(_rate(done.stdout.decode(), size))
        said = await _output((*curl, "--noproxy", "*", f"http://127.0.0.1:{port}/{size}"))
        rates["theirs"].append(_rate(said, size))
    return Row(
        name="download through egress",
        against="curl on the host",
        unit="MB/s",
        ours=statistics.median(rates["ours"]),
        theirs=statistics.median(rates["theirs"]),
    )


def _rate(said: str, size: int) -> float:
    speed, came = said.split()
    assert int(came) == size, f"{came} bytes came of {size}"
    return float(speed) / MEGABYTE


@asynccontextmanager
async def _opened(stage: Stage, port: int) -> AsyncIterator[Container]:
    """A container whose way out leads to the server."""

    async def resolve(host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    network = Network(mode="allow", allow_private=(f"{HOST}:{port}",), max_mb=64 * 1024)
    with EgressAccess(network, Dialer(resolve)) as access:
        async with stage.runtime.open(stage.spec) as container:
            await container.listen(EGRESS_PORT, "egress", access.service)
            yield container


@asynccontextmanager
async def _served() -> AsyncIterator[int]:
    """The port of a server in a process of its own: ours has enough to do."""
    argv = (sys.executable, "-c", SERVER)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as server:  # noqa: ASYNC220 once, before anything is measured
        try:
            assert server.stdout is not None
            yield int(await anyio.to_thread.run_sync(server.stdout.readline))
        finally:
            server.kill()


async def _output(argv: tuple[str, ...]) -> str:
    run = partial(
        subprocess.run,
        argv,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=COMMAND_SECONDS,
        text=True,
    )
    return str((await anyio.to_thread.run_sync(run)).stdout)
