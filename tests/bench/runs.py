"""A whole run, as a caller sees it, against `docker run` of the same CLI; and a cold server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from anyio.abc import SocketAttribute, SocketStream
from mcp import Client, StdioServerParameters
from pydantic import SecretStr

from orchestrator.app import open_orchestrator
from orchestrator.domain.container import MODEL_URL
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.model.scripted import Script
from orchestrator.plan import Plan
from orchestrator.runners.claude.input import user_message
from orchestrator.settings import Settings, read_settings
from orchestrator.surfaces.mcp.server import build_server
from tests.bench.row import Row, Target, ratio_at_most
from tests.bench.stage import COMMAND_SECONDS, Stage, median_ms
from tests.gateway.model.scripted_server import ScriptedServer

AGENT = "---\nname: bench\ndescription: For a measurement.\n---\n"
ANSWER = "done"
PROMPT = "Say it."

ANEW = "docker run --rm, claude"
ON_HOST = "docker run --rm --network host, claude"


@dataclass
class Model:
    """A model on this machine's loopback that notes when it was first asked."""

    script: Script
    url: str = ""
    _asked: float | None = None
    _server: ScriptedServer = field(init=False)

    def __post_init__(self) -> None:
        self._server = ScriptedServer(self.script)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        if self._asked is None and request.method == "POST":
            self._asked = time.perf_counter()
        return await self._server.answer(request)

    def first_asked(self) -> float:
        """When, since this was last looked at."""
        asked, self._asked = self._asked, None
        assert asked is not None, "the model was not asked"
        return asked


class Times(NamedTuple):
    """Seconds since the call."""

    asked: float
    done: float


@asynccontextmanager
async def open_model() -> AsyncIterator[Model]:
    model = Model(Script.model_validate({"steps": [{"text": ANSWER, "repeat": True}]}))
    async with serve_on_loopback(model.answer) as model.url:
        yield model


