"""Attacks on whoever is asked: a default that nobody saw, an input that is longer than it looks,
and calls with odd arguments.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import mcp.types as t
import pytest
from mcp import Client, MCPError

from orchestrator.containers.fake import FakeEngine, FakeRuntime
from orchestrator.domain.events import Event
from orchestrator.domain.exchange import Question
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.surfaces.cli.talk.asked import question_lines
from orchestrator.surfaces.cli.talk.typed_answers import TypedAnswers
from orchestrator.surfaces.mcp.answers.answer import document, run_answer
from orchestrator.surfaces.mcp.forms import form_params
from orchestrator.surfaces.mcp.server import build_server
from tests.attacks.mark import attack
from tests.engine.harness import Harness
from tests.engine.scripted_runs import Process

pytestmark = pytest.mark.anyio

DEFAULT = "yes, publish it\nwith every file"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path, "a test", set())
    await process.start()
    yield process
    await process.stop()


def shown_at_terminal(event: Event) -> str:
    said: list[str] = []
    nothing_is_typed = cast("Any", None)
    TypedAnswers(nothing_is_typed, event.run_id, said.append).hear(event)
    return "\n".join(said)


def one_line(text: str) -> str:
    return " ".join(text.split())


@attack(
    "words from inside",
    "ask with a default answer of one's own, so that silence says what was wanted",
    "shown with the question, everywhere; in the record, an answer by default is called one",
)
async def test_a_default_answer_is_shown_and_told_apart(process: Process) -> None:
    told: list[str] = []

    async def ask() -> None:
        told.append(await process.service.live[run].desk.ask("Which?", DEFAULT))
        told.append(await process.service.live[run].desk.ask("And now?", DEFAULT))
        process.service.complete(run, "done")

    process.service.answer_seconds["silence"] = 0.5
    events: list[Event] = []
    with anyio.fail_after(60):
        run = await process.tasks.start(Task(agent="worker", prompt="silence"), events.append)
        while run not in process.service.live:
            await anyio.sleep(0.01)
        process.service.do(run, ask)
        while not (view := await process.tasks.book.view(run)).questions:
            await anyio.sleep(0.01)
        while len(told) < 1:
            await anyio.sleep(0.01)
        while not (later := (await process.tasks.book.view(run)).questions):
            await anyio.sleep(0.01)
        await process.tasks.book.reply(run, later[0].message_id, DEFAULT, None)
        await process.tasks.book.until_ended(run, None, seconds=30)

    (question,) = view.questions
    answer = run_answer(view)
    assert isinstance(answer.content[0], t.TextContent)
    assert "> yes, publish it\n> with every file\n" in answer.content[0].text
    assert document(view)["questions"] == [
        question.model_dump(
            include={"run_id", "message_id", "question", "asked", "deadline", "default_answer"}
        )
    ]
    assert DEFAULT in form_params(question).message
    assert "    yes, publish it" in list(question_lines(question, "a", 0))
    (asked, _) = [event for event in events if event.kind == "asked"]
    assert one_line(DEFAULT) in shown_at_terminal(asked)

    assert told == [DEFAULT, DEFAULT]
    kept = await process.service.exchanges.questions(run)
    assert [each.answered_by for each in kept] == ["default", "caller"]
    first, second = [event for event in events if event.kind == "answered"]
    assert (first.data["by"], second.data["by"]) == ("default", "caller")
    assert first.text.startswith("(by default: no answer came in time)")
    assert second.text == DEFAULT


def test_a_question_without_a_default_says_what_happens_then() -> None:
    question = Question(
        message_id="m1",
        run_id="r1",
        question="Which?",
        deadline=time.time() + 60,
        default_answer="No answer came in time.",
    )
    view = TaskView(
        run_id="r1",
        agent="a",
        caller="main",
        status="waiting_parent_reply",
        questions=(question,),
    )
    answer = run_answer(view)
    assert isinstance(answer.content[0], t.TextContent)
    assert "goes by this:\n> No answer came in time.\n" in answer.content[0].text


LONG = {"command": "true # " + "x" * 94_000}
MANY = {"command": "true", "env": ["x" * 10] * 5000}
DEEP: dict[str, object] = {"command": "true"}
for _ in range(60):
    DEEP = {"a": DEEP, "b": "y" * 10}


@attack(
    "words from inside",
    "have a tool call approved at the terminal whose input goes on far beyond what is shown",
    "the prompt tells how many characters there are besides: of all of it, not of what was kept",
)
@pytest.mark.parametrize("given", [LONG, MANY, DEEP], ids=["long", "many", "deep"])
async def test_what_is_not_shown_of_an_input_is_counted_whole(
    process: Process, given: dict[str, object]
) -> None:
    async def ask() -> None:
        await process.service.live[run].desk.approve("toolu_1", "Bash", given)
        process.service.complete(run, "done")

    events: list[Event] = []
    with anyio.fail_after(60):
        run = await process.tasks.start(Task(agent="worker", prompt="x"), events.append)
        while run not in process.service.live:
            await anyio.sleep(0.01)
        process.service.do(run, ask)
        while not (await process.tasks.book.view(run)).approvals:
            await anyio.sleep(0.01)
        await process.tasks.book.decide(run, None, reject=["toolu_1"])
        await process.tasks.book.until_ended(run, None, seconds=30)

    (asked,) = [event for event in events if event.kind == "approval_asked"]
    shown, _, more = shown_at_terminal(asked).splitlines()[0].rpartition("… and ")
    assert len(shown) + int(more.split()[0]) == len(json.dumps(given, ensure_ascii=False))


ODD_TEXTS = (
    *("", " ", "\0", "\ud800", "\n", "x" * 20_000, "../../etc/passwd", "/", "-1", "null", "{}"),
    *("Read(x)y", "Read(", ")", "*", "Bash(*)(*)", "r" + "0" * 10, "r0000000000", "worker", "W"),
    *("'; DROP TABLE runs; --", "%s%n", "\u202e", "a\nb", "[1]", "NaN", "1e999", "~", "\x1b[2J"),
)
ODD_VALUES: tuple[object, ...] = (
    *(*ODD_TEXTS, None, True, 0, -1, 10**30, 1.5, float("1e308"), [], {}, [[]], [None], [{}]),
    *({"": ""}, {"a": {"b": []}}, ["Read(x)y"], ["worker"] * 200, [["a"]]),
    *({"agent_name": "worker"}, [{"agent_name": "worker", "prompt": ""}]),
)
INSIDE = ("Traceback", "pydantic", "Error(", 'File "', "NoneType", "sqlite3", "object at 0x")
"""What no caller should read."""


@attack(
    "words from inside",
    "call every tool of the MCP server with wrong shapes and odd strings, 40 times each",
    "each call is answered with a sentence: no traceback, nothing of the inside, and it goes on",
)
async def test_odd_arguments_get_sentences(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine(images=frozenset({"image"}), programs={})
    harness = Harness(FakeRuntime(engine), "image", tmp_path)
    service = harness.service([{"text": "."}], permissions={"allow": ["Read"]})
    update = {"compatibility": True, "dynamic_template": "worker", "window_seconds": 0.2}
    settings = harness._settings.model_copy(update=update)
    chance = Random(13)
    wrongs: list[str] = []
    caplog.set_level(logging.ERROR)
    with anyio.fail_after(300):
        async with Tasks(service) as tasks:
            server, _ = build_server(service, tasks, lambda: "main", settings)
            async with Client(server) as client:
                for tool in (await client.list_tools()).tools:
                    for given in calls_of(tool, chance):
                        said = await answer_to(client, tool.name, given)
                        if not said or any(word in said for word in INSIDE):
                            wrongs.append(f"{tool.name} {str(given)[:200]}: {said[:300]}")
                for name in ODD_TEXTS:
                    said = await reading(client, f"orchestrator://runs/{name}")
                    if any(word in said for word in INSIDE):
                        wrongs.append(f"resource {name!r}: {said[:300]}")
                assert (await client.call_tool("list_agents", {})).is_error is not True
    harness.store.close()
    assert wrongs == []
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def reading(client: Client, uri: str) -> str:
    try:
        return str(await client.read_resource(uri))
    except (MCPError, UnicodeError) as exc:  # half a character gets no further than our own client
        return str(exc)


def calls_of(tool: t.Tool, chance: Random) -> list[dict[str, Any]]:
    """Calls in which one argument, or all, are odd."""
    names = list(tool.input_schema.get("properties", {}))
    right = {"agent_name": "worker", "agent": "worker", "prompt": "x", "tools": ["Read"]}
    sound = {name: right.get(name, "x") for name in tool.input_schema.get("required", ())}
    found: list[dict[str, Any]] = [{}, {"unknown": 1}]
    for _ in range(20):
        found.append({name: chance.choice(ODD_VALUES) for name in names})
        if names:
            found.append({**sound, chance.choice(names): chance.choice(ODD_VALUES)})
    return found


async def answer_to(client: Client, tool: str, given: dict[str, Any]) -> str:
    try:
        result = await client.call_tool(tool, given)
    except MCPError as exc:
        return str(exc)
    return "\n".join(each.text for each in result.content if isinstance(each, t.TextContent))
