"""Sessions, by a client that knows only the document that describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.task import Task
from orchestrator.errors import NameTaken, ThreadRefused
from orchestrator.store.session_rows import SessionKey
from orchestrator.surfaces.http.sessions_facade.run_ids import our_run_id, run_uuid
from tests.surfaces.http.api_stage import PATIENCE, ApiStage, on_api_stage
from tests.surfaces.http.session_client import SessionClient

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiStage]:
    async with on_session_stage(tmp_path_factory.mktemp("api")) as stage:
        yield stage


@asynccontextmanager
async def on_session_stage(folder: Path) -> AsyncIterator[ApiStage]:
    async with on_api_stage(folder, template="template") as stage:
        stage.add_agent(
            "template",
            permissions={"allow": ["Bash", "Read"]},
            allowed_callers=["main", "other"],
            model="haiku",
        )

        async def keep() -> None:  # what happens in runs, as their writers do
            while True:
                for live in tuple(stage.service.live.values()):
                    await live.record.flush()
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            group.start_soon(keep)
            yield stage
            group.cancel_scope.cancel()


@asynccontextmanager
async def session_client(stage: ApiStage, caller: str = "main") -> AsyncIterator[SessionClient]:
    async with stage.client(caller) as http:
        yield SessionClient(http)


async def at_work(stage: ApiStage, run: str) -> str:
    """Our id of a run whose agent is at work."""
    run_id = our_run_id(run)
    with anyio.fail_after(PATIENCE):
        while run_id not in stage.service.live:
            await anyio.sleep(0.005)
    return run_id


async def propose(stage: ApiStage, run_id: str, call_id: str = "c1") -> None:
    async def approve() -> None:
        await stage.service.live[run_id].desk.approve(call_id, "Bash", {"command": "ls"})

    stage.service.do(run_id, approve)


def test_ids_of_runs_are_uuids_and_come_back() -> None:
    assert run_uuid("r0123456789") == "00000000-0000-8000-8000-000123456789"
    assert our_run_id("00000000-0000-8000-8000-000123456789") == "r0123456789"
    assert our_run_id("r0123456789") == "r0123456789"
    assert our_run_id("6f1c1c1e-0000-4000-8000-000123456789").startswith("6f")


async def test_create_run_propose_decide_steer_follow_up_cancel(stage: ApiStage) -> None:
    async with session_client(stage) as client:
        session = await client.create(cwd="/srv/work")
        assert await client.state(session) == "idle"
        run = await client.send(session, "Look.", max_steps=7, allowed_tools=["Bash(ls:*)"])
        run_id = await at_work(stage, run)
        task = stage.service.live[run_id].prepared.task
        assert task.wish is not None
        assert (task.agent, task.prompt, task.caller) == ("template", "Look.", "main")
        assert (str(task.workspace), task.wish.tools) == ("/srv/work", ("Bash(ls:*)",))
        assert (task.wish.max_steps, task.wish.sandboxed) == (7, False)
        assert await client.state(session) == "running"

        async with client.events(session) as events:
            await events.until("RunStarted")
            await propose(stage, run_id)
            said = await events.until("ToolCallsProposed")
            (call,) = said["tool_calls"]
            assert call == {"id": "c1", "name": "Bash", "arguments": {"command": "ls"}}
            assert await client.pending(session) == [call]
            await client.decide(session, run, c1={"action": "accept"})
            assert (await events.until("ToolExecutionStarted"))["tool_call_id"] == "c1"
            assert await client.pending(session) == []
            assert await client.send(session, "Be brief.", type="steering", run_id=run) == run
            with anyio.fail_after(PATIENCE):
                while stage.service.heard[run_id].heard != ["Be brief."]:
                    await anyio.sleep(0.005)
            await stage.note(run_id, "It is there.")
            assert (await events.until("TextDelta"))["delta"] == "It is there."
            await stage.ended(run_id, "It is there.")
            done = await events.until("RunCompleted", "RunError")
            assert (done["run_id"], done["stop_reason"]) == (run, "completed")
            assert events.names == [
                *("RunStarted", "TurnStarted", "ToolCallsProposed", "WaitingForToolApproval"),
                *("ToolExecutionStarted", "TextDelta", "TextComplete", "TurnCompleted"),
                "RunCompleted",
            ]
            assert await client.state(session) == "idle"

            # The next one knows what was said before, and the same stream goes on with it.
            again = await client.send(session, "And then?", type="follow_up", run_id=run)
            assert again != run
            assert (await events.until("RunStarted"))["run_id"] == again
            next_id = await at_work(stage, again)
            known = stage.service.live[next_id].prepared.task
            assert (known.parent_run_id, "It is there." in known.context) == (run_id, True)
            answer = await client.call("POST", f"sessions/{session}/cancel", {"run_id": again})
            assert answer == {"cancelled": True, "run_id": again}
            assert (await events.until("RunCompleted"))["stop_reason"] == "cancelled"
        assert await client.state(session) == "idle"
        history = await client.call("GET", f"sessions/{session}/messages")
        assert [(each["role"], each["content"]) for each in history["messages"]] == [
            ("user", "Look."),
            ("user", "Be brief."),
            ("assistant", "It is there."),
            ("user", "And then?"),
        ]
        assert history["total"] == 4
        part = await client.call("GET", f"sessions/{session}/messages?limit=1&offset=2")
        assert (len(part["messages"]), part["total"]) == (1, 4)


async def test_a_stale_command_reaches_no_other_run(stage: ApiStage) -> None:
    async with session_client(stage) as client:
        session = await client.create()
        path, text = f"sessions/{session}", {"message": {"role": "user", "content": "go"}}
        other = "00000000-0000-8000-8000-000000000000"
        steer = {**text, "type": "steering", "run_id": other}
        assert await client.refused("POST", f"{path}/messages", steer) == (
            *(409, "session_not_running"),
        )
        run = await client.send(session, "go")
        run_id = await at_work(stage, run)
        await propose(stage, run_id)
        for where, body in (
            ("messages", steer),
            ("messages", {**steer, "type": "follow_up"}),
            ("messages", {**text, "run_id": other}),
            ("messages", {**text, "type": "steering"}),
            ("tools/decisions", {"run_id": other, "decisions": {"c1": {"action": "accept"}}}),
            ("tools/c1/decision", {"run_id": other, "action": "accept"}),
            ("cancel", {"run_id": other}),
            ("model", {"run_id": other, "model": "haiku"}),
        ):
            assert await client.refused("POST", f"{path}/{where}", body) == (409, "run_mismatch")
        busy = await client.refused("POST", f"{path}/messages", text)
        assert busy == (409, "session_already_running")
        unknown = await client.refused(
            "POST", f"{path}/messages", {**text, "message": {"role": "assistant", "content": "x"}}
        )
        assert unknown == (400, "invalid_message_role")
        model = await client.refused("POST", f"{path}/model", {"run_id": run, "model": "opus"})
        assert model == (400, "invalid_model")
        bare = {"run_id": run, "decisions": {"c1": {"action": "custom_result"}}}
        assert (await client.refused("POST", f"{path}/tools/decisions", bare))[0] == 400
        assert [each["id"] for each in await client.pending(session)] == ["c1"]
        body = {"run_id": run, "action": "custom_result", "content": "two files"}
        await client.call("POST", f"{path}/tools/c1/decision", body)
        (decided,) = await stage.service.exchanges.approvals(run_id)
        assert (decided.decision, decided.message) == ("rejected", "two files")
        await client.call("DELETE", path)
        assert await client.refused("GET", path) == (404, "not_found")
        assert (await stage.tasks.book.view(run_id)).status == "cancelled"


async def test_what_a_person_has_to_allow_no_client_allows(stage: ApiStage) -> None:
    async with session_client(stage) as client:
        session = await client.create()
        run = await client.send(session, "go", auto_approve=True)
        run_id = await at_work(stage, run)
        await propose(stage, run_id)
        with anyio.fail_after(PATIENCE):
            while not await client.pending(session):
                await anyio.sleep(0.005)
        await stage.store.database.write(
            "UPDATE approvals SET approval_by = 'user' WHERE run_id = ?", run_id
        )
        body = {"run_id": run, "decisions": {"c1": {"action": "accept"}}}
        refused = await client.refused("POST", f"sessions/{session}/tools/decisions", body)
        assert refused == (409, "run_refused")
        await client.call("POST", f"sessions/{session}/cancel", {"run_id": run})


async def test_a_question_is_answered_with_a_custom_result(stage: ApiStage) -> None:
    async with session_client(stage) as client:
        session = await client.create()
        run = await client.send(session, "go")
        run_id = await at_work(stage, run)
        heard: list[str] = []

        async def ask() -> None:
            heard.append(str(await stage.service.live[run_id].desk.ask("Which?")))

        stage.service.do(run_id, ask)
        async with client.events(session) as events:
            (call,) = (await events.until("ToolCallsProposed"))["tool_calls"]
            assert (call["name"], call["arguments"]["question"]) == ("ask_parent", "Which?")
            made = {call["id"]: {"action": "custom_result", "content": "This one."}}
            await client.decide(session, run, **made)
            with anyio.fail_after(PATIENCE):
                while "This one." not in "".join(heard):
                    await anyio.sleep(0.005)
        await client.call("POST", f"sessions/{session}/cancel", {"run_id": run})


async def test_who_reads_on_gets_the_rest_and_who_begins_only_what_is_open(
    stage: ApiStage,
) -> None:
    async with session_client(stage) as client:
        session = await client.create()
        run = await client.send(session, "go")
        run_id = await at_work(stage, run)
        async with client.events(session) as events:
            await stage.note(run_id, "one")
            await events.until("TextComplete")
            last = events.last_id
        await propose(stage, run_id)
        with anyio.fail_after(PATIENCE):
            while not await client.pending(session):
                await anyio.sleep(0.005)
        await client.decide(session, run, c1={"action": "reject"})
        async with client.events(session, last) as events:
            await events.until("ToolRejected")
            assert events.names == ["ToolCallsProposed", "WaitingForToolApproval", "ToolRejected"]
        async with client.events(session) as events:
            await events.until("ToolRejected")
            assert "ToolCallsProposed" not in events.names
            assert events.names[:2] == ["RunStarted", "TurnStarted"]
        async with client.events(session, "999999999") as events:
            name, said = await events.next()
            assert (name, said["resume_hint"]) == ("gap_detected", "refresh_snapshot_then_resume")
        await stage.ended(run_id)


async def test_sessions_are_listed_by_parent_and_private(stage: ApiStage) -> None:
    async with session_client(stage) as client, session_client(stage, "other") as other:
        parent = await client.create("a parent")
        child = await client.create("a child", parent_session_id=parent)
        found = await client.call("GET", f"sessions?parent_session_id={parent}")
        assert [each["id"] for each in found["sessions"]] == [child]
        assert (found["total"], found["sessions"][0]["parent_session_id"]) == (1, parent)
        assert (await client.call("GET", "sessions?limit=1"))["total"] > 1
        assert (await client.call("GET", "sessions?search=a%20child"))["total"] == 1
        assert (await other.call("GET", "sessions"))["sessions"] == []
        for path in (f"sessions/{parent}", f"sessions/{parent}/events"):
            assert await other.refused("GET", path) == (404, "not_found")
        stolen = {"title": "x", "parent_session_id": parent}
        assert await other.refused("POST", "sessions", stolen) == (404, "not_found")
        titled = await client.call("PATCH", f"sessions/{child}", {"title": "renamed"})
        assert titled["session"]["title"] == "renamed"
        assert titled["config"] == {
            "default_model": "anthropic/haiku",
            "auto_approve_mode": "custom",
        }
        (model,) = (await client.call("GET", "models"))["models"]
        assert (model["id"], model["provider"]) == ("haiku", "anthropic")


async def test_of_equal_messages_at_once_one_begins_a_run(stage: ApiStage) -> None:
    async with stage.client() as http:
        client = SessionClient(http)
        session = await client.create()
        path = f"/v1/sessions/{session}/messages"
        body = {"message": {"role": "user", "content": "go"}}
        answers = []

        async def post() -> None:
            answers.append(await http.post(path, json=body))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(post)
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200, *[409] * 9]
        (run,) = (answer.json()["run_id"] for answer in answers if answer.status_code == 200)
        await stage.ended(await at_work(stage, run))
        key = {"Idempotency-Key": "once"}
        first, second = [await http.post(path, json=body, headers=key) for _ in range(2)]
        assert first.json() == second.json() != {"run_id": run}
        assert second.headers["idempotency-replayed"] == "true"
        await stage.ended(await at_work(stage, first.json()["run_id"]))


async def test_the_store_takes_one_run_of_a_session_at_a_time(stage: ApiStage) -> None:
    async with session_client(stage) as client:
        session = await client.create()
        task = Task(agent="template", prompt="go", thread=session)
        await stage.store.add_run(task)
        second = Task(agent="template", prompt="go", thread=session)
        with pytest.raises(ThreadRefused, match=f"run {task.run_id} of this session is under way"):
            await stage.store.add_run(second)
        await stage.store.remove([task.run_id])
        await client.call("DELETE", f"sessions/{session}")
        with pytest.raises(ThreadRefused, match="was deleted"):
            await stage.store.add_run(second)


async def test_the_stream_of_a_deleted_session_ends(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.surfaces.http.routes.events.COMMENT_SECONDS", 0.02)
    async with session_client(stage) as client, session_client(stage) as second:
        session = await client.create()
        async with client.events(session) as events:
            await second.call("DELETE", f"sessions/{session}")
            with pytest.raises(EOFError):
                await events.next()


async def test_of_too_many_sessions_the_oldest_go(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.threads.MAX_THREADS", 2)
    async with session_client(stage, "other") as client:
        made = [await client.create(title) for title in ("one", "two", "three")]
        left = (await client.call("GET", "sessions"))["sessions"]
        assert [each["id"] for each in left] == made[:0:-1]


async def test_sessions_survive_the_server(tmp_path: Path) -> None:
    async with on_session_stage(tmp_path) as stage, session_client(stage) as client:
        session = await client.create("kept")
        run = await client.send(session, "go")
        run_id = await at_work(stage, run)
        async with client.events(session) as events:
            await stage.note(run_id, "before")
            await events.until("TextComplete")
            last = events.last_id
        await stage.ended(run_id, "done")
    async with on_session_stage(tmp_path) as stage, session_client(stage) as client:
        (found,) = (await client.call("GET", "sessions"))["sessions"]
        assert (found["id"], found["title"]) == (session, "kept")
        async with client.events(session, last) as events:
            await events.until("RunCompleted")
            assert events.names == ["TurnCompleted", "RunCompleted"]
        again = await client.send(session, "more")
        assert "done" in stage.service.live[await at_work(stage, again)].prepared.task.context
        await stage.ended(our_run_id(again))


async def test_without_a_template_there_are_no_sessions(tmp_path: Path) -> None:
    async with on_api_stage(tmp_path) as stage, session_client(stage) as client:
        refused = await client.refused("POST", "sessions", {"title": "x"})
        assert refused == (403, "sessions_not_offered")


async def test_a_session_whose_run_takes_long_to_end_can_be_deleted_again(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []

    async def remove(key: SessionKey) -> bool:
        removed.append(key.name)
        if len(removed) == 1:
            raise NameTaken("its run has not ended yet")
        return True

    monkeypatch.setattr(stage.service.sessions, "remove", remove)
    async with session_client(stage) as client:
        session = await client.create()
        run_id = await at_work(stage, await client.send(session, "go"))
        await stage.store.database.write(
            "UPDATE runs SET task = json_set(task, '$.session', 'kept') WHERE run_id = ?", run_id
        )
        path = f"sessions/{session}"
        assert (await client.refused("DELETE", path))[0] == 409
        await client.call("DELETE", path)
        assert await client.refused("GET", path) == (404, "not_found")
    assert set(removed) == {"kept"}
