"""Sessions on the real engine with the real CLI: what one call was told, the next one knows."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from orchestrator.containers import exhaustion
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import HOME, Launch
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.sessions import sessions
from orchestrator.engine.sessions.memory import MEMORY_BYTES, Memory
from orchestrator.errors import SessionRefused, WireLost
from tests.engine.harness import Harness, Steps

PATIENCE = 170

DOES_WHAT_IT_IS_TOLD: Steps = [
    {"tool": "Bash", "input": {"command": "{last_user_text}"}},
    {"text": "{last_tool_result} | {user_texts}"},
]


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(runtime, image, tmp_path)
    async with harness.sessions:
        yield harness
    for row in await harness.sessions.list():
        await harness.sessions.remove(row.key)


def remembering(harness: Harness, **fields: object) -> Service:
    fields = {"session": True, **fields}
    return harness.service(DOES_WHAT_IT_IS_TOLD, each_task=True, **fields)


async def told(service: Service, prompt: str, session: str = "") -> RunResult:
    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="worker", prompt=prompt, session=session))
    assert result.status == "completed", result
    return result


async def test_the_next_call_knows_what_was_said_and_finds_what_was_written(
    harness: Harness,
) -> None:
    service = remembering(harness)
    first = await told(service, "echo blue > colour; echo done")
    second = await told(service, "cat colour")

    assert first.result == "done | echo blue > colour; echo done"
    assert second.result == "blue | echo blue > colour; echo done; cat colour"
    assert (second.session, second.session_note) == ("default", "")
    assert second.session_id == first.session_id
    (row,) = await harness.sessions.list()
    assert (row.state, row.runs, row.conversation) == ("ready", 2, first.session_id)

    for sentence in ("first thing", "second thing"):
        told_so = await told(service, f"cat ~/.claude/projects/*/*.jsonl | grep -c '{sentence}'")
        written = int(told_so.result.split()[0]) if isinstance(told_so.result, str) else 0
        assert written > 0, f"a kill would have lost {sentence!r}"

    # A call that runs out of time leaves the session usable.
    sleep = "python3 -c 'import time; time.sleep(500)'"
    with anyio.fail_after(PATIENCE):
        slow = await service.run(Task(agent="worker", prompt=sleep, timeout_seconds=3))
    assert slow.reason == "deadline", slow
    assert str((await told(service, "cat colour")).result).startswith("blue | ")

    # An agent that has changed is heard in the next call.
    changed = remembering(harness, env={"SHADE": "dark"})
    last = await told(changed, "echo $SHADE $(cat colour)")
    assert str(last.result).startswith("dark blue | echo blue > colour")


async def test_a_session_that_has_ended_takes_up_its_conversation_again_while_it_is_there(
    harness: Harness, runtime: DockerRuntime
) -> None:
    service = remembering(harness)
    first = await told(service, "echo blue > colour; echo done")
    heard = "echo blue > colour; echo done"

    async def goes_on() -> None:
        nonlocal heard
        heard += "; cat colour"
        again = await told(service, "cat colour")
        assert again.result == f"blue | {heard}"
        assert (again.session_id, again.session_note) == (first.session_id, "")

    assert await harness.sessions.stop(harness.key)
    assert [row.state for row in await harness.sessions.list()] == ["stopped"]
    await goes_on()

    # Somebody else may end its container, too.
    api = runtime.engine.api
    for end in (
        partial(api.restart, timeout=0),
        api.kill,
        partial(api.remove_container, force=True),
    ):
        (kept,) = await runtime.list()
        await runtime.engine.call(end, kept.id)
        await goes_on()

    assert await harness.sessions.stop(harness.key)
    assert await runtime.forget(harness.key.kept)
    second = await told(service, "cat colour 2>&1 || true")
    assert "No such file" in str(second.result)
    assert "blue" not in str(second.result)
    assert (
        second.session_note
        == "the conversation of before is gone with its files; a new one has begun"
    )
    assert second.session_id != first.session_id
    assert (await told(service, "true")).session_note == ""


async def test_an_idle_cli_ends_then_its_container_stops_and_an_old_one_is_removed(
    harness: Harness, runtime: DockerRuntime
) -> None:
    service = remembering(harness, session={"idle_seconds": 0.01})
    await told(service, "echo blue > colour; echo done")
    await until_state(harness, "resting")
    service = remembering(harness, session={"idle_seconds": 0.01, "stop_seconds": 0.02})
    second = await told(service, "cat colour")
    assert second.result == "blue | echo blue > colour; echo done; cat colour"
    await until_state(harness, "stopped")
    (kept,) = await runtime.list()
    assert (kept.kind, kept.status) == ("kept", "exited")

    assert await harness.sessions.remove(harness.key)
    assert await runtime.list() == ()
    assert await harness.sessions.list() == ()
    assert not await harness.sessions.remove(harness.key)


async def test_calls_to_one_session_run_in_order_and_know_what_those_before_remembered(
    harness: Harness, tmp_path: Path
) -> None:
    service = remembering(harness, memory="rw")
    memory = tmp_path / "agents" / "worker" / "memory.md"
    memory.write_text("zero\n")
    words = ("one", "two", "three", "four")
    async with anyio.create_task_group() as calls:
        for word in words:
            calls.start_soon(told, service, f"echo {word} | tee -a log >> ~/memory.md")
            await anyio.lowlevel.checkpoint()
    assert memory.read_text() == "\n".join(("zero", *words, ""))
    assert not (tmp_path / "memory").exists(), "nothing was put aside"
    last = await told(service, "tr '\\n' ' ' < log")
    assert str(last.result).startswith(" ".join(words))


async def test_memory_that_ran_out_in_one_call_is_not_the_reason_for_the_end_of_another(
    harness: Harness,
) -> None:
    service = remembering(harness, resources={"memory_mb": 768, "scratch_mb": 64})
    first = await told(service, "python3 -c 'bytearray(2 * 10**9)' || echo killed")
    assert [text for text in first.warnings if text.startswith("oom_killed")]
    crash = (
        "for p in /proc/[0-9]*; do grep -qa 'stream-jso[n]' $p/cmdline && kill -9 ${p#/proc/}; done"
    )
    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="worker", prompt=crash))
    assert (result.status, result.reason) == ("failed", "cli_crashed"), result
    third = await told(service, "echo fine")
    assert third.warnings == ()


FULL = "of at most 16 MiB; raise resources.disk_mb, or ask for less, or remove the session"


@pytest.mark.parametrize("place", ["/workspace", "~"])
async def test_a_session_whose_files_take_too_much_is_disk_full(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(exhaustion, "LOOK_EVERY_SECONDS", 0.05)
    service = remembering(harness, resources={"disk_mb": 16})
    fill = f"head -c 40M /dev/zero > {place}/fill; tail -f /dev/null"
    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="worker", prompt=fill))

    assert (result.status, result.reason) == ("failed", "disk_full"), result
    assert FULL in result.message


async def test_what_fills_the_disk_between_calls_is_noticed_before_the_next(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an agent leaves stands still between calls; this is in the place of what does not."""
    monkeypatch.setattr(sessions, "IDLE_DISK_SECONDS", 0.05)
    service = remembering(harness, resources={"disk_mb": 16})
    await told(service, "echo done")
    place = harness.sessions._live[harness.key].place
    assert place is not None
    fill = Launch(argv=("sh", "-c", f"head -c 40M /dev/zero > {HOME}/fill"))
    with anyio.fail_after(PATIENCE), suppress(WireLost):
        while True:  # what is begun before the call's end has stopped everything stands still, too
            with anyio.move_on_after(5) as scope:
                await place.container.run(fill)
            if not scope.cancelled_caught:
                break
    await until_state(harness, "stopped")

    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="worker", prompt="tail -f /dev/null"))
    assert (result.status, result.reason) == ("failed", "disk_full"), result
    assert FULL in result.message


