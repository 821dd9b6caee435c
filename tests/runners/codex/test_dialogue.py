"""What codex was recorded to say, and what it is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.container import Launch
from orchestrator.runners.codex.calls import command_of
from orchestrator.runners.codex.dialogue import CodexDialogue
from orchestrator.runners.codex.endings import turn_ended
from orchestrator.runners.contract import MAX_UNANSWERED
from orchestrator.runners.json_fields import dict_of
from orchestrator.runners.signs import (
    CannotBegin,
    Listening,
    Noise,
    PermissionAsked,
    Ready,
    Said,
    Sign,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

Event = dict[str, Any]

THREAD = "01a1e764-0321-7292-b393-0f0b85404f06"


def recorded(name: str) -> list[Event]:
    path = Path(__file__).parent / "recorded" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


class Played:
    """A dialogue, and what it wrote."""

    def __init__(self, opening: dict[str, object] | None = None) -> None:
        opening = opening or {"thread": {"model": "gpt-5.5", "cwd": "/workspace"}}
        self.dialogue = CodexDialogue(Launch(argv=("codex",), opening=opening))
        self.written: list[Event] = []
        self.signs: list[Sign] = []

    def write(self, data: bytes) -> None:
        self.written += [json.loads(line) for line in data.splitlines()]

    def hear(self, *events: Event) -> list[Sign]:
        heard = self.dialogue.hear(b"".join(json.dumps(e).encode() + b"\n" for e in events))
        self.signs += heard
        self.write(self.dialogue.replies())
        return heard

    @property
    def last(self) -> Event:
        return self.written[-1]

    def methods(self) -> list[str]:
        return [event["method"] for event in self.written if "method" in event]

    def begin_turn(self, turn: str = "turn-1") -> None:
        self.write(self.dialogue.say("Go.", "m-1"))
        self.hear({"id": self.last["id"], "result": {}})
        self.hear({"id": self.last["id"], "result": {"thread": {"id": THREAD}}})
        self.named(turn)

    def named(self, turn: str) -> None:
        self.hear({"id": self.last["id"], "result": {"turn": {"id": turn}}})
        self.hear(news("turn/started", turn={"id": turn}))


def news(method: str, **params: object) -> Event:
    return {"method": method, "params": {"threadId": THREAD, **params}}


def ended(turn: str = "turn-1", status: str = "completed") -> Event:
    return news("turn/completed", turn={"id": turn, "status": status, "items": []})


def kinds(signs: list[Sign]) -> list[str]:
    return [type(sign).__name__ for sign in signs]


def test_a_recorded_conversation_is_understood_turn_by_turn() -> None:
    played = Played()
    played.write(played.dialogue.begin())
    for event in recorded("approvals"):
        if "id" in event and "method" not in event:
            event["id"] = [
                sent["id"] for sent in played.written if "method" in sent and "id" in sent
            ][-1]
        for sign in played.hear(event):
            if isinstance(sign, Listening | TurnEnded):
                played.write(played.dialogue.say("Go."))
            elif isinstance(sign, PermissionAsked):
                played.write(played.dialogue.allow(sign, sign.input))
    asked = [sign for sign in played.signs if isinstance(sign, PermissionAsked)]
    assert [(each.tool, each.is_whole) for each in asked] == [
        *[("Bash", True)] * 4,
        *[("Write", True)] * 2,
        *[("mcp__tst__echo", True)] * 2,
    ]
    assert asked[1].input == {"command": "touch /workspace/a2"}
    assert asked[4].input["file_path"] == "/workspace/p.txt"
    assert (asked[6].call_id, asked[6].input) == ("call_38", {"x": "1"})
    answers = [sent["result"] for sent in played.written if "result" in sent]
    assert answers[:6] == [{"decision": "accept"}] * 6
    assert answers[6:] == [{"action": "accept", "content": {}}] * 2
    verdicts = [sign.reason for sign in played.signs if isinstance(sign, TurnEnded)]
    assert verdicts == ["ok", "ok", "cancelled", *["ok"] * 7]
    assert Said(text="ok trusted?") in played.signs
    returned = [sign for sign in played.signs if isinstance(sign, ToolReturned)]
    assert ToolReturned(id="call_20", text="declined", is_error=True) in returned
    assert not [sign for sign in played.signs if isinstance(sign, Noise)]


def test_recorded_failures_are_told_by_their_reasons() -> None:
    turns = [
        event["params"]["turn"]
        for event in recorded("errors")
        if event.get("method") == "turn/completed"
    ]
    assert [turn_ended(turn, "").reason for turn in turns] == [
        *("api_rate_limit", "api_rate_limit", "api_rate_limit", "api_auth", "api_auth"),
        *("api_error", "api_error", "max_tokens", "api_rate_limit", "api_rate_limit"),
        *("api_overloaded", "api_error", "api_error", "api_overloaded", "api_overloaded"),
        *("stream_cut", "max_tokens", "refusal"),
    ]


def test_what_is_said_first_begins_the_conversation_and_is_its_first_turn() -> None:
    played = Played()
    played.begin_turn()
    assert played.methods() == ["initialize", "initialized", "thread/start", "turn/start"]
    assert played.last["params"]["clientUserMessageId"] == "m-1"
    assert kinds(played.signs) == ["Listening", "Ready"]
    assert played.dialogue.begin() == b""


def test_what_is_said_in_a_turn_steers_it_and_what_comes_too_late_begins_the_next() -> None:
    played = Played()
    played.begin_turn()
    played.write(played.dialogue.say("More.", "m-2"))
    steer = played.last
    assert (steer["method"], steer["params"]["expectedTurnId"]) == ("turn/steer", "turn-1")
    played.hear({"id": steer["id"], "error": {"code": -32600, "message": "no active turn"}})
    assert played.last == steer
    assert kinds(played.hear(ended())) == ["TurnEnded"]
    assert (played.last["method"], played.last["params"]["input"][0]["text"]) == (
        "turn/start",
        "More.",
    )


def test_what_is_said_after_an_interrupt_waits_for_the_turn_to_end() -> None:
    played = Played()
    played.begin_turn()
    played.write(played.dialogue.interrupt())
    assert played.last["method"] == "turn/interrupt"
    assert played.dialogue.say("Finish.") == b""
    (sign,) = played.hear(ended(status="interrupted"))
    assert isinstance(sign, TurnEnded)
    assert sign.interrupted
    assert played.methods()[-2:] == ["thread/backgroundTerminals/clean", "turn/start"]


def test_an_interrupt_before_the_turn_has_a_name_is_sent_with_it() -> None:
    played = Played()
    played.begin_turn()
    played.hear(ended())
    played.write(played.dialogue.say("Again."))
    assert played.dialogue.interrupt() == b""
    played.named("turn-2")
    assert (played.last["method"], played.last["params"]["turnId"]) == ("turn/interrupt", "turn-2")


def test_a_refusal_follows_its_reason() -> None:
    played = Played()
    played.begin_turn()
    (asked,) = played.hear(question("touch a"))
    assert isinstance(asked, PermissionAsked)
    played.write(played.dialogue.deny(asked, "not today"))
    assert played.last["params"]["input"][0]["text"] == "Bash was refused: not today"
    played.hear({"id": played.last["id"], "result": {"turnId": "turn-1"}})
    assert played.last == {"id": 7, "result": {"decision": "decline"}}
    assert played.dialogue.deny(asked, "twice") == b""


def test_who_decides_is_told_where_a_command_runs_if_that_is_not_the_workspace() -> None:
    played = Played()
    played.begin_turn()
    (asked,) = played.hear(question("rm -r build", cwd="/workspace"))
    assert isinstance(asked, PermissionAsked)
    assert asked.input == {"command": "rm -r build"}
    played.write(played.dialogue.allow(asked, asked.input))
    (asked,) = played.hear(question("rm -r build", cwd="/home/agent"))
    assert isinstance(asked, PermissionAsked)
    assert asked.input == {"command": "rm -r build", "cwd": "/home/agent"}


def question(command: str, **more: object) -> Event:
    params = {
        "threadId": THREAD,
        "itemId": "call_1",
        "command": f"/bin/bash -c '{command}'",
        **more,
    }
    return {"id": 7, "method": "item/commandExecution/requestApproval", "params": params}


@pytest.mark.parametrize(
    "method",
    ["item/tool/requestUserInput", "item/permissions/requestApproval", "attestation/generate", "x"],
)
def test_what_is_not_known_is_refused(method: str) -> None:
    played = Played()
    played.begin_turn()
    assert played.hear({"id": 3, "method": method, "params": {}}) == []
    assert played.last["error"]["code"] == -32601


def test_a_server_that_asks_for_something_itself_is_declined() -> None:
    played = Played()
    played.begin_turn()
    params = {"serverName": "tst", "message": "Your password?", "_meta": None}
    played.hear({"id": 3, "method": "mcpServer/elicitation/request", "params": params})
    assert played.last == {"id": 3, "result": {"action": "decline", "content": {}}}


def tool_call(number: int, tool: str) -> Event:
    item = {"type": "mcpToolCall", "server": "tst", "tool": tool, "arguments": {"x": "1"}}
    return news("item/started", item=item | {"id": f"call_{number}"})


def tool_question(number: int, message: str) -> Event:
    meta = {"codex_approval_kind": "mcp_tool_call", "tool_params": {"x": "1"}}
    params = {"serverName": "tst", "message": message, "_meta": meta}
    return {"id": number, "method": "mcpServer/elicitation/request", "params": params}


def test_a_question_about_a_servers_tool_is_about_the_one_that_it_names() -> None:
    played = Played()
    played.begin_turn()
    played.hear(tool_call(1, "drop"), tool_call(2, "echo"))
    for number, tool in ((7, "drop"), (8, "echo")):
        asking = f'Allow the tst MCP server to run tool "{tool}"?'
        (asked,) = played.hear(tool_question(number, asking))
        assert isinstance(asked, PermissionAsked)
        assert asked.tool == f"mcp__tst__{tool}"
    assert played.hear(tool_question(9, "Go on?")) == []  # which of the two?
    assert played.last == {"id": 9, "result": {"action": "decline", "content": {}}}
    done = {"type": "mcpToolCall", "id": "call_1", "status": "completed"}
    played.hear(news("item/completed", item=done))
    (asked,) = played.hear(tool_question(10, "Go on?"))
    assert isinstance(asked, PermissionAsked)
    assert (asked.tool, asked.call_id) == ("mcp__tst__echo", "call_2")


def test_ids_and_names_of_codex_are_short() -> None:
    played = Played()
    played.begin_turn()
    before = len(played.written)
    odd_ids: tuple[object, ...] = ("x" * 100_000, 10**100, [1], {}, None, True)
    for odd in odd_ids:
        assert played.hear(question("ls") | {"id": odd}) == []
    assert len(played.written) == before
    item = {"type": "mcpToolCall", "id": "call_1", "server": "tst", "tool": "t" * 100_000}
    assert played.hear(news("item/started", item=item)) == []


def test_a_conversation_that_is_not_there_cannot_be_resumed() -> None:
    played = Played({"thread": {"model": "gpt-5.5"}, "resume": THREAD})
    played.write(played.dialogue.begin())
    played.hear({"id": 1, "result": {}})
    assert played.last["params"]["threadId"] == THREAD
    error = {"code": -32600, "message": "no rollout found"}
    assert played.hear({"id": 2, "error": error}) == [CannotBegin(why="no rollout found")]


def test_servers_are_told_with_the_turn_once_it_is_known_which_of_them_are_there() -> None:
    servers = {"my_srv": {"command": "x"}, "other": {"command": "y"}}
    thread = {"model": "gpt-5.5", "config": {"mcp_servers": servers}}
    played = Played({"thread": thread, "servers": {"my_srv": "my.srv"}})
    played.begin_turn()
    assert kinds(played.signs) == ["Listening"]
    assert played.hear(news("mcpServer/startupStatus/updated", name="other", status="failed")) == []
    (ready,) = played.hear(news("mcpServer/startupStatus/updated", name="my_srv", status="ready"))
    assert isinstance(ready, Ready)
    assert ready.mcp_servers == {"my.srv": "connected", "other": "failed"}


def test_junk_is_noise_and_floods_are_bounded() -> None:
    played = Played()
    played.begin_turn()
    assert kinds(played.dialogue.hear(b'junk\n[1]\n{"id":[],"method":"x"}\n')) == ["Noise", "Noise"]
    many = [{"id": n, "method": "x"} for n in range(10 * MAX_UNANSWERED)]
    before = len(played.written)
    played.hear(*many)
    assert len(played.written) - before == MAX_UNANSWERED
    asked = played.hear(*(question("a") | {"id": n} for n in range(10 * MAX_UNANSWERED)))
    assert len(asked) == MAX_UNANSWERED
    item = {"type": "commandExecution", "id": "--rm", "command": "x"}
    assert played.hear(news("item/started", item=item)) == []
    assert played.hear({"method": "turn/completed", "params": {"threadId": "other"}}) == []


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ("/bin/bash -lc 'touch a'", "touch a"),
        ("bash -c \"echo 'a b'\"", "echo 'a b'"),
        ("/bin/bash -lc 'a' b", "/bin/bash -lc 'a' b"),
        ("ls 'half", "ls 'half"),
        ("python3 -c 'x'", "python3 -c 'x'"),
    ],
)
def test_a_command_is_taken_out_of_its_shell(said: str, command: str) -> None:
    assert command_of({"command": said}) == command


def test_a_call_of_several_changes_names_them_all() -> None:
    played = Played()
    played.begin_turn()
    changes = [
        {"path": "/workspace/a", "kind": {"type": "update", "move_path": "/workspace/b"}},
        {"path": "/workspace/c", "kind": {"type": "add"}},
    ]
    item = {"type": "fileChange", "id": "call_1", "changes": changes}
    (call,) = played.hear(news("item/started", item=item))
    assert isinstance(call, ToolCalled)
    assert call.tool == "Edit"
    assert dict_of({"x": call.input}, "x")["changes"] == changes
