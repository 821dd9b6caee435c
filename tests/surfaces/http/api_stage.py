"""The API on stage: on a port of the loopback, in this process, with agents that do what a test
tells them, and a store that is real.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import uvicorn

from orchestrator.access import check_caller
from orchestrator.app import open_copies
from orchestrator.domain.task import Task
from orchestrator.engine.live import LiveRun, RunChild
from orchestrator.engine.record import Listener
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.tasks.event_feed import EventFeed
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.engine.workspaces.sent_workspaces import SentWorkspaces
from orchestrator.settings import Settings, read_settings
from orchestrator.state import open_agents
from orchestrator.store.page_logins import PageLogins
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionRows
from orchestrator.surfaces.held_connections import HeldConnection
from orchestrator.surfaces.http.api import Api, Behind
from orchestrator.surfaces.mcp.transports.http import allowed_hosts, bound
from tests.engine.scripted_runs import ScriptedService

PATIENCE = 60

TOKENS = {"main": "a-token-for-main-0123", "other": "a-token-for-other-4567"}


class ApiService(ScriptedService):
    """Knows agents, and who may run them."""

    def __init__(self, store: Store, settings: Settings, alive: Callable[[str], bool]) -> None:
        super().__init__(store, alive)
        self.agents = open_agents(settings)
        self.project = settings.project
        self.copies = open_copies(settings)
        self.sent = SentWorkspaces(self.copies, store, settings.project)
        self.sessions = Sessions(cast("Any", None), SessionRows(store, "a test"))

    async def accept(
        self, task: Task, *listeners: Listener, run_child: RunChild | None = None
    ) -> LiveRun:
        check_caller(self._agent(task), task.caller)
        placed = await self.sent.placed(task.model_copy(update={"project": self.project}))
        return await super().accept(placed, *listeners, run_child=run_child)


@dataclass
class Reader:
    """A reader of server-sent events."""

    lines: AsyncIterator[str]
    last_id: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next frame: its name and its data. Comments are passed over."""
        name, data, number = "", "", ""
        with anyio.fail_after(PATIENCE):
            async for line in self.lines:
                if not line and name:
                    said = json.loads(data)
                    if number:
                        self.last_id = number
                        assert said["id"] == int(number)
                        self.seen.append(said)
                    return name, said
                key, _, value = line.partition(": ")
                name = value if key == "event" else name
                data = value if key == "data" else data
                number = value if key == "id" else number
        raise EOFError

    async def until(self, name: str) -> dict[str, Any]:
        while True:
            found, said = await self.next()
            if found == name:
                return said


