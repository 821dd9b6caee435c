"""What a stranger can write on a CLI's output, and what becomes of the conversation then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from orchestrator.containers.fake import FakeEngine, FakeProcess, FakeProgram, FakeRuntime
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import ContainerSpec, Launch
from orchestrator.engine.conversation import (
    MAX_DENIED,
    MAX_UNREAD_TURNS,
    CliEnded,
    Conversation,
    _one_line,
)
from orchestrator.runners.claude.dialogue import Claude
from orchestrator.runners.signs import PermissionAsked

PATIENCE = 30


def ended(text: str, *denied: str) -> bytes:
    """The line with which a turn ends."""
    denials = [{"tool_use_id": "t", "tool_name": tool, "tool_input": {}} for tool in denied]
    event = {"type": "result", "subtype": "success", "is_error": False, "result": text}
    more = {"stop_reason": "end_turn", "permission_denials": denials}
    return json.dumps(event | more).encode() + b"\n"


def asking(request_id: str, tool: str) -> bytes:
    """The line with which the CLI asks whether a call may run, since a rule says so."""
    request = {"subtype": "can_use_tool", "tool_name": tool, "tool_use_id": "t", "input": {}}
    request["decision_reason_type"] = "rule"
    event = {"type": "control_request", "request_id": request_id, "request": request}
    return json.dumps(event).encode() + b"\n"


@asynccontextmanager
async def talking(cli: FakeProgram) -> AsyncIterator[Conversation]:
    runtime = FakeRuntime(FakeEngine(images=frozenset({"image"}), programs={"cli": cli}))
    with anyio.fail_after(PATIENCE):
        async with (
            runtime.open(ContainerSpec(image="image")) as container,
            container.spawn(Launch(argv=("cli",))) as process,
        ):
            yield Conversation(process, Claude(), Launch(argv=("claude",)))


async def test_verdicts_and_denials_that_are_made_up_are_not_all_kept() -> None:
    async def cli(p: FakeProcess) -> int:
        for number in range(300):
            made_up = [f"T{number}-{n}" for n in range(5)]
            await p.stdout.write(ended(f"{number}", "Bash", "x" * 129, *made_up))
        return 0

    async with talking(cli) as conversation:
        await conversation.pump()
        turns = [await conversation.turn() for _ in range(MAX_UNREAD_TURNS)]
        with pytest.raises(CliEnded):
            await conversation.turn()

    assert [turn.text for turn in turns] == [f"{number}" for number in range(MAX_UNREAD_TURNS)]
    assert list(conversation.denied)[:3] == ["Bash", "T0-0", "T0-1"]
    assert len(conversation.denied) == MAX_DENIED
    assert max(map(len, conversation.denied)) <= 128


async def test_whoever_waits_is_told_when_the_cli_cannot_be_read_any_more() -> None:
    async def cli(p: FakeProcess) -> int:
        await p.stdout.write(asking("r1", "Bash"))
        await anyio.sleep_forever()
        return 0

    class Gone:
        """An approver whose run has ended."""

        agent = AgentSpec(name="asking", description="Asks about all.", approval={"Bash": "ask"})

        def ask(self, asked: PermissionAsked) -> None:
            raise RuntimeError("the run has ended")

        def withdraw(self, asked: PermissionAsked) -> None:
            raise RuntimeError("the run has ended")

    async with talking(cli) as conversation:
        with conversation.approved_by(Gone()):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(conversation.pump)
                with pytest.raises(CliEnded):
                    await conversation.initialize()
                with pytest.raises(CliEnded):
                    await conversation.turn()
    assert not conversation.at_rest


def taken_up(message: bytes) -> bytes:
    """The lines with which the CLI tells what becomes of a message, as 2.1.325 writes them."""
    event = {"type": "command_lifecycle", "command_uuid": json.loads(message)["uuid"]}
    states = [json.dumps({**event, "state": state}) for state in ("queued", "started")]
    return "\n".join([*states, ""]).encode()


async def read_line(p: FakeProcess) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += await p.stdin.read(1)
    return line


async def test_a_turn_that_ended_before_a_message_was_taken_up_is_followed_by_another() -> None:
    async def cli(p: FakeProcess) -> int:
        first, second, third = [await read_line(p) for _ in range(3)]
        await p.stdout.write(taken_up(first) + taken_up(second) + ended("one"))
        await p.stdout.write(taken_up(third) + ended("two"))
        await anyio.sleep_forever()
        return 0

    async with talking(cli) as conversation, anyio.create_task_group() as tasks:
        tasks.start_soon(conversation.pump)
        for text in ("first", "second", "third"):
            await conversation.say(text)
        one = await conversation.turn()
        two = await conversation.turn()
        assert [(one.text, one.more), (two.text, two.more)] == [("one", True), ("two", False)]
        assert conversation.announces
        assert conversation.at_rest, "two turns answered three messages"
        tasks.cancel_scope.cancel()


async def test_of_a_cli_that_tells_nothing_each_message_is_taken_for_a_turn() -> None:
    async def cli(p: FakeProcess) -> int:
        for text in ("one", "two"):
            await read_line(p)
            await p.stdout.write(ended(text))
        made_up = json.dumps({"type": "command_lifecycle", "command_uuid": "x", "state": "started"})
        await p.stdout.write(made_up.encode() + b"\n" + ended("three"))
        await anyio.sleep_forever()
        return 0

    async with talking(cli) as conversation, anyio.create_task_group() as tasks:
        tasks.start_soon(conversation.pump)
        await conversation.say("first")
        assert not (await conversation.turn()).more
        await conversation.say("second")
        assert not (await conversation.turn()).more
        assert not (await conversation.turn()).more
        assert not conversation.announces
        tasks.cancel_scope.cancel()


def test_the_input_of_a_tool_is_shown_as_it_was_written() -> None:
    assert _one_line({"title": "it's", "n": None}) == '{"title": "it\'s", "n": null}'
    assert _one_line({"command": "ls\n-l", "x": 1}) == "ls -l"
