"""The verb that everybody calls: run a task. Who may, when, and what is kept of it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio

from orchestrator.access import check_caller
from orchestrator.catalog import AgentsDir
from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import User
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.record import Listener, Record
from orchestrator.engine.run import Outcome, conclude, run_plan
from orchestrator.engine.store import Store
from orchestrator.errors import CallerError, StoreFailed
from orchestrator.gateway.model import ModelRequestSeen, ModelService
from orchestrator.gateway.upstream import Upstream
from orchestrator.plan import Place, Plan, plan

log = logging.getLogger(__name__)

ScriptOf = Callable[[AgentSpec], Upstream | None]
"""A script that plays the model for this agent; None for the real model."""


def no_script(_: AgentSpec) -> Upstream | None:
    return None


class Service:
    """Runs tasks: at most so many at once, in the order they came, each one recorded."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        agents: AgentsDir,
        store: Store,
        models: ModelService,
        image: Callable[[], Awaitable[str]],
        environ: Mapping[str, str],
        secrets: Sequence[str] = (),
        script_of: ScriptOf = no_script,
        max_runs: int = 8,
        max_runs_per_agent: int = 8,
    ) -> None:
        self.agents = agents
        self.store = store
        self._runtime = runtime
        self._models = models
        self._image = image
        self._environ = environ
        self._secrets = tuple(secrets)
        self._script_of = script_of
        self._turns = anyio.CapacityLimiter(max_runs)
        self._agent_turns: dict[str, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(max_runs_per_agent)
        )

    async def plan(self, task: Task) -> Plan:
        """What a run of this task could touch. Nothing is made."""
        return await self._plan(self._agent(task), task, token="(a token for this run only)")  # noqa: S106 a stand-in

    async def run(self, task: Task, *listeners: Listener) -> RunResult:
        """Run a task to its end. Errors are for what the caller got wrong; the rest is a result."""
        agent = self._agent(task)
        check_caller(agent, task.caller)
        record = Record(task.run_id, self.store, listeners, self._secrets)
        access = self._models.access(
            budget_usd=agent.max_budget_usd,
            on_request=lambda seen: _note_request(record, seen),
            upstream=self._script_of(agent),
            server_tools=_server_tools(agent),
        )
        planned = await self._plan(agent, task, token=access.token)
        inside = (self._environ.get(name, "") for name in planned.secrets_inside)
        record.add_secrets((*inside, access.token))
        await self.store.add_run(task)
        record.note("queued", f"{task.agent} for {task.caller}")
        outcome = Outcome()
        try:
            async with self._agent_turns[agent.name], self._turns:
                await self.store.set_status(task.run_id, "running")
                await run_plan(planned, self._runtime, access, record, outcome)
        except CallerError as exc:
            outcome.fail("start_failed", str(exc))
            raise
        except Exception as exc:
            if not outcome.decided:
                outcome.fail("machinery", str(exc))
            raise
        except BaseException:
            if not outcome.decided:
                outcome.fail("cancelled", "the caller cancelled the run", "cancelled")
            raise
        finally:
            with anyio.CancelScope(shield=True):  # whatever happened, it is kept
                result = await conclude(planned, access, record, outcome)
                await self._finish(result)
        return result

    async def _finish(self, result: RunResult) -> None:
        try:
            await self.store.finish(result)
        except StoreFailed:  # the caller gets the answer all the same
            log.exception("the result of %s is not kept", result.run_id)

    def _agent(self, task: Task) -> AgentSpec:
        return self.agents.current().agent(task.agent)

    async def _plan(self, agent: AgentSpec, task: Task, token: str) -> Plan:
        image = agent.image or await self._image()
        place = Place(image=image, workspace_owner=workspace_owner(task.workspace))
        return plan(agent, task, place, self._environ, token)


def _server_tools(agent: AgentSpec) -> frozenset[str]:
    """What agent.md lets the model API do on its own side."""
    asked = any(rule.partition("(")[0] == "WebSearch" for rule in agent.permissions.allow)
    return frozenset({"web_search"}) if asked else frozenset()


def _note_request(record: Record, seen: ModelRequestSeen) -> None:
    tokens = f"{seen.input_tokens} tokens in, {seen.output_tokens} out"
    what = seen.error_type or tokens
    record.note("model_request", f"{seen.status} {seen.model} {what}", **seen.model_dump())


def workspace_owner(workspace: Path | None) -> User | None:
    """Who owns the workspace; nobody, if it is root or not there to be looked at."""
    if workspace is None:
        return None
    try:
        status = workspace.stat()
    except OSError:
        return None
    if not status.st_uid:
        return None
    return User(uid=status.st_uid, gid=status.st_gid or status.st_uid)
