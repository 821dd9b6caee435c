"""A service whose agents do what a test tells them, and a process of it that can be killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from orchestrator.domain.agent import AgentSpec, Asking
from orchestrator.domain.result import Usage
from orchestrator.domain.task import Task
from orchestrator.engine.clock import Clock
from orchestrator.engine.desk import Desk
from orchestrator.engine.live import LiveRun, RunChild
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Listener, Record
from orchestrator.engine.service import Service
from orchestrator.engine.sessions.memory import MemoryText
from orchestrator.engine.stage import Stage
from orchestrator.engine.tasks.lost import nothing_kept
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.engine.tasks.watch import Watched
from orchestrator.plan import Place, usual_way
from orchestrator.runners.signs import Ready, TurnEnded
from orchestrator.store.runs import Store

AGENT = AgentSpec(name="worker", description="Works.", prompt="You work.")


class Listening:
    """A conversation that remembers what the agent was told."""

    in_turn = True
    last_text = ""
    ready = Ready()
    denied: tuple[str, ...] = ()
    failed_servers: tuple[str, ...] = ()
    announces = False

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self.heard: list[str] = []

    def bind(self, *_: object) -> None:
        self.at_work = anyio.Event()
        self.at_work.set()

    async def interrupt(self) -> None:
        pass

    async def say(self, text: str, *, awaited: bool = True) -> None:
        self.heard.append(text)
        # the turn that was interrupted has ended
        self._live.is_interim(TurnEnded(reason="ok", interrupted=True))


class ScriptedService(Service):
    """Accepts and ends tasks as the real one does; in between, its agents are the test's."""

    def __init__(self, store: Store, alive: Callable[[str], bool]) -> None:
        nothing = cast("Any", None)
        kept = SimpleNamespace(recall=nothing_kept)
        keeps_none = cast("Any", SimpleNamespace(kept=kept, uploads=None))
        super().__init__(
            agents=nothing,
            store=store,
            staging=nothing,
            sessions=nothing,
            copies=keeps_none,
            alive=alive,
        )
        self.answer_seconds: dict[str, float] = {}
        """By prompt."""
        self.live: dict[str, LiveRun] = {}
        self.heard: dict[str, Listening] = {}
        self._groups: dict[str, TaskGroup] = {}
        self._over: dict[str, anyio.Event] = defaultdict(anyio.Event)

    async def accept(
        self,
        task: Task,
        *listeners: Listener,
        run_child: RunChild | None = None,
    ) -> LiveRun:
        prepared = Prepared(
            *(AGENT, task, Place(image="none"), {}, {}, MemoryText(), usual_way(AGENT))
        )
        record, clock = Record(task.run_id, self.store, listeners), Clock(600)
        seconds = self.answer_seconds.get(task.prompt, 600.0)
        asking = Asking(whom="parent", answer_seconds=seconds, approval_seconds=seconds)
        desk = Desk(task.run_id, self.store, self.exchanges, record, clock, asking, self.news)
        await self.store.add_run(task)
        record.note("queued", "for a test")
        watched = Watched((), prepared.task)
        return LiveRun(prepared, record, clock, desk, run_child or self.run, watched)

    async def _run_when_free(self, live: LiveRun, held: AsyncExitStack) -> None:
        await self.store.set_status(live.run_id, "running")
        heard = Listening(live)
        model = SimpleNamespace(bill=SimpleNamespace(begun=True, usage=Usage(), told=lambda: None))
        reach = SimpleNamespace(model=model, denied_hosts=())
        self.heard[live.run_id] = heard
        self.live[live.run_id] = live
        stage = Stage(cast("Any", None), cast("Any", heard), cast("Any", reach))
        with live.clock.running(), live.on_stage(stage):
            async with anyio.create_task_group() as tasks:
                self._groups[live.run_id] = tasks
                await self._over[live.run_id].wait()
                tasks.cancel_scope.cancel()

    def do(self, run_id: str, deed: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have the agent of a run do something, beside whatever else it does."""
        self._groups[run_id].start_soon(deed)

    def complete(self, run_id: str, result: str) -> None:
        self.live[run_id].complete(result)
        self._over[run_id].set()


class Process:
    """An orchestrator process, as far as the store can tell."""

    def __init__(self, folder: Path, owner: str, living: set[str]) -> None:
        self.owner = owner
        self._living = living
        living.add(owner)
        self.store = Store(folder / "runs.sqlite", owner)
        self.service = ScriptedService(self.store, living.__contains__)
        self.tasks = Tasks(self.service)

    async def start(self) -> None:
        await self.tasks.__aenter__()

    async def stop(self) -> None:
        await self.tasks.__aexit__(None, None, None)
        self._living.discard(self.owner)
        self.store.close()

    async def kill(self) -> None:
        """From this moment on, nothing that it does reaches the store."""
        async with self.store.database._limiter:  # a thread that is at it finishes what it does
            self.store.database._db.close()
        self._living.discard(self.owner)
        await self.tasks.__aexit__(None, None, None)


def kinds(events: Sequence[Any], kind: str) -> list[Any]:
    return [event for event in events if event.kind == kind]
