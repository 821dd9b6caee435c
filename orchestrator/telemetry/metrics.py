"""What runs did -> numbers that a Prometheus fetches.

They count what this process did, from its start on. A label has few values, which the operator or
this package has chosen: no run, host or caller, and nothing that an agent could make up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from orchestrator import __version__
from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult, Tokens
from orchestrator.domain.task import Task

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

LOOK_AROUND_SECONDS = 2.0
"""For the engine to tell of its containers; without an answer, the numbers of before are told."""

MAX_LABEL_VALUES = 100
"""Of one label; what comes after is "other". Models are named by agents as they like, at worst."""

OTHER = "other"

RUN_BUCKETS = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
QUEUE_BUCKETS = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800)
START_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)

PREFIX = "orchestrator_"


class Around(Frozen):
    """What there is besides runs, when somebody asks."""

    spares: Mapping[tuple[str, str], int] = {}
    """By agent and state."""
    containers: Mapping[str, int] | None = None
    """By kind, of all processes that share the state; None if the engine was not asked."""
    store_bytes: int = 0
    engine: str = ""


LookAround = Callable[[], Awaitable[Around]]


async def _nothing() -> Around:
    return Around()


class Metrics:
    """All numbers of a process. A Watcher, as engine/tasks/watch.py has it."""

    def __init__(self) -> None:
        # Twice as many lines, which nobody asks for.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs
        self.registry = CollectorRegistry()
        self._look: LookAround = _nothing
        self._models: set[str] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Any, *labels: str) -> Histogram:
            return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self.registry)

        self.runs = counter("runs", "Runs that have ended.", "agent", "status", "reason")
        self.refused = counter("refusals", "Tasks that did not become a run.", "code")
        self.active = gauge("active_runs", "Runs of this process that have not ended.", "state")
        self.duration = histogram(
            "run_duration_seconds", "From a task's acceptance to its end.", RUN_BUCKETS, "agent"
        )
        self.queue = histogram("queue_seconds", "Until a run had its slot.", QUEUE_BUCKETS)
        self.start = histogram(
            "start_seconds", "From its slot to a CLI that runs.", START_BUCKETS, "path"
        )
        self.waiting = gauge("waiting", "Questions and tool calls that wait for a word.", "kind")
        self.requests = counter("model_requests", "Requests to models.", "model", "status")
        self.tokens = counter("model_tokens", "Tokens of models.", "model", "type")
        self.cost = counter(
            "cost_usd", "What models cost, in dollars, as their APIs told.", "agent", "model"
        )
        self.estimated = counter(
            "estimated_usd", "What they may have cost besides, in dollars.", "agent", "model"
        )
        self.tool_calls = counter(
            "tool_calls", "Calls of tools of servers outside.", "server", "tool", "decision"
        )
        self.egress = counter("egress", "Connections and requests to hosts.", "decision")
        self.secrets = counter("secrets_used", "Requests that a secret was added to.", "secret")
        self._spares = gauge("spares", "Containers that wait for a run.", "agent", "state")
        self._containers = gauge("containers", "Containers of this state directory.", "kind")
        self._store = gauge("store_bytes", "The record of runs on the disk.")
        self._build = gauge("build_info", "What runs here; always 1.", "version", "engine")
        for state in ("pending", "running"):
            self.active.labels(state).set(0)
        for kind in ("question", "approval"):
            self.waiting.labels(kind).set(0)
        self._build.labels(__version__, "").set(1)

    def begun(self, task: Task) -> RunCounts:
        return RunCounts(self, task)

    def look_around_with(self, look: LookAround) -> None:
        """From now on, ask this one what there is besides runs."""
        self._look = look

    async def exposition(self) -> bytes:
        """All of it, in Prometheus' text format. Bounded."""
        with anyio.move_on_after(LOOK_AROUND_SECONDS):
            self._note(await self._look())
        return generate_latest(self.registry)

    def _note(self, found: Around) -> None:
        self._spares.clear()
        for (agent, state), count in found.spares.items():
            self._spares.labels(agent, state).set(count)
        if found.containers is not None:
            self._containers.clear()
            for kind, count in found.containers.items():
                self._containers.labels(kind).set(count)
        self._store.set(found.store_bytes)
        self._build.clear()
        self._build.labels(__version__, found.engine).set(1)

    def model_label(self, name: str, *, answered: bool) -> str:
        """A model that has answered is one that there is; others can be made up by an agent."""
        if answered and name and len(self._models) < MAX_LABEL_VALUES:
            self._models.add(name)
        return name if name in self._models else OTHER


