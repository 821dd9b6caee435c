"""The HTTP API for longer: servers killed under their readers, schemathesis for minutes, and a
client that was generated from the description. SOAK_KILLS, SOAK_SEED, SOAK_ATTACK_SECONDS.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import venv
from collections import Counter
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from orchestrator.containers.owner import Owner
from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.settings import read_settings
from orchestrator.store.runs import Store
from tests.surfaces.http.api_stage import TOKENS, on_api_stage
from tests.surfaces.http.attacked import attack
from tests.surfaces.http.described import SHIPPED
from tests.surfaces.mcp.mcp_stage import COMMAND

KILLS = int(os.environ.get("SOAK_KILLS", "100"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
ATTACK_SECONDS = float(os.environ.get("SOAK_ATTACK_SECONDS", "600"))

READERS = 20
EVENTS_PER_SECOND = 100
LIVES_SECONDS = 1.5
"""Before a server is killed, at most."""

CLIENT_GENERATOR = "openapi-python-client==0.29.1"
"""In an environment of its own: it wants another typer than we do."""

USE_CLIENT = """
import sys
from subagent_orchestrator_client import AuthenticatedClient, Client
from subagent_orchestrator_client.api.runs import get_runs, get_runs_run_id, post_runs
from subagent_orchestrator_client.api.health import get_health
from subagent_orchestrator_client.models import NewRun
url, token = sys.argv[1:]
assert get_health.sync(client=Client(base_url=url)).status == "ok"
client = AuthenticatedClient(base_url=url, token=token)
run = post_runs.sync(client=client, body=NewRun(agent="for-main", prompt="go"))
assert run.status in ("pending", "running"), run
assert get_runs_run_id.sync(run.run_id, client=client).agent == "for-main"
assert run.run_id in [row.run_id for row in get_runs.sync(client=client).items]
refused = post_runs.sync(client=client, body=NewRun(agent="nobody", prompt="go"))
assert (refused.status, refused.code) == (404, "agent_not_found"), refused
print("fine")
"""

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(0)]


class KeenReader:
    """Reads a stream of events for ever, coming again whenever it breaks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ids: list[int] = []
        self.ends: Counter[str] = Counter()

    async def read(self) -> None:
        while True:
            with suppress(httpx.HTTPError):
                await self._read_once()
            await anyio.sleep(0.05)

    async def _read_once(self) -> None:
        headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {TOKENS['main']}"}
        if self.ids:
            headers["Last-Event-ID"] = str(self.ids[-1])
        path = "/v1/events" + ("" if self.ids else "?after=0")
        async with (
            httpx.AsyncClient(timeout=httpx.Timeout(30)) as client,
            client.stream("GET", self._url + path, headers=headers) as answer,
        ):
            number = name = ""
            async for line in answer.aiter_lines():
                key, _, value = line.partition(": ")
                number, name = (value, name) if key == "id" else (number, name)
                name = value if key == "event" else name
                if not line and number:  # a frame is whole when its empty line has come
                    self.ids.append(int(number))
                    self.ends[name] += 1
                    number = ""


