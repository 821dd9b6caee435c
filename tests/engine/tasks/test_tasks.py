"""Tasks that go on by themselves, on the real engine with the real CLI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.errors import RunNotFound, RunRefused
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from orchestrator.gateway.model.upstream import Upstream
from orchestrator.store.runs import Store
from orchestrator.surfaces.mcp.answers.answer import run_answer
from tests.engine.harness import Harness, HeldModel, Steps, bash

PATIENCE = 170

FOR_EVER = "python3 -c 'import time; time.sleep(500)'"


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(runtime, image, tmp_path)
    async with harness.sessions:
        yield harness
    for row in await harness.sessions.list():
        await harness.sessions.remove(row.key)


def play_in_turn(service: Service, *steps: Steps) -> None:
    """Have each container's model play the next of these scripts."""
    scripts = iter(steps)

    def script_of(*_: object) -> Upstream:
        return ScriptedModel(Script.model_validate({"steps": list(next(scripts))})).upstream()

    service._staging._gateway = replace(service._staging._gateway, script_of=script_of)


def task(prompt: str = "x", **fields: object) -> Task:
    return Task.model_validate({"agent": "worker", "prompt": prompt, **fields})


async def test_a_task_goes_on_while_its_caller_does_something_else_and_is_not_there_for_others(
    harness: Harness,
) -> None:
    async with Tasks(harness.service([{"text": "done"}])) as tasks:
        run_id = await tasks.start(task())
        second = await tasks.start(task("second", after=[run_id]))
        (now,) = await tasks.book.wait([run_id], "main", seconds=0)
        assert now.status in ("pending", "running")
        with pytest.raises(RunNotFound):
            await tasks.book.view(run_id, "stranger")
        with pytest.raises(RunNotFound):
            await tasks.cancel(run_id, "stranger")
        (then,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert then.result is not None
        assert (then.status, then.result.result) == ("completed", "done"), then.result
        with pytest.raises(RunRefused, match="its container is gone"):
            await tasks.say(run_id, "more", "main")

        # One that follows it has waited for it.
        (followed,) = await tasks.book.wait([second], "main", seconds=PATIENCE)
        assert followed.status == "completed"
        began = (await harness.store.events(second))[1].at
        assert then.ended is not None
        assert then.ended <= began


async def test_a_task_does_not_begin_when_the_one_that_it_follows_fails(harness: Harness) -> None:
    async with Tasks(harness.service([{"error": 400, "repeat": True}])) as tasks:
        first = await tasks.start(task("first"))
        second = await tasks.start(task("second", after=[first]))
        views = await tasks.book.wait([first, second], "main", seconds=PATIENCE)
    assert [view.reason for view in views] == ["api_error", "dependency_failed"]


async def test_a_cancelled_task_ends_as_cancelled_and_leaves_nothing_even_if_that_cannot_be_written(
    harness: Harness, runtime: DockerRuntime
) -> None:
    async with Tasks(harness.service([bash(FOR_EVER)])) as tasks:
        at_work = anyio.Event()
        run_id = await tasks.start(task(), lambda event: _on(event.kind == "tool_call", at_work))
        with anyio.fail_after(PATIENCE):
            await at_work.wait()
            harness.store.database._db.execute(
                "CREATE TRIGGER full BEFORE INSERT ON orders "
                "BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )
            view = await tasks.cancel(run_id, "main")
        assert (view.status, view.reason) == ("cancelled", "cancelled")
        assert await runtime.list() == ()
        assert (await tasks.cancel(run_id, "main")).status == "cancelled"


async def test_an_agent_can_be_told_something_in_the_middle_of_its_work(harness: Harness) -> None:
    steps: Steps = [bash(FOR_EVER), {"text": "heard: {last_user_text}"}]
    async with Tasks(harness.service(steps)) as tasks:
        at_work = anyio.Event()
        run_id = await tasks.start(task(), lambda event: _on(event.kind == "tool_call", at_work))
        with anyio.fail_after(PATIENCE):
            await at_work.wait()
            said = "Leave that, and say what you heard."
            assert await tasks.say(run_id, said, "main", now=True) == run_id
            (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.result is not None
        assert view.result.result == "heard: Leave that, and say what you heard."


async def test_what_an_agent_is_told_before_it_is_at_work_waits_until_it_is(
    harness: Harness,
) -> None:
    steps: Steps = [bash(FOR_EVER), {"text": "heard: {last_user_text}"}]
    async with Tasks(harness.service(steps)) as tasks:
        run_id = await tasks.start(task("the task"))
        assert await tasks.say(run_id, "Leave that.", "main", now=True) == run_id
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        events = await harness.store.events(run_id)
    assert view.result is not None
    assert view.result.result == "heard: Leave that."
    kinds = [event.kind for event in events]
    assert kinds.index("ready") < kinds.index("steered"), "the task came first"


async def test_an_agent_hears_what_it_is_told_after_the_tool_call_that_is_under_way(
    harness: Harness,
) -> None:
    # The CLI notes in its history what it has read and not taken up: the call lasts until all is.
    read = "$(grep -c '\"enqueue\"' ~/.claude/projects/*/*.jsonl)"
    call = bash(f"until [ {read} -gt 2 ]; do sleep 0.05; done; echo heard")
    text: dict[str, object] = {"text": "{last_tool_result}; {user_texts}"}
    async with Tasks(harness.service([call, text, text], session=True)) as tasks:
        at_work = anyio.Event()
        run_id = await tasks.start(task(), lambda event: _on(event.kind == "tool_call", at_work))
        with anyio.fail_after(PATIENCE):
            await at_work.wait()
            for word in ("one", "two"):
                assert await tasks.say(run_id, word, "main") == run_id
            (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.result is not None
        assert (view.status, view.result.attempts) == ("completed", 1), view.result
        assert view.result.result == "heard; x; one; two"
        assert view.unheard == ()

        # In a session, it hears more after it has ended.
        follow_up = await tasks.say(run_id, "three", "main")
        (view,) = await tasks.book.wait([follow_up], "main", seconds=PATIENCE)
        assert view.parent_run_id == run_id
        assert view.result is not None
        assert view.result.result == "heard; x; one; two; three"


async def test_what_an_agent_is_told_while_it_answers_is_answered_too(harness: Harness) -> None:
    service = harness.service([{"text": "one"}, {"text": "{user_texts}"}])
    model = HeldModel(service)
    async with Tasks(service) as tasks:

        def let_it_answer(event: Event) -> None:
            _on(event.kind == "steered", model.may_answer)

        run_id = await tasks.start(task(), let_it_answer)
        with anyio.fail_after(PATIENCE):
            await model.asked.wait()
            await tasks.say(run_id, "and two", "main")
            (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
    assert view.result is not None
    assert (view.status, view.result.result, view.result.attempts) == ("completed", "x; and two", 2)


async def test_two_things_that_are_said_at_once_are_both_heard(harness: Harness) -> None:
    steps: Steps = [bash(FOR_EVER), bash(FOR_EVER), {"text": "{user_texts}"}]
    async with Tasks(harness.service(steps)) as tasks:
        at_work = anyio.Event()
        run_id = await tasks.start(task(), lambda event: _on(event.kind == "tool_call", at_work))
        with anyio.fail_after(PATIENCE):
            await at_work.wait()
            async with anyio.create_task_group() as saying:
                for text in ("one", "two"):
                    saying.start_soon(partial(tasks.say, run_id, text, "main", now=True))
            (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
    assert view.result is not None
    assert (view.status, view.reason) == ("completed", "ok"), view.result
    assert {"one", "two", "x"} <= set(str(view.result.result).split("; "))


async def test_a_tool_call_that_nobody_could_be_asked_about_is_refused_and_the_run_goes_on(
    harness: Harness,
) -> None:
    steps: Steps = [bash("echo one"), {"text": "{last_tool_result}"}]
    service = harness.service(steps, approval="ask")
    harness.store.database._db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON approvals BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    async with Tasks(service) as tasks:
        run_id = await tasks.start(task())
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
    assert view.result is not None
    assert view.status == "completed", view.result
    assert "the caller could not be asked to approve this call" in str(view.result.result)
    assert any("Bash is refused" in warning for warning in view.result.warnings)


async def test_what_an_agent_was_told_too_late_is_told_of(harness: Harness) -> None:
    service = harness.service([{"text": "done"}])
    async with Tasks(service) as tasks:
        run_id = await tasks.start(task())
        tasks._looking.cancel()  # nobody carries out orders any more
        assert await service.exchanges.order(run_id, "say", "And the other thing.")
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
    assert view.status == "completed"
    assert view.unheard == ("And the other thing.",)
    said = run_answer(view)
    assert "And the other thing." in str(said.content)
    assert (said.structured_content or {})["unheard"] == ["And the other thing."]


async def test_an_end_that_the_store_would_not_take_is_written_down_later(
    harness: Harness,
) -> None:
    service = harness.service([{"text": "done"}])
    told: list[str] = []
    async with Tasks(service) as tasks:
        run_id = await tasks.start(task(), lambda event: _break(harness.store, event, told))
        with anyio.fail_after(PATIENCE):
            while not service._unkept:
                await anyio.sleep(0.01)
        assert "ended" not in told
        harness.store.database._db.execute("DROP TRIGGER full")
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
    assert view.result is not None
    assert (view.status, view.result.result) == ("completed", "done")
    assert told[-1] == "ended"


def _break(store: Store, event: Event, told: list[str]) -> None:
    told.append(event.kind)
    if event.kind == "text":
        store.database._db.execute(
            "CREATE TRIGGER full BEFORE UPDATE OF ended ON runs "
            "BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )


def _on(condition: bool, event: anyio.Event) -> None:
    if condition:
        event.set()


ASKS: Steps = [
    {"tool": "mcp__parent__ask_parent", "input": {"question": "Which colour?"}},
    {"text": "it is {last_tool_result}"},
]


async def test_an_agent_asks_its_parent_and_finishes_with_the_answer_and_what_it_was_told_meanwhile(
    harness: Harness,
) -> None:
    """The answer to the question may reach the CLI before what was said does: then a turn that has
    not heard it ends first, and the next one, which has, gives the result.
    """
    steps: Steps = [ASKS[0], {"text": "it is {last_tool_result}; {user_texts}", "repeat": True}]
    async with Tasks(harness.service(steps, ask="parent")) as tasks:
        run_id = await tasks.start(task())
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.status == "waiting_parent_reply", view
        (question,) = view.questions
        assert question.question == "Which colour?"
        await tasks.say(run_id, "and be brief", "main")
        (view,) = await tasks.book.wait([run_id], "main", seconds=0)
        assert (view.status, view.questions) == ("waiting_parent_reply", (question,))

        await tasks.book.reply(run_id, question.message_id, "blue", "main")
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.result is not None
        assert (view.status, view.result.result) == ("completed", "it is blue; x; and be brief")
        (kept,) = await tasks.book._exchanges.questions(run_id)
        assert (kept.status, kept.answer) == ("acknowledged_by_subagent", "blue")
        with pytest.raises(RunRefused, match="has ended"):
            await tasks.book.reply(run_id, question.message_id, "red", "main")
        with pytest.raises(RunRefused, match="has asked no question"):
            await tasks.book.reply(run_id, "nonsense", "red", "main")


async def test_a_question_that_nobody_answers_is_answered_by_itself(harness: Harness) -> None:
    asking = {"whom": "parent", "answer_seconds": 0.1}
    async with Tasks(harness.service(ASKS, ask=asking)) as tasks:
        run_id = await tasks.start(task())
        with anyio.fail_after(PATIENCE):
            while not (view := await tasks.book.view(run_id)).result:
                await tasks.book.wait([run_id], "main", seconds=1)
        assert str(view.result.result).startswith("it is No answer came in time.")


async def test_a_tool_call_waits_for_somebodys_word(harness: Harness) -> None:
    two = bash("echo two > f; cat f")
    steps: Steps = [bash("echo one > f"), two, {"text": "{last_tool_result}"}]
    async with Tasks(harness.service(steps, approval="ask")) as tasks:
        run_id = await tasks.start(task())
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.status == "paused", view
        (call,) = view.approvals
        assert (call.tool, call.input["command"]) == ("Bash", "echo one > f")
        await tasks.book.decide(run_id, "main", reject=[call.call_id], message="not that")

        with anyio.fail_after(PATIENCE):
            while not (view := await tasks.book.view(run_id)).approvals:
                await tasks.book.wait([run_id], "main", seconds=1)
        (call,) = view.approvals
        edited = {**call.input, "command": "echo three"}
        await tasks.book.decide(
            run_id, "main", approve=[call.call_id], inputs={call.call_id: edited}
        )
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.result is not None
        assert (view.status, view.result.result) == ("completed", "three")
        with pytest.raises(RunRefused, match="no tool call"):
            await tasks.book.decide(run_id, "main", approve=[call.call_id])


async def test_an_agent_runs_another_one_if_both_authors_say_so(harness: Harness) -> None:
    steps: Steps = [
        {
            "tool": "mcp__parent__run_subagent",
            "input": {"agent_name": "worker", "prompt": "{last_user_text}!"},
        },
        {"text": "{last_tool_result}"},
    ]
    service = harness.service(steps, subagents=["worker"], allowed_callers=["main", "worker"])
    async with Tasks(service) as tasks:
        run_id = await tasks.start(task("go"))
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.result is not None
        assert view.status == "completed", view
        assert "agents run agents 3 deep at most" in str(view.result.result)
        runs = await tasks.book.list()
        by_prompt = {run.prompt: run for run in runs}
        assert set(by_prompt) == {"go", "go!", "go!!", "go!!!"}
        assert by_prompt["go!"].parent_run_id == run_id
        assert by_prompt["go!!"].caller == "worker"


DELEGATES: Steps = [
    {"tool": "mcp__parent__run_subagent", "input": {"agent_name": "worker", "prompt": "child"}},
    {"text": "{last_tool_result}"},
]


async def test_an_agent_that_works_for_another_asks_the_caller_outside_and_its_session_is_not_his(
    harness: Harness, runtime: DockerRuntime
) -> None:
    fields: dict[str, object] = {
        "subagents": ["worker"],
        "allowed_callers": ["main", "worker"],
        "ask": "parent",
        "session": True,
    }
    service = harness.service(DELEGATES, each_task=False, **fields)
    play_in_turn(service, DELEGATES, ASKS)
    async with Tasks(service) as tasks:
        run_id = await tasks.start(task("parent"))
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        (question,) = view.questions
        assert question.run_id != run_id
        await tasks.book.reply(question.run_id, question.message_id, "blue", "main")
        (view,) = await tasks.book.wait([run_id], "main", seconds=PATIENCE)
        assert view.result is not None
        assert view.status == "completed", view
        assert "\nit is blue\n</answer-" in str(view.result.result)

        # The child's session has gone with the run for whose sake it was.
        assert [row.key.caller for row in await harness.sessions.list()] == ["main"]
        assert [info.key for info in await runtime.list()] == [harness.key.kept]
        (child,) = [view.run_id for view in await tasks.book.list() if view.caller == "worker"]
        assert (await tasks.book.view(child, "main")).status == "completed"
        with pytest.raises(RunRefused, match="worked for worker, who alone can go on"):
            await tasks.say(child, "and more", "main")


async def test_what_is_spent_on_others_is_spent(harness: Harness) -> None:
    child: Steps = [bash("true"), {"text": "done", "usage": {"output_tokens": 1_000_000}}]
    service = harness.service(
        DELEGATES,
        subagents=["worker"],
        allowed_callers=["main", "worker"],
        max_budget_usd=1.0,
    )
    play_in_turn(service, DELEGATES, child)
    result = await service.run(task("parent"))
    assert (result.status, result.reason) == ("failed", "budget"), result