class RunCounts:
    """One run, as a RunWatch has it."""

    traceparent = ""

    def __init__(self, metrics: Metrics, task: Task) -> None:
        self._metrics = metrics
        self._agent = task.agent
        self._state = ""
        self._queued = self._starting = 0.0
        self._waits: dict[str, str] = {}
        """What it waits for -> which kind of waiting that is."""
        self._free = False

    def planned(
        self,
        agent: AgentSpec,
        runner: str,  # noqa: ARG002 as RunWatch has it
        provider: str,  # noqa: ARG002
        clean: Callable[[str], str],  # noqa: ARG002
    ) -> None:
        self._agent = agent.name
        self._is("pending")

    def saw(self, event: Event) -> None:
        metrics, data = self._metrics, event.data
        match event.kind:
            case "queued":
                self._queued, self._free = event.at, bool(data.get("scripted"))
            case "starting" if not self._starting:
                self._starting = event.at
                self._is("running")
                metrics.queue.observe(max(0.0, event.at - self._queued))
            case "started":
                path = str(data.get("path", ""))
                metrics.start.labels(path).observe(max(0.0, event.at - self._starting))
            case "model_request":
                self._asked_model(data)
            case "server_call" | "server_denied":
                allowed = event.kind == "server_call"
                metrics.tool_calls.labels(
                    str(data.get("server", "")),
                    # One that is let is in a lock that somebody has read; others can be made up.
                    str(data.get("tool", "")) if allowed and self._is_tool(data) else OTHER,
                    "allowed" if allowed else "denied",
                ).inc()
            case "egress" | "egress_denied":
                metrics.egress.labels("allowed" if event.kind == "egress" else "denied").inc()
            case "secret_used":
                metrics.secrets.labels(str(data.get("secret", ""))).inc()
            case "asked":
                self._waits_for("question", f"q{data.get('message_id')}")
            case "approval_asked":
                self._waits_for("approval", f"a{data.get('call_id')}")
            case "answered":
                self._was_told(f"q{data.get('message_id')}")
            case "approval_decided":
                self._was_told(f"a{data.get('call_id')}")

    def ended(self, result: RunResult) -> None:
        metrics = self._metrics
        for wait in tuple(self._waits):
            self._was_told(wait)
        self._is("")
        metrics.runs.labels(self._agent, result.status, result.reason).inc()
        metrics.duration.labels(self._agent).observe(result.duration_ms / 1000)

    def refused(self, code: str) -> None:
        self._is("")
        self._metrics.refused.labels(code).inc()

    def _is(self, state: str) -> None:
        if self._state:
            self._metrics.active.labels(self._state).dec()
        if state:
            self._metrics.active.labels(state).inc()
        self._state = state

    def _asked_model(self, data: Mapping[str, object]) -> None:
        metrics, status = self._metrics, int(_figure(data, "status"))
        answered = 200 <= status < 300
        model = metrics.model_label(str(data.get("model") or ""), answered=answered)
        metrics.requests.labels(model, str(status)).inc()
        for key in Tokens.model_fields:
            if tokens := _figure(data, key):
                metrics.tokens.labels(model, key.removesuffix("_tokens")).inc(tokens)
        if not self._free:
            metrics.cost.labels(self._agent, model).inc(_figure(data, "cost_usd"))
            metrics.estimated.labels(self._agent, model).inc(_figure(data, "estimated_usd"))

    def _is_tool(self, data: Mapping[str, object]) -> bool:
        """And not a resource, whose name may be anything."""
        return ":" not in str(data.get("tool", ""))

    def _waits_for(self, kind: str, what: str) -> None:
        if what not in self._waits:
            self._waits[what] = kind
            self._metrics.waiting.labels(kind).inc()

    def _was_told(self, what: str) -> None:
        kind = self._waits.pop(what, None)
        if kind is not None:
            self._metrics.waiting.labels(kind).dec()


def _figure(data: Mapping[str, object], key: str) -> float:
    value = data.get(key)
    return value if isinstance(value, int | float) and value > 0 else 0
