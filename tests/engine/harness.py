"""A Service on the real engine, with agents and a scripted model that a test writes out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio

from orchestrator.app import Parts, compose
from orchestrator.containers.images.fetching import Progress
from orchestrator.containers.mounts import MountPolicy
from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.servers.opening import ServerOpener
from orchestrator.engine.servers.tool_servers import ToolServers
from orchestrator.engine.service import Service
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.engine.stage import WaitingStage
from orchestrator.engine.staging import Gateway
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.model.scripted import Script, ScriptedModel, ScriptedUpstream
from orchestrator.gateway.model.service import ModelService
from orchestrator.gateway.model.upstream import Upstream, UpstreamRequest, UpstreamResponse
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.settings import read_settings
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionKey, SessionRows
from tests.engine.spares.watched_pool import WatchedPool

Steps = Sequence[dict[str, object]]

Image = str | Callable[[str], str]
"""Of every agent, or of those of a runner."""


class _Engine:
    """EngineLookup on a runtime that is open, with an image that is there."""

    def __init__(self, runtime: Runtime, image: Image) -> None:
        self._image = image
        self.seccomp_profile = runtime.seccomp_profile

    async def agent_image(self, runner: str, progress: Progress = lambda _: None) -> str:
        return self._image if isinstance(self._image, str) else self._image(runner)

    async def image_id(self, image: str) -> str:
        return ""


class _Heard:
    """An upstream that notes what it is sent."""

    def __init__(self, upstream: ScriptedUpstream, requests: list[bytes]) -> None:
        self._upstream = upstream
        self._requests = requests

    def send(self, request: UpstreamRequest) -> AbstractAsyncContextManager[UpstreamResponse]:
        if request.target.startswith("/v1/messages"):
            self._requests.append(request.body)
        return self._upstream.send(request)


class Harness:
    """Writes agents and scripts, and runs tasks on them."""

    def __init__(self, runtime: Runtime, image: Image, folder: Path, *, max_runs: int = 8) -> None:
        self._runtime = runtime
        self._image = image
        self._folder = folder
        self.agents_dir = folder / "agents"
        self._settings = read_settings(
            {
                "ORCHESTRATOR_AGENTS_DIR": str(self.agents_dir),
                "ORCHESTRATOR_STATE_DIR": str(folder),
                "ORCHESTRATOR_TRUSTED": str(folder),
                "ORCHESTRATOR_MAX_RUNS": str(max_runs),
                "ORCHESTRATOR_MAX_RUNS_PER_AGENT": str(max_runs),
            }
        )
        self.store = Store(folder / "runs.sqlite", "a test")
        policy = MountPolicy(roots=(folder,), home=Path("/nowhere"))
        self.copies = Copies(folder / "changes", policy)
        self.sessions = Sessions(runtime, SessionRows(self.store, "a test"))
        self.pool: WatchedPool[WaitingStage] = WatchedPool(PoolLimits())
        self.dialer = Dialer()
        self.environ: dict[str, str] = {}
        self.secrets: dict[str, str] = {}
        """ORCHESTRATOR_SECRET_NAME -> value."""
        self.ca_certificates = ""
        self.models: ModelService | None = None
        """Real ways to models, in the place of the script."""
        self.events: list[Event] = []
        self.requests: list[bytes] = []
        """What the model was sent, for all that it was asked."""
        opener = ServerOpener(
            runtime=runtime,
            engine=_Engine(runtime, image),
            secret_store=SecretStore(folder / "secrets.yaml", self.secrets),
            dialer=self.dialer,
            environ=self.environ,
            audit=self.store.audit,
            tokens_dir=folder / "oauth",
            project=self._settings.project,
        )
        self.servers = ToolServers(opener, self._settings.project)

    @property
    def key(self) -> SessionKey:
        """The usual session of the usual caller."""
        return SessionKey(project=self._settings.project, agent="worker", caller="main")

    def service(self, steps: Steps, *, each_task: bool = False, **fields: object) -> Service:
        """A service with one agent, called "worker", whose model plays these steps."""
        agent = {"name": "worker", "description": "Works.", "permissions": {"allow": ["Bash"]}}
        (self.agents_dir / "worker").mkdir(parents=True, exist_ok=True)
        text = f"---\n{json.dumps(agent | fields)}\n---\nYou work.\n"  # JSON is YAML
        (self.agents_dir / "worker" / "agent.md").write_text(text)
        model = ScriptedModel(Script.model_validate({"steps": list(steps), "each_task": each_task}))

        parts = Parts(
            store=self.store,
            alive=lambda _: True,
            runtime=self._runtime,
            engine=_Engine(self._runtime, self._image),
            gateway=self._gateway(model),
            copies=self.copies,
            secret_store=SecretStore(self._folder / "secrets.yaml", self.secrets),
            sessions=self.sessions,
            pool=self.pool,
            servers=self.servers,
            variables=self.environ,
            ca_certificates=self.ca_certificates,
        )
        return compose(self._settings, parts)

    def _gateway(self, model: ScriptedModel) -> Gateway:
        if self.models is not None:
            return Gateway(self.models, self.dialer)
        return Gateway(
            ModelService(),
            self.dialer,
            lambda *_: _Heard(model.upstream(), self.requests),
            scripted=True,
        )

    async def run(self, steps: Steps, task: Task | None = None, **fields: object) -> RunResult:
        task = task or Task(agent="worker", prompt="Do it.")
        service = self.service(steps, each_task=False, **fields)
        return await service.run(task, self.events.append)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


class HeldModel:
    """A service's script, which tells when it is asked and answers once it may."""

    def __init__(self, service: Service) -> None:
        self.asked, self.may_answer = anyio.Event(), anyio.Event()
        gateway = service._staging._gateway
        self._script_of = gateway.script_of
        service._staging._gateway = replace(gateway, script_of=self._held)

    def _held(self, agent: AgentSpec, runner: str) -> Upstream:
        script = self._script_of(agent, runner)
        assert script is not None
        return _Held(script, self)


class _Held:
    def __init__(self, script: Upstream, model: HeldModel) -> None:
        self._script, self._model = script, model

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self._model.asked.set()
        await self._model.may_answer.wait()
        async with self._script.send(request) as response:
            yield response


def bash(command: str) -> dict[str, object]:
    """A step in which the model asks for a command."""
    return {"tool": "Bash", "input": {"command": command, "timeout": 600_000}}
