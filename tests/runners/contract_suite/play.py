"""One session of a real CLI, in which one run after another shows what the CLI can.

A CLI takes seconds to start and milliseconds to answer, so one process serves for most of what is
to be seen. What the model says is told anew for each run; its API takes a credential, which has to
be seen by the API and by nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import SecretStr

from orchestrator.domain.container import WORKSPACE, Launch
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.live import LiveRun
from orchestrator.engine.service import Service
from orchestrator.engine.tasks.task_book import CANCEL_SECONDS, TaskView
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.gateway.model.credential import Credential, CredentialKind
from orchestrator.gateway.model.exchange import Road
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.scripted import Script, ScriptedUpstream
from orchestrator.gateway.model.service import ModelService
from orchestrator.gateway.model.upstream import ModelWay, UpstreamRequest, UpstreamResponse
from tests.engine.harness import Harness, Steps
from tests.runners.contract_suite.clis import ScriptedCli

PATIENCE = 280

CANARY = "sk-canary-7c41f09be2d85a63"
"""What the model APIs are paid with."""

_KINDS: dict[ProviderName, CredentialKind] = {
    "anthropic": "api_key",
    "openai": "openai_key",
    "google": "gemini_key",
}


class Playing:
    """An upstream that plays what it was last given, and remembers what it was sent."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.keys: list[bool] = []
        """Whether the credential came with each request, where it belongs."""
        self._upstream = ScriptedUpstream(_script([{"text": "-"}]))
        self._asked = anyio.Event()

    def play(self, steps: Steps) -> None:
        self.bodies.clear()
        self._upstream = ScriptedUpstream(_script(steps))

    async def until_asked(self, times: int) -> None:
        """Wait until the model has been asked so many times since it was given its steps."""
        while len(self.bodies) < times:
            await self._asked.wait()

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self.bodies.append(request.body.decode())
        self.keys.append(any(CANARY in value for _, value in request.headers))
        self._asked.set()
        self._asked = anyio.Event()
        async with self._upstream.send(request) as response:
            yield response

    @property
    def service(self) -> ModelService:
        """Ways to it for all providers."""
        return ways_to(dict.fromkeys(_KINDS, self))


def ways_to(models: Mapping[ProviderName, Playing]) -> ModelService:
    """Ways to the models of some providers, each paid for."""
    way = ModelWay("https://models.example", "KEY", "BASE_URL", "KEY")
    secret = SecretStr(CANARY)
    return ModelService(
        {
            name: Road(model, Credential(kind=_KINDS[name], secret=secret), way)
            for name, model in models.items()
        }
    )


def _script(steps: Steps) -> Script:
    return Script.model_validate({"steps": list(steps)})


@dataclass
class Play:
    """A CLI in its session, the model that it speaks to, and its caller."""

    cli: ScriptedCli
    harness: Harness
    service: Service
    tasks: Tasks
    model: Playing
    results: list[RunResult] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """Of the run that was begun last."""

    async def start(self, steps: Steps, prompt: str = "Do it.", **fields: Any) -> str:
        """Begin a run, in which the model says this."""
        self.model.play(steps)
        self.events.clear()
        task = Task.model_validate({"agent": "worker", "prompt": prompt, **fields})
        return await self.tasks.start(task, self.events.append, self.harness.events.append)

    async def end(self, run_id: str) -> RunResult:
        view = await self.tasks.book.until_ended(run_id, "main", seconds=PATIENCE)
        assert view.result is not None, view
        self.results.append(view.result)
        return view.result

    async def run(self, steps: Steps, prompt: str = "Do it.", **fields: Any) -> RunResult:
        return await self.end(await self.start(steps, prompt, **fields))

    async def until(self, run_id: str, so: Callable[[TaskView], object]) -> TaskView:
        """The run, as soon as it is so; it must not end before."""
        while not so(view := await self.tasks.book.view(run_id, "main")):
            assert view.result is None, view.result
            await anyio.sleep(0.02)
        return view

    async def show(self, cell: Callable[[Play], Awaitable[None]]) -> None:
        """One of the things to be seen; a run that it leaves behind is ended, for the next one."""
        try:
            await cell(self)
        finally:
            with anyio.move_on_after(CANCEL_SECONDS, shield=True):
                for run_id in tuple(self.tasks._held):
                    await self.tasks.cancel(run_id, "main")

    def live(self, run_id: str) -> LiveRun:
        return self.tasks._held[run_id]

    def pass_time(self, run_id: str, until: float) -> None:
        """Have so many seconds of a run's time be over, though they are not."""
        clock = self.live(run_id).clock
        clock._before += until - clock.spent
        clock._turn()

    async def inside(self, *argv: str) -> bytes:
        """What a program says that is run beside the CLI, as its user."""
        (held,) = self.harness.sessions._live.values()
        assert held.place is not None
        done = await held.place.container.run(Launch(argv=argv, cwd=WORKSPACE))
        return done.stdout

    async def until_runs(self, command: str, running: bool) -> None:
        look = ("sh", "-c", "for f in /proc/[0-9]*/cmdline; do echo; cat $f; done | tr '\\0' ' '")
        while (command in (await self.inside(*look)).decode().split("\n")) is not running:
            await anyio.sleep(0.05)

    async def files(self) -> set[str]:
        """In the workspace."""
        return set((await self.inside("ls")).decode().split())

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def texts(self, kind: str) -> Iterable[str]:
        return [event.text for event in self.events if event.kind == kind]


@asynccontextmanager
async def played(harness: Harness, cli: ScriptedCli, **fields: object) -> AsyncIterator[Play]:
    """A session of the agent that these fields make, removed afterwards."""
    model = Playing()
    harness.models = model.service
    given: dict[str, Any] = {**cli.agent, **fields}
    service = harness.service([{"text": "-"}], session=True, **given)
    with anyio.fail_after(PATIENCE):
        async with harness.sessions, harness.servers, Tasks(service) as tasks:
            yield Play(cli, harness, service, tasks, model)
            for row in await harness.sessions.list():
                await harness.sessions.remove(row.key)
