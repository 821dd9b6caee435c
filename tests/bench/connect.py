"""`orchestrator connect` against `orchestrator serve`: until it answers, and for each call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters

from tests.bench.row import Row, ratio_at_most
from tests.bench.stage import Stage, median_ms

WARM_AGENT = (
    "---\nname: bench\ndescription: For a measurement.\nwarm: 1\nworkspace: copy\n---\nDo.\n"
)
BENCH_SCRIPT = "each_task: true\nsteps:\n  - text: done\n"

BENCH_TOKEN = "a-token-for-the-loopback"

SPARE_SECONDS = 3.0
"""For a spare to be there again, and paused or not, before the next call."""

SMALL_CALLS = 20

WORKSPACE_FILES = 100


async def connect(stage: Stage) -> tuple[Row, ...]:
    """Both have spares, and take turns."""
    taken: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as name:
        folder = Path(name)
        local = _server(folder / "here", stage.image)
        async with _elsewhere(_server(folder / "there", stage.image)) as url:
            remote = _connecting(folder / "here", url)
            for _ in range(stage.times(9, 3)):
                taken["import"].append(await stage.seconds([sys.executable, "-c", "import mcp"]))
                for kind, parameters in {"connect": remote, "serve": local}.items():
                    began = time.perf_counter()
                    async with Client(parameters, mode="legacy"):
                        taken[f"start {kind}"].append(time.perf_counter() - began)
            async with Client(local) as here, Client(remote) as there:
                for kind, client in {"connect": there, "serve": here}.items():
                    for _ in range(stage.times(SMALL_CALLS, 5)):
                        taken[f"list {kind}"].append(await _call(client, "list_agents", {}))
                work = _tree(folder / "here" / "work")
                for round_number in range(1 + stage.times(12, 4)):
                    for kind, client in {"connect": there, "serve": here}.items():
                        for with_tree, more in {"": {}, " tree": {"workspace": str(work)}}.items():
                            await anyio.sleep(SPARE_SECONDS)
                            asked: dict[str, object] = {
                                "agent_name": "bench",
                                "prompt": "Say it.",
                                **more,
                            }
                            seconds = await _call(client, "run_subagent", asked)
                            if round_number:  # the first one only warms up
                                taken[f"run {kind}{with_tree}"].append(seconds)
    return tuple(_rows({name: median_ms(seconds) for name, seconds in taken.items()}))


def _rows(ms: dict[str, float]) -> list[Row]:
    start, tree = "connect, start to answered initialize", f"{WORKSPACE_FILES} unchanged files"
    names = {
        "list": "list_agents through connect",
        "run": "run_subagent, warm, through connect",
    }
    rows = [
        Row(
            name=start,
            against="orchestrator serve",
            unit="ms",
            ours=ms["start connect"],
            theirs=ms["start serve"],
            target=ratio_at_most(0.5),
        ),
        Row(
            name=start,
            against="python -c 'import mcp'",
            unit="ms",
            ours=ms["start connect"],
            theirs=ms["import"],
            target=ratio_at_most(0.6),
        ),
    ]
    rows += [
        Row(
            name=name,
            against="orchestrator serve",
            unit="ms",
            ours=ms[f"{kind} connect"],
            theirs=ms[f"{kind} serve"],
        )
        for kind, name in names.items()
    ]
    rows.append(
        Row(
            name=f"the same, with a workspace of {tree}",
            against="orchestrator serve",
            unit="ms",
            ours=ms["run connect tree"],
            theirs=ms["run serve tree"],
        )
    )
    return rows


async def _call(client: Client, tool: str, arguments: dict[str, object]) -> float:
    began = time.perf_counter()
    answer = await client.call_tool(tool, arguments)
    assert not getattr(answer, "is_error", True), answer
    return time.perf_counter() - began


def _server(folder: Path, image: str) -> StdioServerParameters:
    agent = folder / "agents" / "bench"
    agent.mkdir(parents=True)
    (agent / "agent.md").write_text(WARM_AGENT)
    (agent / "script.yaml").write_text(BENCH_SCRIPT)
    env = {
        **os.environ,
        "ORCHESTRATOR_STATE_DIR": str(folder / "state"),
        "ORCHESTRATOR_AGENTS_DIR": str(folder / "agents"),
        "ORCHESTRATOR_ALLOWED_ROOTS": str(folder),
        "ORCHESTRATOR_AGENT_IMAGE": image,
        "ORCHESTRATOR_SCRIPTED": "1",
    }
    return StdioServerParameters(command=_command(), args=["serve"], env=env)


def _connecting(folder: Path, url: str) -> StdioServerParameters:
    env = {
        **os.environ,
        "ORCHESTRATOR_STATE_DIR": str(folder / "connected"),
        "ORCHESTRATOR_ALLOWED_ROOTS": str(folder),
        "ORCHESTRATOR_TOKEN": BENCH_TOKEN,
    }
    return StdioServerParameters(command=_command(), args=["connect", url], env=env)


@asynccontextmanager
async def _elsewhere(server: StdioServerParameters) -> AsyncIterator[str]:
    """The same server in a process of its own, over HTTP."""
    env = {**(server.env or {}), "ORCHESTRATOR_HTTP_TOKENS": f"main={BENCH_TOKEN}"}
    with tempfile.NamedTemporaryFile() as stderr:
        async with await anyio.open_process(
            [_command(), "serve", "--http", "127.0.0.1:0"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        ) as process:
            said = anyio.Path(stderr.name)
            with anyio.fail_after(60):
                while not (found := re.search(r"listening on (\S+)/mcp", await said.read_text())):
                    await anyio.sleep(0.05)
            try:
                yield found[1]
            finally:
                process.terminate()


def _tree(root: Path) -> Path:
    root.mkdir()
    for number in range(WORKSPACE_FILES):
        (root / f"file{number}.txt").write_text(f"{number}\n" * 200)
    return root


def _command() -> str:
    return str(Path(sys.executable).with_name("orchestrator"))