async def runs(stage: Stage) -> tuple[Row, ...]:
    """`run_subagent` through an MCP client in this process; both sides talk to the same model."""
    taken: dict[str, list[Times]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as folder:
        async with open_model() as model:
            settings = bench_settings(Path(folder), stage.image, model.url)
            async with open_orchestrator(settings, {}) as service, Tasks(service) as tasks:
                plan = await planned(service, PROMPT)
                server, _ = build_server(service, tasks, lambda: "main", settings)
                async with Client(server) as client, on_bridge(stage, model.url) as bridged:
                    bridge = docker_run(stage, Path(folder), plan, "bridge", bridged)
                    host = docker_run(stage, Path(folder), plan, "host", model.url)
                    for round_number in range(1 + stage.times(20, 6)):
                        measured = {
                            "ours": await _ours(client, model),
                            "bridge": await theirs(bridge, model),
                            "host": await theirs(host, model),
                        }
                        if round_number:  # the first one only warms up
                            for name, times in measured.items():
                                taken[name].append(times)
    ours = taken["ours"]
    return (
        call_row("run_subagent, cold", "asked", ours, taken["bridge"], target=ratio_at_most(1.1)),
        call_row("run_subagent, cold", "asked", ours, taken["host"], ON_HOST),
        call_row("run_subagent, cold", "done", ours, taken["bridge"]),
    )


def call_row(
    what: str,
    until: Literal["asked", "done"],
    ours: list[Times],
    others: list[Times],
    against: str = ANEW,
    target: Target | None = None,
) -> Row:
    """A call, to its first request or to its answer, against another way to have the same."""
    words = {"asked": "to the first model request", "done": "to the answer"}
    return Row(
        name=f"{what}, {words[until]}",
        against=against,
        unit="ms",
        ours=median_ms([getattr(times, until) for times in ours]),
        theirs=median_ms([getattr(times, until) for times in others]),
        target=target,
    )


async def server_start(stage: Stage) -> tuple[Row, ...]:
    """From nothing to an answered `initialize`, as an MCP client starts us."""
    taken: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as folder:
        environ = {
            **os.environ,
            "ORCHESTRATOR_STATE_DIR": folder,
            "ORCHESTRATOR_AGENTS_DIR": folder,
        }
        command = str(Path(sys.executable).with_name("orchestrator"))
        for _ in range(stage.times(7, 3)):
            taken["import"].append(await stage.seconds([sys.executable, "-c", "import mcp"]))
            server = StdioServerParameters(command=command, args=["serve"], env=environ)
            began = time.perf_counter()
            async with Client(server, mode="legacy"):
                taken["initialize"].append(time.perf_counter() - began)
    return (
        Row(
            name="server start to answered initialize",
            against="python -c 'import mcp'",
            unit="ms",
            ours=median_ms(taken["initialize"]),
            theirs=median_ms(taken["import"]),
        ),
    )


async def planned(service: Service, prompt: str) -> Plan:
    """What a run of the bench's agent launches."""
    agent = service.agents.current().agent("bench")
    task = Task(agent="bench", prompt=prompt)
    return (await service._staging.planner.prepare(agent, task, really=False)).plan


def bench_settings(folder: Path, image: str, url: str, agent_text: str = AGENT) -> Settings:
    """Of an orchestrator with one agent and a state of its own, whose model is at this URL."""
    agent = folder / "agents" / "bench"
    agent.mkdir(parents=True)
    (agent / "agent.md").write_text(agent_text)
    update = {
        "state_dir": folder / "state",
        "agents_dir": folder / "agents",
        "trusted": (folder,),
        "agent_image": image,
        "anthropic_base_url": url,
        "anthropic_api_key": SecretStr("sk-for-the-loopback-only"),
        "scripted": False,
    }
    return read_settings().model_copy(update=update)


async def _ours(client: Client, model: Model) -> Times:
    began = time.perf_counter()
    result = await client.call_tool("run_subagent", {"agent_name": "bench", "prompt": PROMPT})
    done = time.perf_counter()
    assert (result.structured_content or {}).get("result") == ANSWER, result
    return Times(model.first_asked() - began, done - began)


async def theirs(argv: list[str], model: Model) -> Times:
    run = partial(
        subprocess.run,
        argv,
        input=user_message(PROMPT),
        stdout=subprocess.PIPE,
        check=True,
        timeout=COMMAND_SECONDS,
    )
    began = time.perf_counter()
    finished = await anyio.to_thread.run_sync(run)
    done = time.perf_counter()
    last = json.loads(finished.stdout.splitlines()[-1])
    assert last["result"] == ANSWER, last
    return Times(model.first_asked() - began, done - began)


def docker_run(stage: Stage, folder: Path, plan: Plan, network: str, url: str) -> list[str]:
    """What a user would type to run the same CLI in the same image, with the key inside."""
    launch = plan.launch
    command = [stage.docker, "run", "--rm", "-i", "--workdir", launch.cwd]
    if network != "bridge":
        command += ["--network", network]
    for number, file in enumerate(launch.files):
        path = folder / f"file-{number}"
        path.write_bytes(file.content)
        path.chmod(0o644)
        command += ["--volume", f"{path}:{file.path}:ro"]
    for key, value in launch.env.items():
        command += ["--env", f"{key}={value.replace(MODEL_URL, url)}"]
    return [*command, stage.image, *launch.argv]


@asynccontextmanager
async def on_bridge(stage: Stage, url: str) -> AsyncIterator[str]:
    """The URL under which a container on the engine's default network reaches the model."""
    network = await stage.runtime.engine.call(stage.runtime.engine.api.inspect_network, "bridge")
    config = network["IPAM"]["Config"][0]  # an engine that was just installed names no gateway
    gateway = config.get("Gateway") or str(next(ip_network(config["Subnet"]).hosts()))
    port = urlsplit(url).port
    assert port is not None

    async def relay(near: SocketStream) -> None:
        far = await anyio.connect_tcp("127.0.0.1", port)
        async with near, far, anyio.create_task_group() as tasks:
            tasks.start_soon(_copy, near, far)
            await _copy(far, near)
            tasks.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host=gateway)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, relay)
        yield f"http://{gateway}:{listener.extra(SocketAttribute.local_port)}"
        tasks.cancel_scope.cancel()


async def _copy(source: SocketStream, target: SocketStream) -> None:
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for data in source:
            await target.send(data)
        await target.send_eof()