async def test_sessions_know_nothing_of_each_other(harness: Harness) -> None:
    service = remembering(harness)
    results: dict[str, RunResult] = {}

    async def call(name: str) -> None:
        await told(service, f"echo {name} > mine; echo done", name)
        results[name] = await told(service, "cat mine", name)

    async with anyio.create_task_group() as tasks:
        for name in ("a", "b"):
            tasks.start_soon(call, name)
    for name, result in results.items():
        assert result.result == f"{name} | echo {name} > mine; echo done; cat mine"
        assert result.session == name
    fresh = await told(service, "ls", "new")
    assert fresh.session not in ("new", "a", "b", "default")
    assert fresh.result == "(Bash completed with no output) | ls"


async def test_an_agent_without_sessions_refuses_to_be_called_with_one(harness: Harness) -> None:
    service = remembering(harness, session=False)
    with pytest.raises(SessionRefused, match="has no sessions"):
        await service.run(Task(agent="worker", prompt="x", session="a"))


async def test_memory_is_read_and_written_back_as_agent_md_says(
    harness: Harness, tmp_path: Path
) -> None:
    service = remembering(harness, memory="rw")
    memory = tmp_path / "agents" / "worker" / "memory.md"

    async def remembers(prompt: str, meanwhile: str = "") -> str:
        """What is told of a call, in the midst of which the memory may change."""

        def change(event: Event) -> None:
            if meanwhile and event.kind == "tool_call":
                memory.write_text(meanwhile)

        harness.events.clear()
        with anyio.fail_after(PATIENCE):
            task = Task(agent="worker", prompt=prompt)
            result = await service.run(task, change, harness.events.append)
        assert result.status == "completed", result
        return "\n".join(event.text for event in harness.events)

    memory.write_text("The colour is blue.\n")
    await remembers("cat ~/memory.md; echo 'The shape is round.' >> ~/memory.md")
    assert memory.read_text() == "The colour is blue.\nThe shape is round.\n"

    # One that changed meanwhile is not overwritten.
    memory.write_text("one\n")
    text = await remembers("echo three >> ~/memory.md", meanwhile="two\n")
    assert memory.read_text() == "two\n"
    (aside,) = (tmp_path / "memory").iterdir()
    assert aside.read_text() == "one\nthree\n"
    assert "has changed meanwhile" in text

    # What cannot be put aside is told, and the run is not spoilt.
    aside.unlink()
    (tmp_path / "memory").rmdir()
    (tmp_path / "memory").write_text("no directory")
    text = await remembers("echo three >> ~/memory.md", meanwhile="four\n")
    assert "made of memory.md is lost" in text

    # One that cannot be read whole is not written.
    for content, why in (
        (b"x" * (MEMORY_BYTES + 10), "is longer than 64 KiB"),
        (b"caf\xe9\n", "is not UTF-8"),
    ):
        memory.write_bytes(content)
        text = await remembers("echo more > ~/memory.md")
        assert memory.read_bytes() == content
        assert f"memory.md {why}" in text

    memory.write_text("as it is\n")
    await told(remembering(harness, memory="ro"), "echo 'Nonsense.' >> ~/memory.md")
    assert memory.read_text() == "as it is\n"


