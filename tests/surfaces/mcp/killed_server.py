"""A server that is killed in the middle of its tasks, and a client that remembers what it was told.

Whatever a server has answered must still be true of the next one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import mcp.types as t
from mcp import Client, MCPError, StdioServerParameters

from orchestrator.domain.result import FINAL
from tests.surfaces.mcp.mcp_stage import COMMAND, FOR_EVER, PATIENCE, Stage, text
from tests.surfaces.task_stage import ASKS, Document, bash

AT_ONCE = 2
"""Scenarios that are under way when the server is killed."""

FIRST_SECONDS = 6.0
"""What scenarios are thought to take, before it is known."""

LONGER = 1.1
"""The factor by which a server that was killed in time lets the next one live longer."""

LOST = "orchestrator_lost"

AT_WORK = "tail -f /dev/null"
"""A command that does not end by itself."""


class Killed(Exception):
    """The server is gone: what was asked last has no answer."""


@dataclass
class Memory:
    """What servers have answered, of all their lives."""

    runs: dict[str, str] = field(default_factory=dict)
    """Agents of the runs that were accepted."""
    ends: dict[str, Document] = field(default_factory=dict)
    answers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Question -> run and answer that were taken."""
    decisions: dict[tuple[str, str], str] = field(default_factory=dict)
    """Run and tool call -> what was decided."""
    words: set[tuple[str, str]] = field(default_factory=set)
    """Run and what it was to be told."""
    cancelled: set[str] = field(default_factory=set)

    def see(self, document: Document) -> None:
        """Every answer about a run counts."""
        for told in document.get("tasks", [document]):
            self.runs[told["run_id"]] = told["agent"]
            if told["status"] in FINAL:
                self.ends.setdefault(told["run_id"], told)


