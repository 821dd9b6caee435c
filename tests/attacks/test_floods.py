"""One agent cannot stop the others: what it asks, writes and leaves running is bounded."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from orchestrator.containers.processor_time import processor_seconds
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import MIB, MODEL_PORT, PARENT_PORT, Launch
from orchestrator.domain.exchange import Question
from orchestrator.domain.task import Task
from orchestrator.engine import desk
from orchestrator.engine.record import MAX_EVENT_BYTES
from orchestrator.engine.sessions import sessions
from orchestrator.engine.tasks.retention import Keep, Retention
from orchestrator.redaction import Redactor
from orchestrator.wire.streams import Stream
from tests.attacks.canary import Canary
from tests.attacks.mark import attack
from tests.attacks.rig import PATIENCE, staged, status
from tests.attacks.test_processes import CLI
from tests.engine.harness import Harness, Steps, bash

ASK = f"""
import json, socket, sys
def ask(question, default=""):
    arguments = {{"question": question, "default_answer": default}}
    call = {{"name": "ask_parent", "arguments": arguments}}
    message = {{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}}
    body = json.dumps(message).encode()
    s = socket.create_connection(("127.0.0.1", {PARENT_PORT}))
    head = "POST /mcp HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body)
    s.sendall(head.encode() + body)
    return s
"""

SPIN = "setsid python3 -c 'while True: pass' > /dev/null 2>&1 &"

PULSE = "import time\nwhile True: sum(range(1_000_000)); time.sleep(0.02)"
COMPUTE = f"setsid python3 -c '{PULSE}' > /dev/null 2>&1 &"
"""Takes half a processor: enough to be seen, and the rest is for the tests beside this one."""


def in_background(code: str) -> str:
    """A command that leaves a Python program running."""
    return (
        f"cat > /tmp/later.py <<'END'\n{code}\nEND\nsetsid python3 /tmp/later.py > /tmp/out 2>&1 &"
    )


@attack(
    "processes and resources",
    "keep a question open from a second program, and work on meanwhile",
    "the run ends at its deadline: time goes on while the model is asked, whatever else waits",
)
@pytest.mark.waits
async def test_a_question_does_not_stop_the_clock_of_an_agent_that_works(harness: Harness) -> None:
    held = in_background(
        ASK + "s = ask('Well?'); s.recv(100); open('/tmp/asked', 'w')\nwhile True: s.recv(100)"
    )
    wait = "until [ -e /tmp/asked ]; do sleep 0.1; done"
    steps: Steps = [bash(f"{held} {wait}"), *[bash("sleep 1")] * 60, {"text": "at last"}]
    task = Task(agent="worker", prompt="x", timeout_seconds=25)
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, task, ask="parent")
    assert result.reason == "deadline", result
    assert "asked" in harness.kinds()
    assert result.usage.requests < 50


@attack(
    "processes and resources",
    "wait for an answer, and have a program compute in the background meanwhile",
    "the run ends at its deadline: the kernel has counted what the container computes",
)
@pytest.mark.waits
async def test_a_question_does_not_stop_the_clock_of_a_program_that_computes(
    harness: Harness,
) -> None:
    steps: Steps = [
        bash(COMPUTE),
        {"tool": "mcp__parent__ask_parent", "input": {"question": "Well?"}},
        {"text": "late"},
    ]
    task = Task(agent="worker", prompt="x", timeout_seconds=15)
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, task, ask="parent")
    assert result.reason == "deadline", result
    assert "asked" in harness.kinds()


@pytest.mark.waits
async def test_an_agent_that_only_waits_may_wait_longer_than_its_time(harness: Harness) -> None:
    question = {"question": "Well?", "default_answer": "y"}
    steps: Steps = [
        {"tool": "mcp__parent__ask_parent", "input": question},
        {"text": "{last_tool_result}"},
    ]
    task = Task(agent="worker", prompt="x", timeout_seconds=20)
    asking = {"whom": "parent", "answer_seconds": 21}
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, task, ask=asking)
    assert (result.status, result.result, result.reason) == ("completed", "y", "ok"), result


@attack(
    "processes and resources",
    "ask without end, and hang up before an answer comes",
    "a run has 100 questions; the rest is refused with a sentence, and nothing is written down",
)
@pytest.mark.waits
async def test_questions_are_counted(harness: Harness, canary: Canary) -> None:
    code = (
        ASK
        + """
refused = 0
for n in range(400):
    s = ask("x" * 15000, "y" * 15000)
    s.settimeout(0.1)  # a question that waits is told so first, whatever becomes of it
    answer = b""
    try:
        while b"no more are passed on" not in answer:
            answer += s.recv(65536)
        refused += 1
    except TimeoutError:
        pass
    s.close()
    if refused == 20:
        break