async def test_a_copy_in_a_session_outlives_the_process_that_made_it_and_goes_with_the_session(
    harness: Harness, runtime: DockerRuntime, image: str, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / ".gitignore").write_text("*.log\n")
    (root / "keep.txt").write_text("keep\n")

    async def changed(harness: Harness, prompt: str) -> list[str]:
        service = remembering(harness, workspace={"mode": "copy", "gitignore": True})
        with anyio.fail_after(PATIENCE):
            result = await service.run(Task(agent="worker", prompt=prompt, workspace=root))
        assert result.status == "completed", result
        return sorted(f"{file.change} {file.path}" for file in result.changed_files)

    assert await changed(harness, "echo 1 > one; echo > x.log") == ["added one"]
    assert await changed(harness, "echo 2 > two") == ["added one", "added two"]
    await harness.sessions.stop(harness.key)
    another = Harness(runtime, image, tmp_path)
    async with another.sessions:
        seen = await changed(another, "echo 2 >> one; rm keep.txt")
        assert seen == ["added one", "added two", "deleted keep.txt"]
        await another.sessions.remove(another.key)
        assert await changed(another, "ls -a; echo 3 > three") == ["added three"]


async def test_what_a_run_needs_is_looked_for_without_keeping_others_waiting(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = remembering(harness)
    threads: list[int] = []

    def noted(function: Callable[..., object]) -> Callable[..., object]:
        def called(*args: object) -> object:
            threads.append(threading.get_ident())
            return function(*args)

        return called

    for name in ("check", "mounted"):
        monkeypatch.setattr(harness.copies, name, noted(getattr(harness.copies, name)))
    monkeypatch.setattr(Memory, "read", noted(Memory.read))
    with anyio.fail_after(PATIENCE):
        agent = service.agents.current().agent("worker")
        task = Task(agent="worker", prompt="x")
        await service._staging.planner.prepare(agent, task, really=False)
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def until_state(harness: Harness, state: str) -> None:
    with anyio.fail_after(PATIENCE):
        while [row.state for row in await harness.sessions.list()] != [state]:
            await anyio.sleep(0.05)
