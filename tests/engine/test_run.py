"""How a run ends when what it has to say is made to break something."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from orchestrator import output
from orchestrator.containers.fake import FakeEngine, FakeProcess, FakeRuntime
from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import ContainerSpec, Launch
from orchestrator.domain.events import Event
from orchestrator.domain.result import ChangedFile
from orchestrator.domain.task import Task
from orchestrator.engine import turns
from orchestrator.engine.conversation import NOBODY_ALLOWS
from orchestrator.engine.live import LiveRun
from orchestrator.engine.record import Record
from orchestrator.engine.run import NOT_KEPT, conclude, execute
from orchestrator.engine.stage import Stage
from orchestrator.engine.staging import open_stage
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from orchestrator.gateway.reach import Reach
from orchestrator.runners.claude.dialogue import Claude
from orchestrator.store.runs import Store
from tests.engine.scripted_runs import ScriptedService
from tests.engine.test_conversation import asking, ended

PATIENCE = 30
SECRET = "sk-very-secret-indeed"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "runs.sqlite", owner="me")
    yield opened
    opened.close()


@pytest.fixture
def service(store: Store) -> ScriptedService:
    return ScriptedService(store, lambda _: True)


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [deep(300), deep(5000), object()], ids=["300", "5000", "object"])
async def test_a_run_whose_answer_cannot_be_kept_ends_all_the_same(
    service: ScriptedService, store: Store, value: object
) -> None:
    told: list[Event] = []
    live = await service.accept(Task(agent="worker", prompt="x"), told.append)
    run_id = live.run_id
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_complete, service, live, value)
            result = await service.finish(live)

    assert (result.status, result.reason, result.message) == ("failed", "machinery", NOT_KEPT)
    kept = await store.run(run_id)
    assert kept is not None
    assert (kept.status, kept.result) == ("failed", result)
    ends = [event for event in await store.events(run_id) if event.kind == "ended"]
    assert [event.data["status"] for event in ends] == ["failed"]
    assert told[-1] == ends[0]


async def _complete(service: ScriptedService, live: LiveRun, value: object) -> None:
    while live.run_id not in service.live:
        await anyio.lowlevel.checkpoint()
    service.complete(live.run_id, cast("Any", value))


async def test_a_task_that_is_given_up_ends_whatever_is_wrong_with_it(
    service: ScriptedService, store: Store
) -> None:
    live = await service.accept(Task(agent="worker", prompt="x"))
    live.result = deep(5000)
    result = await service.give_up(live, "cancelled", "nobody wants it")

    kept = await store.run(live.run_id)
    assert kept is not None
    assert (kept.status, kept.reason, kept.result) == ("failed", "machinery", result)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ('"' + "a" * 60 + '!"', {"type": "string", "pattern": r"^(\w+\s?)*$"}),
        (json.dumps([{"n": n} for n in range(30_000)]), {"type": "array", "uniqueItems": True}),
    ],
)
async def test_an_answer_that_takes_for_ever_to_compare_is_given_up_and_nobody_waits_for_it(
    text: str, schema: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "ANSWER_CHECK_SECONDS", 1.0)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.001)
            beats += 1

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            answer = await turns._read(text, schema)
            tasks.cancel_scope.cancel()
    assert answer.errors[0].startswith("the answer could not be compared with its schema in 1 s")
    assert beats > 10
    monkeypatch.setattr(turns, "ANSWER_CHECK_SECONDS", PATIENCE)
    good = await turns._read('"fine"', {"type": "string", "pattern": "^f"})
    assert good == output.Answer(value="fine")


async def test_half_a_character_and_bottomless_data_are_kept_as_something_else(
    store: Store,
) -> None:
    record = Record("r1", store)
    record.note("status", "half \ud800", name="\udcff", input={"\ud800": deep(5000)})
    await record.flush()

    (event,) = await store.events("r1")
    assert (event.text, event.data["name"]) == ("half ?", "?")
    assert "…" in json.dumps(event.data["input"], ensure_ascii=False)


async def test_no_part_of_the_envelope_shows_a_secret(service: ScriptedService) -> None:
    live = await service.accept(Task(agent="worker", prompt="x"))
    live.record.add_secrets([SECRET, "completed"])
    live.fail("cli_crashed", f"it said {SECRET}")
    live.result = {SECRET: [SECRET]}
    live.partial_text = live.model = live.session_id = live.session_note = SECRET
    live.schema_errors = live.denied_tools = live.denied_hosts = (SECRET,)
    live.failed_mcp_servers = (SECRET,)
    live.changed_files = (
        ChangedFile(path=f"{SECRET}/new", change="renamed", old_path=SECRET),
        ChangedFile(path="half \udcff", change="added"),
    )
    live.patch = f"+++ {SECRET}"
    result = await conclude(live)

    assert SECRET not in result.model_dump_json()
    assert (result.model, result.denied_tools) == ("[secret]", ("[secret]",))
    assert result.changed_files == (
        ChangedFile(path="[secret]/new", change="renamed", old_path="[secret]"),
        ChangedFile(path="half ?", change="added"),
    )

    live.status, live.reason = "completed", "ok"
    assert (await conclude(live)).status == "completed"  # a word of ours is no secret


async def test_a_call_that_asks_when_its_run_is_over_is_refused_and_the_cli_still_heard(
    service: ScriptedService, tmp_path: Path
) -> None:
    heard: list[bytes] = []
    refused = anyio.Event()

    async def cli(p: FakeProcess) -> int:
        await _line(p)
        await p.stdout.write(ended("done"))
        await _line(p)
        await p.stdout.write(asking("late", "Bash"))
        heard.append(await _line(p))
        refused.set()
        await p.stdout.write(ended("still here"))
        await anyio.sleep_forever()
        return 0

    live = await service.accept(Task(agent="worker", prompt="x"))
    agent = AgentSpec.model_validate(
        {
            "name": "worker",
            "description": "Works.",
            "prompt": "You work.",
            "permissions": {"allow": ["Bash"]},
            "approval": {"Bash": "ask"},
        }
    )
    live = replace(live, prepared=replace(live.prepared, agent=agent))
    copies = Copies(tmp_path / "changes", MountPolicy(roots=(tmp_path,), home=Path("/nowhere")))
    async with staged(cli) as stage:
        await execute(live, _held(stage), copies)
        assert (live.status, live.result) == ("completed", "done")
        await stage.conversation.say("one more thing")
        await refused.wait()
        assert (await stage.conversation.turn()).text == "still here"
        assert stage.conversation.at_rest

    (line,) = heard
    said = json.loads(line)["response"]
    assert said["request_id"] == "late"
    assert said["response"] == {"behavior": "deny", "message": NOBODY_ALLOWS}


@asynccontextmanager
async def staged(cli: Callable[[FakeProcess], Any]) -> AsyncIterator[Stage]:
    runtime = FakeRuntime(FakeEngine(images=frozenset({"image"}), programs={"cli": cli}))
    script = Script.model_validate({"steps": [{"text": "nothing"}]})
    reach = Reach(ModelAccess(ScriptedModel(script).upstream()))
    with anyio.fail_after(PATIENCE):
        async with (
            runtime.open(ContainerSpec(image="image")) as container,
            open_stage(container, Launch(argv=("cli",)), Claude(), reach) as stage,
        ):
            yield stage


@asynccontextmanager
async def _held(stage: Stage) -> AsyncIterator[Stage]:
    yield stage


async def _line(p: FakeProcess) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += await p.stdin.read()
    return line
