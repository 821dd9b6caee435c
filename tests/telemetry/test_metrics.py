"""What happens in a run -> numbers, as Prometheus' own parser reads them; and the board of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as strict
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.telemetry.metrics import MAX_LABEL_VALUES, Around, Metrics, RunCounts

pytestmark = pytest.mark.anyio

TELEMETRY = Path(__file__).parents[2] / "orchestrator" / "telemetry"

AGENT = AgentSpec(name="worker", description="Works.")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Counted:
    """Runs that are counted."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.at = 1000.0

    def begin(self) -> RunCounts:
        run = self.metrics.begun(Task(agent="worker", prompt="go"))
        run.planned(AGENT, "claude", "anthropic", str)
        self.tell(run, "queued")
        self.tell(run, "starting")
        self.tell(run, "started", path="cold")
        return run

    def tell(self, run: RunCounts, kind: EventKind, **data: Any) -> None:
        self.at += 1
        run.saw(Event(run_id="r1", seq=1, at=self.at, kind=kind, data=data))

    async def samples(self) -> Samples:
        text = (await self.metrics.exposition()).decode()
        return {
            (sample.name.removeprefix("orchestrator_"), tuple(sorted(sample.labels.items()))): (
                sample.value
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def value(self, name: str, **labels: str) -> float | None:
        return (await self.samples()).get((name, tuple(sorted(labels.items()))))


@pytest.fixture
def counted() -> Counted:
    return Counted()


def ended(**fields: Any) -> RunResult:
    values = {"status": "completed", "reason": "ok", "duration_ms": 2000, **fields}
    return RunResult.model_validate({"run_id": "r1", "agent": "worker", "caller": "main", **values})


def busy(counted: Counted) -> RunCounts:
    """A run in which everything happens that is counted."""
    run = counted.begin()
    tokens = {"input_tokens": 10, "output_tokens": 5, "cache_read_tokens": 3}
    used = {"status": 200, "model": "m-1", "cost_usd": 0.25, "estimated_usd": 0.5, **tokens}
    counted.tell(run, "model_request", **used)
    counted.tell(run, "server_call", server="it", tool="echo")
    counted.tell(run, "server_denied", server="it", tool="made up by the agent")
    counted.tell(run, "server_call", server="it", tool="resource:file:///any")
    counted.tell(run, "egress", host="a.example")
    counted.tell(run, "egress_denied", host="b.example")
    counted.tell(run, "secret_used", secret="token", host="c.example")
    counted.tell(run, "asked", message_id="m1")
    return run


async def test_a_run_is_counted_from_its_task_to_its_end(counted: Counted) -> None:
    assert await counted.value("active_runs", state="running") == 0
    run = busy(counted)
    assert await counted.value("active_runs", state="running") == 1
    assert await counted.value("waiting", kind="question") == 1
    counted.tell(run, "answered", message_id="m1")
    run.ended(ended())
    found = await counted.samples()
    expected = {
        ("runs_total", (("agent", "worker"), ("reason", "ok"), ("status", "completed"))): 1,
        ("active_runs", (("state", "running"),)): 0,
        ("active_runs", (("state", "pending"),)): 0,
        ("waiting", (("kind", "question"),)): 0,
        ("run_duration_seconds_sum", (("agent", "worker"),)): 2,
        ("queue_seconds_sum", ()): 1,
        ("start_seconds_sum", (("path", "cold"),)): 1,
        ("model_requests_total", (("model", "m-1"), ("status", "200"))): 1,
        ("model_tokens_total", (("model", "m-1"), ("type", "input"))): 10,
        ("model_tokens_total", (("model", "m-1"), ("type", "cache_read"))): 3,
        ("cost_usd_total", (("agent", "worker"), ("model", "m-1"))): 0.25,
        ("estimated_usd_total", (("agent", "worker"), ("model", "m-1"))): 0.5,
        ("tool_calls_total", (("decision", "allowed"), ("server", "it"), ("tool", "echo"))): 1,
        ("tool_calls_total", (("decision", "denied"), ("server", "it"), ("tool", "other"))): 1,
        ("tool_calls_total", (("decision", "allowed"), ("server", "it"), ("tool", "other"))): 1,
        ("egress_total", (("decision", "allowed"),)): 1,
        ("egress_total", (("decision", "denied"),)): 1,
        ("secrets_used_total", (("secret", "token"),)): 1,
    }
    assert {key: found.get(key) for key in expected} == expected


async def test_a_run_that_ends_waits_for_nothing(counted: Counted) -> None:
    run = busy(counted)
    counted.tell(run, "approval_asked", call_id="c1")
    run.ended(ended(status="cancelled", reason="cancelled"))
    assert await counted.value("waiting", kind="question") == 0
    assert await counted.value("waiting", kind="approval") == 0


async def test_a_refused_task_is_counted_by_its_code_alone(counted: Counted) -> None:
    counted.metrics.begun(Task(agent="made-up", prompt="x")).refused("agent_not_found")
    assert await counted.value("refusals_total", code="agent_not_found") == 1
    assert "made-up" not in (await counted.metrics.exposition()).decode()


async def test_a_script_costs_nothing(counted: Counted) -> None:
    run = counted.metrics.begun(Task(agent="worker", prompt="go"))
    counted.tell(run, "queued", scripted=True)
    counted.tell(run, "model_request", status=200, model="m-1", cost_usd=1.0)
    assert await counted.value("cost_usd_total", agent="worker", model="m-1") is None


async def test_an_agent_cannot_make_labels(counted: Counted) -> None:
    run = counted.begin()
    for n in range(3 * MAX_LABEL_VALUES):
        counted.tell(run, "model_request", status=404, model=f"made-up-{n}")
        counted.tell(run, "model_request", status=200, model=f"answers-{n}")
        counted.tell(run, "server_denied", server="it", tool=f"made-up-{n}")
        counted.tell(run, "egress_denied", host=f"h{n}.example")
        counted.tell(run, "asked", message_id=f"m{n}")
    found = await counted.samples()
    models = {dict(labels)["model"] for name, labels in found if name == "model_requests_total"}
    assert len(models) == MAX_LABEL_VALUES + 1
    assert not [model for model in models if model.startswith("made-up")]
    assert len(found) < 4 * MAX_LABEL_VALUES
    names = {label for _, labels in found for label, _ in labels}
    assert not names & {"run_id", "run", "host", "caller", "trace_id"}


async def test_what_is_there_besides_is_asked_when_somebody_asks(counted: Counted) -> None:
    around = Around(
        spares={("worker", "waiting"): 2}, containers={"kept": 3}, store_bytes=9, engine="docker"
    )

    async def look() -> Around:
        return around

    counted.metrics.look_around_with(look)
    assert await counted.value("spares", agent="worker", state="waiting") == 2
    assert await counted.value("containers", kind="kept") == 3
    around = Around(store_bytes=10)
    found = await counted.samples()
    assert found["store_bytes", ()] == 10
    assert ("containers", (("kind", "kept"),)) in found, "the engine did not answer this time"
    assert not [name for name, _ in found if name == "spares"]
    assert len([name for name, _ in found if name == "build_info"]) == 1


async def test_an_engine_that_does_not_answer_does_not_hold_up_the_numbers(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.telemetry.metrics.LOOK_AROUND_SECONDS", 0.01)

    async def hang() -> Around:
        await anyio.sleep_forever()
        raise AssertionError

    counted.metrics.look_around_with(hang)
    with anyio.fail_after(30):
        assert b"orchestrator_build_info" in await counted.metrics.exposition()


# What is served, told and drawn


async def served(counted: Counted) -> dict[str, str]:
    """Every metric, with all of its samples' names -> its type."""
    busy(counted).ended(ended())
    counted.metrics.begun(Task(agent="x", prompt="x")).refused("x")
    around = Around(spares={("worker", "waiting"): 2}, containers={"kept": 3})

    async def look() -> Around:
        return around

    counted.metrics.look_around_with(look)
    text = (await counted.metrics.exposition()).decode()
    return {
        sample.name: family.type
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_page_names_every_metric_with_its_labels(counted: Counted) -> None:
    page = (TELEMETRY / "README.md").read_text()
    section = page.partition("## Metrics")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    told = {
        name: set(re.findall(r"`(\w+)`", row[1]))
        for row in rows
        for name in re.findall(r"`(\w+)`", row[0])
    }
    found: dict[str, set[str]] = {}
    await served(counted)
    text = (await counted.metrics.exposition()).decode()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = labels - {"le"}
    assert found == told


async def test_the_board_asks_for_what_is_served(counted: Counted) -> None:
    board = json.loads((TELEMETRY / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [each["definition"] for each in board["templating"]["list"] if "definition" in each]
    named = {name for query in asked for name in re.findall(r"\borchestrator_\w+", query)}
    names = await served(counted)
    assert named <= set(names)
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    assert families == shown, "a number that no panel shows"
    for query in asked:
        for name, rate in re.findall(r"(rate|increase)\((orchestrator_\w+)", query):
            assert names[rate] in ("counter", "histogram"), (name, query)
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(set(places)) == len(places)


async def test_a_strict_parser_takes_all_of_it(counted: Counted) -> None:
    names = await served(counted)
    untyped: Any = (openmetrics.generate_latest, strict.text_string_to_metric_families)
    write, read = untyped
    families = list(read(write(counted.metrics.registry).decode()))
    assert {sample.name for family in families for sample in family.samples} == set(names)
    assert all(family.documentation.endswith(".") for family in families)