say(refused)
"""
    )
    async with staged(harness, canary, ask="parent") as rig:
        refused = await rig.python(code)
    rows = await harness.store.database.select("SELECT count(*) FROM questions")
    assert rows[0][0] <= desk.MAX_QUESTIONS
    assert refused == 20
    kinds = [event.kind for event in rig.events]
    assert kinds.count("warning") == 1


FORGE = """
import json, sys, time
out = open(sys.argv[1] + "/fd/1", "w")
def forge(texts):
    call = {"type": "tool_use", "id": "x", "name": "Bash", "input": {"a": texts}}
    print(json.dumps({"type": "assistant", "message": {"content": [call]}}), file=out, flush=True)
"""


def flood(code: str) -> dict[str, object]:
    """A step that writes to the CLI's output."""
    program = f"cat > /tmp/f.py <<'END'\n{FORGE}{code}\nEND\n"
    return bash(f"{program}{CLI} python3 /tmp/f.py $p; done; echo done")


@attack(
    "processes and resources",
    "fill the record by made-up events: a few of megabytes each, or very many",
    "an event has an end, and a run has 16 MiB of them; the rest is counted, and warned of once",
)
async def test_events_are_limited_in_bytes(harness: Harness) -> None:
    code = """
for _ in range(3): forge([["%41" * 250] * 95] * 95)
for _ in range(1200): forge(["x" * 4000] * 4); time.sleep(0.0005)
"""
    with anyio.fail_after(PATIENCE):
        result = await harness.run(
            [flood(code), {"text": "{last_tool_result}"}], resources={"events_per_second": 1000}
        )
    assert (result.status, result.result) == ("completed", "done"), result
    kept = await harness.store.database.select(
        "SELECT sum(length(CAST(text AS BLOB)) + length(data)), max(length(data)) FROM events"
    )
    assert kept[0][0] < sum(MAX_EVENT_BYTES.values())
    assert kept[0][1] < 200_000
    warned = [warning for warning in result.warnings if "no more of them are kept" in warning]
    assert warned == [
        f"{MAX_EVENT_BYTES['chatter'] // MIB} MiB of events; no more of them are kept"
    ]