class Caller:
    """A client of one server, until that is killed."""

    def __init__(self, client: Client, memory: Memory, ponders_seconds: float = 0.0) -> None:
        self._client = client
        self.memory = memory
        self._ponders_seconds = ponders_seconds

    async def ponder(self) -> None:
        """Take some time before an answer, so that a server is often killed while it is awaited."""
        await anyio.sleep(random.uniform(0, self._ponders_seconds))

    async def call(self, tool: str, **arguments: object) -> Document:
        """What is answered, and remembered."""
        document = await self.look(tool, **arguments)
        self.memory.see(document)
        return document

    async def look(self, tool: str, **arguments: object) -> Document:
        """The same, for what somebody only looks at."""
        try:
            with anyio.fail_after(PATIENCE):
                result = await self._client.call_tool(tool, arguments)
        except (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            raise Killed from exc
        assert isinstance(result, t.CallToolResult)
        document: Document | None = result.structured_content
        assert document is not None, result
        assert "error" not in document, text(result)
        return document

    async def ended(self, run_id: str) -> Document:
        while True:
            found = await self.call("wait_for_tasks", task_ids=[run_id])
            if "next" not in found:
                (task,) = found["tasks"]
                return dict(task)


# What goes on when the server is killed

Scenario = Callable[[Caller], Awaitable[None]]


async def asking(caller: Caller) -> None:
    """A question, its answer, and what comes of it."""
    run = await caller.call("run_subagent", agent_name="asks", prompt="x")
    run_id, message_id = run["run_id"], run["questions"][0]["message_id"]
    answer = f"blue {run_id}"
    await caller.ponder()
    reply = {"run_id": run_id, "message_id": message_id, "answer": answer}
    await caller.call("reply_subagent", **reply)
    caller.memory.answers[message_id] = run_id, answer
    done = await caller.ended(run_id)
    assert done["result"] == f"it is {answer}"


async def approving(caller: Caller) -> None:
    """A tool call that is denied, another that is allowed with other input."""
    run = await caller.call("run_subagent", agent_name="careful", prompt="x")
    task = {"task_id": run["run_id"]}
    call_id = run["pending_tool_calls"][0]["call_id"]
    await caller.ponder()
    now = await caller.call("resume_subagent_task", **task, reject=[call_id], wait=True)
    caller.memory.decisions[run["run_id"], call_id] = "rejected"
    call_id = now["pending_tool_calls"][0]["call_id"]
    edited = {call_id: {"command": "echo three"}}
    await caller.ponder()
    await caller.call("resume_subagent_task", **task, edited_input=edited)
    caller.memory.decisions[run["run_id"], call_id] = "approved"
    done = await caller.ended(run["run_id"])
    assert done["result"] == "three"


async def steering(caller: Caller) -> None:
    """One in the background that is told something else."""
    run = await caller.call("run_subagent", agent_name="works", prompt="x", background=True)
    run_id = run["run_id"]
    while "tool_call" not in await kinds(caller, run_id):
        await anyio.sleep(0.05)
    await caller.call("resume_subagent_task", task_id=run_id, input="Leave that.", now=True)
    caller.memory.words.add((run_id, "Leave that."))
    done = await caller.ended(run_id)
    assert done["result"] == "heard Leave that."


async def cancelling(caller: Caller) -> None:
    """Two, the second after the first, which never ends by itself."""
    tasks = [
        {"agent_name": "waits", "prompt": "x", "id": "first"},
        {"agent_name": "asks", "prompt": "x", "depends_on": ["first"]},
    ]
    runs = await caller.call("run_subagents", tasks=tasks, background=True)
    first, second = (task["run_id"] for task in runs["tasks"])
    await caller.call("wait_for_tasks", task_ids=[first, second], timeout=random.random())
    ended = await caller.call("cancel_task", task_id=first)
    caller.memory.cancelled.add(first)
    assert ended["status"] == "cancelled"
    done = await caller.ended(second)
    assert done["reason"] == "dependency_failed"


SCENARIOS: tuple[Scenario, ...] = (asking, approving, steering, cancelling)


def add_agents(stage: Stage) -> None:
    allowed = {"permissions": {"allow": ["Bash"]}}
    last = {"text": "{last_tool_result}"}
    approval = {"approval": {"Bash": "ask"}}
    stage.add_agent("asks", *ASKS, ask="parent")
    stage.add_agent("careful", bash("echo one"), bash("echo two"), last, **approval, **allowed)
    stage.add_agent("works", bash(AT_WORK), {"text": "heard {last_user_text}"}, **allowed)
    stage.add_agent("waits", FOR_EVER)


async def kinds(caller: Caller, run_id: str) -> set[str]:
    log = await caller.look("get_logs", run_id=run_id)
    return {event["kind"] for event in log["events"]}


# Life and death of servers


class Lives:
    """One server after the other on one state directory; each is killed, the next is examined."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        scenarios: tuple[Scenario, ...] = SCENARIOS,
        ponders_seconds: float = 0.0,
    ) -> None:
        self._stage = stage
        self._scenarios = scenarios
        self._ponders_seconds = ponders_seconds
        self._random = random.Random(seed)
        self._seconds = FIRST_SECONDS
        self.memory = Memory()
        self.never_started = 0
        """Containers that had been made and not started."""
        self.points: Counter[str] = Counter()
        """What had happened last in runs that were cut off."""
        self.survived: Counter[str] = Counter()
        """Runs that waited for a word, and went on with it, by agent."""

    def told(self) -> str:
        """How much was acknowledged so far."""
        memory = self.memory
        return (
            f"{len(memory.runs)} runs accepted, {sum(self.points.values())} cut off, "
            f"{len(memory.ends)} ends told, {len(memory.answers)} answers, "
            f"{len(memory.decisions)} decisions and {len(memory.words)} words taken, "
            f"{self.never_started} containers never started, "
            f"{dict(self.survived)} waited and went on"
        )

    async def live_and_die(self) -> None:
        """Scenarios on a new server, which is killed at some point; and what is true then."""
        seconds = self._random.uniform(0, self._seconds)
        over = anyio.Event()
        async with open_server(self._stage) as (client, pid):
            began = anyio.current_time()
            async with anyio.create_task_group() as group:
                caller = Caller(client, self.memory, self._ponders_seconds)
                group.start_soon(self._play, caller, over)
                with anyio.move_on_after(seconds):
                    await over.wait()
                in_time = not over.is_set()
                os.kill(pid, signal.SIGKILL)
            self._seconds = self._seconds * LONGER if in_time else anyio.current_time() - began
        await self._examine()

    async def _play(self, caller: Caller, over: anyio.Event) -> None:
        async def until_killed(scenario: Scenario) -> None:
            with suppress(Killed):
                await scenario(caller)

        async with anyio.create_task_group() as group:
            for scenario in self._random.sample(self._scenarios, AT_ONCE):
                group.start_soon(until_killed, scenario)
        over.set()

    async def _examine(self) -> None:
        before, waiting = self._runs(), self._waiting()
        async with open_server(self._stage) as (client, _):
            caller = Caller(client, self.memory)
            now = {run["run_id"]: run for run in await self._listed(caller)}
            cut_off = {run_id for run_id, run in before.items() if run["status"] not in FINAL}
            assert {run_id for run_id in cut_off if now[run_id]["reason"] != LOST} <= waiting
            for run_id in sorted(cut_off & waiting):
                await self._survives(caller, run_id)
            assert {run["status"] for run in await self._listed(caller)} <= FINAL
            after = self._runs()
            self._compare(before, after, waiting)
            self._recall(after)
            self._nothing_is_said_twice()
            for run_id, told in list(self.memory.ends.items())[-10:]:
                kept = await caller.look("get_task_details", task_id=run_id)
                assert {key: kept[key] for key in told} == told
            await self._no_container_is_left()

    async def _listed(self, caller: Caller) -> list[Document]:
        tasks: list[Document] = (await caller.look("get_all_tasks", limit=200))["tasks"]
        return [{"reason": "", **task} for task in tasks]

    async def _survives(self, caller: Caller, run_id: str) -> None:
        """Answer whatever a run asks, until it has ended as if nobody had killed its server."""
        while (now := await caller.call("get_task_details", task_id=run_id))["status"] not in FINAL:
            for asked in now.get("questions", ()):
                answer = f"blue {run_id}"
                reply = {"run_id": run_id, "message_id": asked["message_id"], "answer": answer}
                await caller.call("reply_subagent", **reply)
                self.memory.answers[asked["message_id"]] = run_id, answer
            for call in now.get("pending_tool_calls", ()):
                edited = {call["call_id"]: {"command": "echo three"}}
                task = {"task_id": run_id, "edited_input": edited}
                await caller.call("resume_subagent_task", **task)
                self.memory.decisions[run_id, call["call_id"]] = "approved"
            await anyio.sleep(0.05)
        assert now["status"] == "completed", now
        wanted = f"it is blue {run_id}" if now["agent"] == "asks" else "three"
        assert now["result"] == wanted
        self.survived[now["agent"]] += 1

    def _waiting(self) -> set[str]:
        """The runs that have to survive: a word is awaited, or is given and not heard."""
        found = self._rows(
            "SELECT run_id FROM questions "
            "WHERE status IN ('pending_parent_reply', 'parent_replied') "
            "UNION SELECT run_id FROM approvals WHERE told IS NULL"
        )
        return {run_id for (run_id,) in found}

    def _nothing_is_said_twice(self) -> None:
        """Each answer and each decision has one row of the audit, and each question one run."""
        for act, table, column in (
            ("answer", "questions WHERE answered_by = 'caller'", "message_id"),
            ("approve", "approvals WHERE whom != ''", "call_id"),
        ):
            # The subject begins with the id of the question or the call.
            sql = (
                "SELECT run_id, substr(subject || ' ', 1, instr(subject || ' ', ' ') - 1) "
                "FROM audit WHERE allowed AND act = ?"
            )
            let = Counter(self._rows(sql, act))
            given = Counter(self._rows(f"SELECT run_id, {column} FROM {table}"))
            if act == "approve":  # a call that is refused is a row as well, of what is not allowed
                let += Counter(self._rows(sql.replace("WHERE allowed", "WHERE NOT allowed"), act))
            # One more, if a server was killed after it had written that down, and before it acted.
            assert not given - let
            assert all(count == 1 for count in given.values())
        asked = self._rows("SELECT run_id, question FROM questions WHERE status != 'unanswered'")
        assert len(asked) == len(set(asked)), "somebody was asked twice"

    async def _no_container_is_left(self) -> None:
        """One whose server died between making and starting it is removed by the first server that
        needs the engine, which this one did not; all others are gone by themselves.
        """
        runtime = self._stage.runtime
        assert runtime is not None
        with anyio.fail_after(PATIENCE):
            while any(info.status != "created" for info in await runtime.list()):
                await anyio.sleep(0.05)
        self.never_started += len(await runtime.reap())
        assert await runtime.list() == ()

    def _compare(
        self, before: dict[str, Document], after: dict[str, Document], waiting: set[str]
    ) -> None:
        """Ends stay as they were; what had not ended and did not wait for a word is lost, and says
        so with all that is kept.
        """
        assert set(before) == set(after)
        for run_id, run in before.items():
            if run["status"] in FINAL:
                assert after[run_id] == run
                continue
            lost = after[run_id]
            self.points[run["events"][-1]["kind"] if run["events"] else "nothing"] += 1
            if run_id in waiting:
                assert lost["events"][: len(run["events"])] == run["events"], "an event is lost"
                continue
            assert (lost["status"], lost["reason"]) == ("failed", "orchestrator_lost")
            *kept, last = lost["events"]
            assert kept == run["events"], "an event is lost"
            assert last["data"] == {"status": "failed", "reason": "orchestrator_lost"}
            requests = [each for each in kept if each["kind"] == "model_request"]
            assert lost["result"]["usage"]["requests"] == len(requests)
        for run in after.values():
            kinds = [event["kind"] for event in run["events"]]
            assert [event["seq"] for event in run["events"]] == list(range(1, len(kinds) + 1))
            assert kinds.count("ended") == 1
            assert kinds[-1] == "ended"
            end = {"status": run["status"], "reason": run["reason"]}
            assert run["events"][-1]["data"] == end
            assert {key: run["result"][key] for key in end} == end

    def _recall(self, runs: dict[str, Document]) -> None:
        """Whatever was acknowledged to the client is in the store."""
        memory = self.memory
        assert {run_id: runs[run_id]["agent"] for run_id in memory.runs} == memory.runs
        assert all(runs[run_id]["status"] == "cancelled" for run_id in memory.cancelled)
        answers = {
            message: (run_id, answer)
            for message, run_id, answer in self._rows(
                "SELECT message_id, run_id, answer FROM questions WHERE status != ?",
                "pending_parent_reply",
            )
        }
        assert {message: answers.get(message) for message in memory.answers} == memory.answers
        decisions = {
            (run_id, call): decision
            for run_id, call, decision in self._rows(
                "SELECT run_id, call_id, decision FROM approvals"
            )
        }
        assert {call: decisions.get(call) for call in memory.decisions} == memory.decisions
        said = self._rows("SELECT run_id, text FROM orders WHERE kind != 'cancel'")
        assert memory.words <= set(said)
        assert len(said) == len(set(said)), "somebody was told twice"

    def _runs(self) -> dict[str, Document]:
        """All that the store knows of runs."""
        runs: dict[str, Document] = {
            run_id: {
                "agent": agent,
                "status": status,
                "reason": reason,
                "result": json.loads(result) if result else None,
                "events": [],
            }
            for run_id, agent, status, reason, result in self._rows(
                "SELECT run_id, agent, status, reason, result FROM runs"
            )
        }
        for run_id, seq, kind, data in self._rows(
            "SELECT run_id, seq, kind, data FROM events ORDER BY run_id, seq"
        ):
            event = {"seq": seq, "kind": kind, "data": json.loads(data)}
            runs[run_id]["events"].append(event)
        return runs

    def _rows(self, sql: str, *values: str) -> list[tuple[str, ...]]:
        db = sqlite3.connect(self._stage.state / "runs.sqlite")
        try:
            return db.execute(sql, values).fetchall()
        finally:
            db.close()


@asynccontextmanager
async def open_server(stage: Stage) -> AsyncIterator[tuple[Client, int]]:
    """A client on a server, and that server's process id."""
    place = stage.state.with_name("pid")
    script = 'echo $$ > "$0"; exec "$@"'
    server = StdioServerParameters(
        command="sh", args=["-c", script, str(place), COMMAND, "serve"], env=stage.env
    )
    async with Client(server) as client:
        yield client, int(await anyio.Path(place).read_text())