class ApiStage:
    """A server, and clients of it."""

    def __init__(
        self, folder: Path, tokens: dict[str, str] | None = None, template: str = ""
    ) -> None:
        self.folder = folder
        self.agents = folder / "project" / "agents"
        self.agents.mkdir(parents=True, exist_ok=True)
        told = TOKENS if tokens is None else tokens
        env = {
            "ORCHESTRATOR_AGENTS_DIR": str(self.agents),
            "ORCHESTRATOR_STATE_DIR": str(folder / "state"),
            "HOME": str(folder),
        }
        if template:
            env["ORCHESTRATOR_DYNAMIC_TEMPLATE"] = template
        if told:
            pairs = ",".join(f"{caller}={token}" for caller, token in told.items())
            env["ORCHESTRATOR_HTTP_TOKENS"] = pairs
        self.settings = read_settings(env)
        (folder / "state").mkdir(exist_ok=True)
        self.store = Store(folder / "state" / "runs.sqlite", "a test")
        self.service = ApiService(self.store, self.settings, lambda _: True)
        self.tasks = Tasks(self.service)
        self.strangers: list[tuple[str, str]] = []
        self.url = ""
        self.api: Api
        for caller in ("main", "other"):
            self.add_agent(f"for-{caller}", allowed_callers=[caller])

    def add_agent(self, name: str, **fields: object) -> None:
        front = {"name": name, "description": f"What {name} does", **fields}
        lines = [f"{key}: {json.dumps(value)}" for key, value in front.items()]
        (self.agents / name).mkdir(exist_ok=True)
        text = "\n".join(("---", *lines, "---", "Do it.", ""))
        (self.agents / name / "agent.md").write_text(text)

    @asynccontextmanager
    async def client(
        self, caller: str | None = "main", **headers: str
    ) -> AsyncIterator[httpx.AsyncClient]:
        known = {"Authorization": f"Bearer {TOKENS[caller]}"} if caller else {}
        async with httpx.AsyncClient(
            base_url=self.url, headers=known | headers, timeout=PATIENCE
        ) as client:
            yield client

    @asynccontextmanager
    async def person(self) -> AsyncIterator[httpx.AsyncClient]:
        """The operator at the page."""
        code = await self.logins.new_code()
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE) as client:
            answer = await client.post("/v1/login", json={"code": code})
            assert answer.status_code == 200, answer.text
            client.headers["X-Orchestrator"] = answer.json()["key"]
            yield client

    @property
    def feed(self) -> EventFeed:
        parts = self.api._parts
        assert parts is not None
        return parts.feed

    @property
    def logins(self) -> PageLogins:
        return PageLogins(self.store.database, self.service.project)

    @asynccontextmanager
    async def reading(
        self, client: httpx.AsyncClient, path: str, last_id: str = ""
    ) -> AsyncIterator[Reader]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        async with client.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield Reader(answer.aiter_lines())

    async def begin(self, client: httpx.AsyncClient, agent: str = "for-main", **more: Any) -> str:
        """Begin a run, and come back when its agent is at work."""
        answer = await client.post("/v1/runs", json={"agent": agent, "prompt": "go"} | more)
        assert answer.status_code == 202, answer.text
        run_id: str = answer.json()["run_id"]
        with anyio.fail_after(PATIENCE):
            while run_id not in self.service.live:
                await anyio.sleep(0.005)
        return run_id

    async def note(self, run_id: str, text: str) -> None:
        """Something happens in a run, and is kept."""
        record = self.service.live[run_id].record
        record.note("text", text)
        await record.flush()

    async def ended(self, run_id: str, result: str = "done") -> None:
        self.service.complete(run_id, result)
        with anyio.fail_after(PATIENCE):
            await self.tasks.book.until_ended(run_id, None, seconds=PATIENCE)


@asynccontextmanager
async def on_api_stage(
    folder: Path, tokens: dict[str, str] | None = None, template: str = ""
) -> AsyncIterator[ApiStage]:
    stage = ApiStage(folder, tokens, template)

    async def at_once() -> None:
        pass

    async def note_stranger(where: str, why: str) -> None:
        stage.strangers.append((where, why))

    behind = Behind(stage.settings, stage.service, stage.tasks, at_once, note_stranger)
    try:
        async with stage.tasks, serving_api(behind) as (stage.api, stage.url):
            yield stage
    finally:
        stage.store.close()


@asynccontextmanager
async def serving_api(behind: Behind) -> AsyncIterator[tuple[Api, str]]:
    """The API on a port of the loopback, and its address."""
    with bound("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        api = Api(behind, allowed_hosts(behind.settings, url))
        config = uvicorn.Config(
            api,
            http=HeldConnection,
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        web = uvicorn.Server(config)
        web.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # as the real one
        over = anyio.Event()

        async def serve() -> None:
            await web.serve([listener])
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(api.serve_events)
            group.start_soon(serve)
            with anyio.fail_after(PATIENCE):
                while not web.started:
                    await anyio.sleep(0.005)
            yield api, url
            api.leave()
            web.should_exit = True
            with anyio.fail_after(PATIENCE):  # or the loop goes on watching its socket's number
                await over.wait()
            group.cancel_scope.cancel()