@attack(
    "processes and resources",
    "write lines of megabytes that take long to be searched for secrets",
    "a small part of each is searched before it is cut; all runs share the event loop",
)
async def test_a_long_line_is_not_searched_as_a_whole(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = 0
    here, search = threading.get_ident(), Redactor.text

    def counted(self: Redactor, text: str) -> str:
        nonlocal searched
        searched += len(text) if threading.get_ident() == here else 0
        return search(self, text)

    monkeypatch.setattr(Redactor, "text", counted)
    code = 'for _ in range(3): forge([["%" * 760] * 95] * 95)'
    with anyio.fail_after(PATIENCE):
        result = await harness.run([flood(code), {"text": "{last_tool_result}"}])
    assert (result.status, result.result) == ("completed", "done"), result
    assert harness.kinds().count("tool_call") >= 2  # the CLI may write in the middle of one
    assert searched < 500_000


HEADS = f"""
import threading
head = "GET / HTTP/1.1\\r\\nhost: x\\r\\n" + "x-y: z\\r\\n" * 90 + "\\r\\n"
def flood():
    with socket.create_connection(("127.0.0.1", {MODEL_PORT})) as s:
        for _ in range(10):
            s.sendall(head.encode())
            s.recv(65536)
threads = [threading.Thread(target=flood) for _ in range(200)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say("done")
"""


@attack(
    "gateway abuse",
    "send 2,000 heads of 90 headers each on 200 connections at once",
    "the connections of a container go on a few in each turn of the event loop; a neighbour's wire "
    "waits for those, not for all",
)
async def test_many_connections_go_on_by_turns(
    harness: Harness, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = in_turn = heads = 0
    read = Stream.read

    async def counted(self: Stream, max_bytes: int = 65536) -> bytes:
        nonlocal in_turn, heads
        data = await read(self, max_bytes)
        relayed = self.number % 2 == 0
        in_turn, heads = in_turn + relayed, heads + relayed
        return data

    async def watch_turns() -> None:
        nonlocal most, in_turn
        while True:
            most, in_turn = max(most, in_turn), 0
            await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(Stream, "read", counted)
    async with staged(harness, canary) as rig, anyio.create_task_group() as tasks:
        tasks.start_soon(watch_turns)
        assert await rig.python(HEADS) == "done"
        assert await rig.answers()
        tasks.cancel_scope.cancel()
    assert heads > 1000
    assert most <= 8


@attack(
    "gateway abuse",
    "send the parent's service messages of hundreds of thousands of parts, to be read as JSON",
    "400 before they are read: the reader of JSON would hold up all runs",
)
async def test_a_message_to_the_parent_has_few_parts(harness: Harness, canary: Canary) -> None:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "x": [' + b"[]," * 80_000 + b"[]]}"
    head = b"POST /mcp HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    async with staged(harness, canary, ask="parent") as rig:
        (answer,) = await rig.ask(head % len(body) + body, port=PARENT_PORT)
        assert (status(answer), b"parts" in answer) == (400, True)


@pytest.fixture
async def keeping(harness: Harness) -> AsyncIterator[Harness]:
    async with harness.sessions:
        yield harness
    for row in await harness.sessions.list():
        await harness.sessions.remove(row.key)


def container_of(harness: Harness) -> Container:
    place = harness.sessions._live[harness.key].place
    assert place is not None
    return place.container


async def computed(container: Container, seconds: float) -> float:
    before = await processor_seconds(container)
    await anyio.sleep(seconds)
    after = await processor_seconds(container)
    assert before is not None
    assert after is not None
    return after - before


@attack(
    "processes and resources",
    "leave programs running in a session that spin on after the call",
    "everything in the container is stopped at the end of a call, and goes on with the next one",
)
async def test_what_a_session_leaves_running_stands_still_between_calls(keeping: Harness) -> None:
    tick = "setsid sh -c 'while :; do echo x >> /tmp/ticks; sleep 0.05; done' > /dev/null 2>&1 &"
    done: dict[str, object] = {"text": "{last_tool_result}"}
    grown = bash("wc -l < /tmp/ticks; sleep 1; wc -l < /tmp/ticks")
    steps: Steps = [bash(f"{SPIN} {tick} echo left"), done, grown, done]
    service = keeping.service(steps, session=True)
    with anyio.fail_after(PATIENCE):
        first = await service.run(Task(agent="worker", prompt="x"))
        container = container_of(keeping)
        ticks = Launch(argv=("wc", "-l", "/tmp/ticks"))
        early = await container.run(ticks)
        between = await computed(container, 2.0)
        late = await container.run(ticks)
        second = await service.run(Task(agent="worker", prompt="y"))
    assert first.result == "left", first
    assert between < 0.5
    assert late == early
    before, after = map(int, str(second.result).split())
    assert after > before + 5


CONTINUES_ITSELF = """
import ctypes, signal, struct
signal.signal(signal.SIGCONT, lambda *_: None)
libc = ctypes.CDLL(None, use_errno=True)
event = struct.pack("=QiiQ", 0, 18, 0, 0) + bytes(64)  # SIGEV_SIGNAL with SIGCONT
for n in range(30):  # one whose signal waits to be delivered is disarmed when all is stopped
    timer = ctypes.c_void_p()
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
    when = struct.pack("=qqqq", 1, 0, 1, n * 33_000_000)
    assert libc.timer_settime(timer, 0, when, None) == 0
open("/tmp/armed", "w")
while True: pass
"""


@attack(
    "processes and resources",
    "have the kernel continue what was left running, by a timer whose signal is SIGCONT",
    "a container that computes between calls, although it was stopped, is ended; its files stay",
)
async def test_what_does_not_stand_still_is_ended(
    keeping: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "IDLE_DISK_SECONDS", 1.0)
    leave = (
        f"{in_background(CONTINUES_ITSELF)} until [ -e /tmp/armed ]; do sleep 0.1; done; echo left"
    )
    service = keeping.service([bash(leave), {"text": "{last_tool_result}"}], session=True)
    with anyio.fail_after(PATIENCE):
        first = await service.run(Task(agent="worker", prompt="x"))
        assert first.result == "left", first
        await container_of(keeping).wire.wait_ended()
        while [row.state for row in await keeping.sessions.list()] != ["stopped"]:
            await anyio.sleep(0.05)


@attack(
    "processes and resources",
    "fill the record of runs, so that older runs of all agents are removed to make room",
    "what goes first is the runs of the agent that takes most",
)
async def test_a_full_record_is_the_largest_takers(harness: Harness, tmp_path: Path) -> None:
    store = harness.store
    for run_id, agent, asked in (("r1", "honest", 1), ("r2", "greedy", 90), ("r3", "greedy", 90)):
        await store.add_run(Task(agent=agent, prompt="x", run_id=run_id))
        service = harness.service([{"text": "."}])
        for n in range(asked):
            long = Question(message_id=f"{run_id}m{n}", run_id=run_id, question="\u2603" * 20_000)
            await service.exchanges.ask(long)
        await store.database.write("UPDATE runs SET ended = created WHERE run_id = ?", run_id)
    retention = Retention(store, harness.copies)
    pruned = await retention.prune(Keep(total_bytes=6 * MIB))
    assert pruned.run_ids == ("r2",)