async def test_readers_of_a_server_that_is_killed_have_every_event_once_and_in_order(
    tmp_path: Path,
) -> None:
    print(f"\n{KILLS} kills, {READERS} readers, seed {SEED}", flush=True)
    chance = random.Random(SEED)
    (tmp_path / "agents").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "ORCHESTRATOR_AGENTS_DIR": str(tmp_path / "agents"),
        "ORCHESTRATOR_STATE_DIR": str(tmp_path / "state"),
        "ORCHESTRATOR_SCRIPTED": "1",
        "ORCHESTRATOR_HTTP_TOKENS": f"main={TOKENS['main']}",
    }
    settings = read_settings(env)
    url = f"http://127.0.0.1:{port}"
    readers = [KeenReader(url) for _ in range(READERS)]
    (tmp_path / "state").mkdir(mode=0o700)
    with Owner(settings.state_dir) as owner:
        store = Store(settings.state_dir / "runs.sqlite", owner.id)
        task = Task(agent="a", prompt="p", caller="main", project=settings.project)
        await store.add_run(task)

        async def write() -> None:
            seq = 0
            while True:
                seq += 1
                event = Event(run_id=task.run_id, seq=seq, at=1.0, kind="text", text=f"{seq}")
                await store.add_events([event])
                await anyio.sleep(1 / EVENTS_PER_SECOND)

        try:
            async with anyio.create_task_group() as group:
                for reader in readers:
                    group.start_soon(reader.read)
                async with anyio.create_task_group() as writing:
                    writing.start_soon(write)
                    for kill in range(1, KILLS + 1):
                        await _serve(port, env, tmp_path, chance.uniform(0, LIVES_SECONDS))
                        if kill % 10 == 0:
                            seen = [len(reader.ids) for reader in readers]
                            print(f"{kill}: {min(seen)} to {max(seen)} events", flush=True)
                    writing.cancel_scope.cancel()
                await _serve(port, env, tmp_path, 10.0)
                group.cancel_scope.cancel()
            found = await store.numbered_events.of_run(task.run_id, 0, 10**9)
        finally:
            store.close()
    numbers = [event.number for event in found]
    print(f"{len(numbers)} events", flush=True)
    for reader in readers:
        assert reader.ids == numbers
    assert len(numbers) > KILLS


async def _serve(port: int, env: dict[str, str], folder: Path, seconds: float) -> None:
    """A server that is killed so long after it answers."""
    with (folder / "stderr").open("ab") as stderr:
        argv = [COMMAND, "serve", "--http", f"127.0.0.1:{port}"]
        async with await anyio.open_process(argv, env=env, stderr=stderr, stdout=stderr) as process:
            try:
                with anyio.fail_after(60):
                    async with httpx.AsyncClient() as client:
                        while True:
                            with suppress(httpx.HTTPError):
                                await client.get(f"http://127.0.0.1:{port}/v1/health")
                                break
                            assert process.returncode is None, (folder / "stderr").read_text()
                            await anyio.sleep(0.05)
                await anyio.sleep(seconds)
            finally:
                process.send_signal(signal.SIGKILL)
                with anyio.CancelScope(shield=True):
                    await process.wait()


async def test_nothing_that_schemathesis_sends_leads_outside_of_the_description(
    tmp_path: Path,
) -> None:
    async with on_api_stage(tmp_path) as stage:
        async with stage.client() as main:
            runs = [await stage.begin(main), await stage.begin(main)]
            await stage.ended(runs[0])
        headers = {"Authorization": f"Bearer {TOKENS['main']}"}
        known = {"run_id": runs, "name": ["for-main"]}

        def attacked() -> int:
            return attack(stage.url, headers, known, examples=25, seconds=ATTACK_SECONDS)

        sent = await anyio.to_thread.run_sync(attacked)
        print(f"\n{sent} requests", flush=True)


async def test_a_client_that_is_generated_from_the_description_works(tmp_path: Path) -> None:
    place = tmp_path / "generator"
    await anyio.to_thread.run_sync(lambda: venv.create(place, with_pip=True))
    python = str(place / "bin" / "python")
    await _run(python, "-m", "pip", "install", "-q", CLIENT_GENERATOR, "ruff")
    generator = str(place / "bin" / "openapi-python-client")
    made = tmp_path / "made"
    await _run(generator, "generate", "--path", str(SHIPPED), "--output-path", str(made))
    async with on_api_stage(tmp_path / "stage") as stage:
        said = await _run(python, "-c", USE_CLIENT, stage.url, TOKENS["main"], cwd=made)
    assert said == "fine\n"


async def _run(*argv: str, cwd: Path | None = None) -> str:
    env = {**os.environ, "PATH": f"{Path(argv[0]).parent}:{os.environ['PATH']}"}
    try:
        done = await anyio.run_process(list(argv), cwd=cwd, env=env)
    except subprocess.CalledProcessError as exc:
        print(exc.stdout.decode(), exc.stderr.decode(), file=sys.stderr)
        raise
    return done.stdout.decode()
