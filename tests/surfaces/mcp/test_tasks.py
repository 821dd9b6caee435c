"""Tasks through MCP clients of both eras: a real engine, the real CLI, a scripted model."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import mcp.types as t
import pytest
from mcp import Client, MCPError
from mcp.shared.exceptions import MCPDeprecationWarning

from orchestrator.containers.lazy_runtime import LazyRuntime
from orchestrator.surfaces.mcp import tasks as mcp_tasks
from tests.surfaces.mcp.mcp_stage import ERAS, FOR_EVER, PATIENCE, call, http_server, on_stage, text
from tests.surfaces.mcp.test_http import TOKEN_ENV, connected
from tests.surfaces.task_stage import ASKS, Document, Serve, Server

pytestmark = pytest.mark.anyio

era = pytest.mark.parametrize("era", ERAS)


# The window


@era
async def test_a_call_that_outlasts_its_window_is_handed_over_and_goes_on(
    serve: Serve, era: str
) -> None:
    async with serve(era, window=0.1) as server:
        agent = server.agent("late", {"text": "at last", "delay_seconds": 1})
        now = await server.call("run_subagent", agent_name=agent, prompt="x")
        assert now["status"] in ("pending", "running")
        run_id = now["run_id"]
        assert now["next"] == (
            f'call wait_for_tasks with task_ids ["{run_id}"]; it goes on meanwhile'
        )
        waited = await call(server.client, "wait_for_tasks", task_ids=run_id)
        assert f'Next: call wait_for_tasks with task_ids ["{run_id}"].' in text(waited)
        (task,) = await server.ended(run_id)
        assert (task["status"], task["result"]) == ("completed", "at last")


async def test_the_window_is_that_of_the_client_and_a_wait_is_never_longer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[tuple[str, float | None, str]] = []

    def window(name: str, override: float | None, version: str) -> float:
        windows.append((name, override, version))
        return 0.1

    monkeypatch.setattr("orchestrator.surfaces.mcp.waiting.window_seconds", window)
    for era in ERAS:
        who = t.Implementation(name=f"claude-code-{era}", version="2.1.325")
        async with serve(era, client_info=who) as server:
            agent = server.agent("slow", FOR_EVER)
            run = await server.call("run_subagent", agent_name=agent, prompt="x")
            found = await server.call("wait_for_tasks", task_ids=[run["run_id"]], timeout=3600)
            assert run["run_id"] in (*found.get("running", ()), *found.get("pending", ()))
            await server.call("cancel_task", task_id=run["run_id"])
    assert set(windows) == {(f"claude-code-{era}", None, "2.1.325") for era in ERAS}


async def test_a_call_does_not_outlast_its_client_before_anything_has_begun(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def building(*_: object) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("orchestrator.surfaces.mcp.waiting.START_SECONDS", 0.1)
    monkeypatch.setattr(LazyRuntime, "agent_image", building)
    async with serve(window=0.1) as server:
        agent = server.agent("early", {"text": "never"})
        code, said = await server.refused("run_subagent", agent_name=agent, prompt="x")
        assert code == "run_refused"
        assert "nothing was started" in said
        assert "Call again in a minute" in said
        assert (await server.call("get_all_tasks"))["tasks"] == []


async def test_a_client_that_stops_waiting_for_a_task_does_not_end_it(
    serve: Serve,
) -> None:
    async with serve() as server:
        agent = server.agent("slow", FOR_EVER)
        run = await server.call("run_subagent", agent_name=agent, prompt="x", background=True)
        waits = anyio.Event()

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            waits.set()

        arguments = {"task_ids": [run["run_id"]]}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orchestrator.surfaces.mcp.waiting.HEARTBEAT_SECONDS", 0.05)
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(
                        partial(
                            server.client.call_tool,
                            *("wait_for_tasks", arguments),
                            progress_callback=tell,
                        )
                    )
                    await waits.wait()
                    group.cancel_scope.cancel()
        now = await server.call("get_task_details", task_id=run["run_id"])
        assert now["status"] in ("pending", "running")
        ended = await server.call("cancel_task", task_id=run["run_id"])
        assert (ended["status"], ended["reason"]) == ("cancelled", "cancelled")


# In the background


async def test_a_task_in_the_background_is_listed_told_of_and_cancelled(
    serve: Serve,
) -> None:
    async with serve() as server:
        agent = server.agent("slow", FOR_EVER)
        run = await server.call("run_subagent", agent_name=agent, prompt="a | b", background=True)
        run_id = run["run_id"]

        listed = await call(server.client, "get_all_tasks")
        assert listed.structured_content is not None
        (task,) = listed.structured_content["tasks"]
        assert (task["run_id"], task["agent"], task["prompt"]) == (run_id, agent, "a | b")
        assert text(listed).splitlines()[0] == (
            "| Task | Status | Agent | Started | Seconds | Prompt |"
        )
        assert text(listed).splitlines()[2].endswith("| a \\| b |")
        assert (await server.call("get_all_tasks", status="completed, failed"))["tasks"] == []
        assert (await server.call("get_all_tasks", agent="another"))["tasks"] == []
        code, said = await server.refused("get_all_tasks", status="gone")
        assert code == "caller_error"
        assert said.startswith("there is no status 'gone'; there are pending, running, paused, ")

        told = await server.call("get_task_details", task_id=run_id)
        assert (told["prompt"], told.get("ended")) == ("a | b", None)
        for _ in range(2):
            ended = await server.call("cancel_task", task_id=run_id)
            assert ended["status"] == "cancelled"
        (task,) = await server.ended(run_id)
        assert task["reason"] == "cancelled"
        under_way = await server.call("get_all_tasks", status="pending, running")
        assert under_way["tasks"] == []


async def test_waiting_for_any_of_several_tells_which_still_run(serve: Serve) -> None:
    async with serve() as server:
        quick, slow = server.agent("quick", {"text": "done"}), server.agent("slow", FOR_EVER)
        runs = [
            (await server.call("run_subagent", agent_name=name, prompt="x", background=True))
            for name in (quick, slow)
        ]
        first, second = (run["run_id"] for run in runs)
        found = await server.call(
            "wait_for_tasks", task_ids=f"{first} {second}", until="any", timeout=PATIENCE
        )
        assert [*found.get("running", ()), *found.get("pending", ())] == [second]
        assert found["next"] == f'call wait_for_tasks with task_ids ["{second}"]'
        assert found["tasks"][0]["status"] == "completed"
        await server.call("cancel_task", task_id=second)


async def test_a_log_is_read_piece_by_piece(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tasks, "LOG_PAGE_EVENTS", 2)
    async with serve() as server:
        agent = server.agent("quick", {"text": "done"})
        run = await server.call("run_subagent", agent_name=agent, prompt="x")
        events: list[Document] = []
        cursor, more = 0, True
        while more:
            piece = await server.call("get_logs", run_id=run["run_id"], cursor=cursor)
            assert len(piece["events"]) <= 2
            assert piece["status"] == "completed"
            events += piece["events"]
            cursor, more = piece["cursor"], piece["more"]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert (events[0]["kind"], events[-1]["kind"]) == ("queued", "ended")
        rest = await call(server.client, "get_logs", run_id=run["run_id"], cursor=cursor)
        assert text(rest) == f"(nothing new, completed, cursor {cursor})"


async def test_arguments_that_nobody_understands_are_refused(serve: Serve) -> None:
    async with serve() as server:
        wrong: dict[str, Document] = {
            "get_logs": {"run_id": "r1", "lines": 3},
            "wait_for_tasks": {"task_ids": ["r1"], "until": "some"},
            "run_subagents": {"tasks": [{"agent": "x", "prompt": "y"}]},
            "resume_subagent_task": {"task_id": "r1", "approved": ["x"]},
        }
        for tool, arguments in wrong.items():
            assert (await call(server.client, tool, **arguments)).is_error, tool
        assert await server.refused("wait_for_tasks", task_ids=" ") == (
            "caller_error",
            "task_ids is empty; give the ids of tasks, such as get_all_tasks lists",
        )
        nothing = {"status": None, "agent": None, "limit": None}
        assert (await server.call("get_all_tasks", **nothing))["tasks"] == []


# Several at once


async def test_tasks_of_a_batch_follow_those_that_they_depend_on(serve: Serve) -> None:
    async with serve() as server:
        agent = server.agent("echo", {"text": "{last_user_text}"})
        found = await server.call(
            "run_subagents",
            tasks=[
                {"agent_name": agent, "prompt": "last", "depends_on": ["first", "other"]},
                {"agent_name": agent, "prompt": "first", "id": "first"},
                {"agent_name": agent, "prompt": "other", "id": "other", "context": None},
            ],
        )
        assert [task["result"] for task in found["tasks"]] == ["last", "first", "other"]
        assert list(found["ids"]) == ["1", "first", "other"]
        told = [
            await server.call("get_task_details", task_id=run_id)
            for run_id in found["ids"].values()
        ]
        log = await server.call("get_logs", run_id=found["ids"]["1"])
        assert log["events"][1]["at"] >= max(told[1]["ended"], told[2]["ended"])


async def test_a_batch_that_cannot_be_is_refused_and_nothing_of_it_begins(
    serve: Serve,
) -> None:
    async with serve() as server:
        agent = server.agent("echo", {"text": "{last_user_text}"})

        async def refused(*tasks: Document) -> str:
            filled = [{"agent_name": agent, "prompt": "x", **task} for task in tasks]
            _, said = await server.refused("run_subagents", tasks=filled)
            return str(said)

        said = await refused({"id": "a", "depends_on": ["b"]}, {"id": "b", "depends_on": ["a"]})
        assert said.startswith("these tasks wait for each other: ")
        said = await refused({"id": "a", "depends_on": ["c"]})
        assert said == "task 'a' depends on 'c', which is not in this call; known: a"
        said = await refused({"id": "a"}, {"id": "a"})
        assert said == "id 'a' is there more than once; give each task its own"
        said = await refused({"id": "a"}, {"agent_name": "nobody", "depends_on": ["a"]})
        assert said.startswith("no agent 'nobody'; known: ")
        assert (await server.call("get_all_tasks"))["tasks"] == []

        said = await refused({"id": "a"}, {"session": "s", "depends_on": ["a"]})
        assert "has no sessions" in said
        (begun,) = (await server.call("get_all_tasks"))["tasks"]
        assert begun["status"] == "cancelled"


# Other processes, other callers


async def test_a_server_on_pipes_hands_over_what_outlasts_the_window(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("late", {"text": "at last", "delay_seconds": 1})
        async with Client(stage.server(ORCHESTRATOR_WINDOW_SECONDS="0.1")) as client:
            server = Server(stage, client, "main")
            now = await server.call("run_subagent", agent_name="late", prompt="x")
            assert now["status"] in ("pending", "running")
            (task,) = await server.ended(now["run_id"])
            assert task["result"] == "at last"
            slow = await server.call("run_subagent", agent_name="late", prompt="x")
            assert slow["next"].startswith("call wait_for_tasks")
        assert {status for _, status, _ in stage.runs()} == {"completed", "cancelled"}


async def test_callers_at_one_server_see_no_runs_but_their_own(tmp_path: Path, image: str) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("asks", *ASKS, ask="parent")
        async with (
            http_server(stage, **TOKEN_ENV) as (_, url),
            connected(url, ERAS[0]) as mine,
            connected(url, ERAS[0], "other") as theirs,
            connected(url, ERAS[1], "other") as theirs_too,
        ):
            main, other = Server(stage, mine, "main"), Server(stage, theirs, "other")
            run = await main.call("run_subagent", agent_name="asks", prompt="x")
            run_id, message_id = run["run_id"], run["questions"][0]["message_id"]
            calls: dict[str, Document] = {
                "get_task_details": {"task_id": run_id},
                "wait_for_tasks": {"task_ids": [run_id]},
                "get_logs": {"run_id": run_id},
                "cancel_task": {"task_id": run_id},
                "reply_subagent": {"run_id": run_id, "message_id": message_id, "answer": "mine"},
                "resume_subagent_task": {"task_id": run_id, "input": "obey me"},
                "apply_changes": {"run_id": run_id},
            }
            for tool, arguments in calls.items():
                code, _ = await other.refused(tool, **arguments)
                assert code == "run_not_found", tool
            assert (await other.call("get_all_tasks"))["tasks"] == []
            assert (await theirs.list_resources()).resources == []
            uri = f"orchestrator://runs/{run_id}"
            for each in (uri, f"{uri}/logs"):
                with pytest.raises(MCPError, match="there is no run"):
                    await theirs.read_resource(each)
            for era, client in zip(ERAS, (theirs, theirs_too), strict=True):
                with pytest.raises(MCPError, match="there is no run"):
                    await _subscribe(client, era, uri)
            assert len((await mine.list_resources()).resources) == 2
            answer = {"run_id": run_id, "message_id": message_id, "answer": "blue"}
            done = await main.call("reply_subagent", **answer, wait=True)
            assert done["result"] == "it is blue"


async def _subscribe(client: Client, era: str, uri: str) -> None:
    if era == "legacy":
        with pytest.warns(MCPDeprecationWarning):
            await client.subscribe_resource(uri)
        return
    async with client.listen(resource_subscriptions=[uri]):
        pass
