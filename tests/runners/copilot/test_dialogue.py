"""What copilot 1.0.102 was recorded to say, and what it is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.agent import AgentSpec, Asking, McpServer, Permissions
from orchestrator.domain.container import Launch
from orchestrator.errors import AgentInvalid
from orchestrator.runners.contract import MAX_UNANSWERED, LaunchTerms
from orchestrator.runners.copilot.dialogue import CopilotDialogue
from orchestrator.runners.copilot.frames import CliFrames, frame
from orchestrator.runners.copilot.runner import Copilot
from orchestrator.runners.signs import (
    CannotBegin,
    Listening,
    Noise,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Retrying,
    Said,
    Saying,
    Sign,
    TakenUp,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

Event = dict[str, Any]

SESSION = "11111111-2222-3333-4444-555555555555"


def recorded(name: str) -> list[Event]:
    path = Path(__file__).parent / "recorded" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


class Played:
    """A dialogue, and what it wrote."""

    def __init__(self, opening: dict[str, object] | None = None) -> None:
        opening = opening or {
            "session": {"model": "m", "mcpServers": {"tst": {}}},
            "tools": ["Bash"],
        }
        self.dialogue = CopilotDialogue(Launch(argv=("copilot",), opening=opening))
        self.written: list[Event] = []
        self._frames = CliFrames()

    def write(self, data: bytes) -> None:
        self.written += [line.event for line in self._frames.feed(data) if line.event is not None]

    def hear(self, *events: Event) -> list[Sign]:
        heard = self.dialogue.hear(b"".join(map(frame, events)))
        self.write(self.dialogue.replies())
        return heard

    @property
    def methods(self) -> list[str]:
        return [event["method"] for event in self.written if "method" in event]

    def answer(self, **result: object) -> list[Sign]:
        """To the latest request."""
        return self.hear({"jsonrpc": "2.0", "id": self.written[-1]["id"], "result": result})

    def begin(self) -> None:
        self.write(self.dialogue.begin())
        self.answer(sessionId=SESSION)
        self.answer(success=True)

    def begin_turn(self) -> None:
        self.begin()
        self.write(self.dialogue.say("Go.", "m-1"))
        self.answer(messageId="own-1")
        self.hear(told("user.message", messageId="own-1"), told("assistant.turn_start"))


def told(kind: str, **data: object) -> Event:
    event = {"type": kind, "data": data}
    params = {"sessionId": SESSION, "event": event}
    return {"jsonrpc": "2.0", "method": "session.event", "params": params}


def permission(request_id: str, **request: object) -> Event:
    return told("permission.requested", requestId=request_id, permissionRequest=request)


def test_a_recorded_turn_is_understood_and_every_call_is_asked_about() -> None:
    played, signs = Played(), list[Sign]()
    played.write(played.dialogue.say("Go.", "m-1"))
    for event in recorded("tools"):
        for sign in played.hear(event):
            signs.append(sign)
            if isinstance(sign, PermissionAsked):
                if sign.input.get("file_path") == "/workspace/.env":
                    played.write(played.dialogue.deny(sign, "not that one"))
                else:
                    played.write(played.dialogue.allow(sign, sign.input))

    calls = [(sign.tool, sign.input) for sign in signs if isinstance(sign, ToolCalled)]
    assert [tool for tool, _ in calls] == [
        *("Bash", "Bash", "Read", "Read", "Write", "Edit", "Grep", "Glob", "mcp__tst__echo"),
    ]
    assert calls[0][1]["command"] == "echo hi"
    assert calls[5][1]["old_string"] == "AA"
    asked = [sign for sign in signs if isinstance(sign, PermissionAsked)]
    assert [sign.tool for sign in asked] == [tool for tool, _ in calls]
    assert all(sign.is_whole for sign in asked)
    assert asked[3].input == {"file_path": "/workspace/.env"}
    assert asked[8].input == {"x": "1"}
    answers = [
        event["params"]["result"]
        for event in played.written
        if event["method"] == "session.permissions.handlePendingPermissionRequest"
    ]
    assert [answer["kind"] for answer in answers].count("approve-once") == 8
    assert answers[3] == {"kind": "reject", "feedback": "not that one"}
    returned = [sign for sign in signs if isinstance(sign, ToolReturned)]
    assert [sign.is_error for sign in returned].count(True) == 2
    assert returned[-1].text == "echo 1"
    (ready,) = (sign for sign in signs if isinstance(sign, Ready))
    assert ready.mcp_servers == {"tst": "connected"}
    assert [sign.text for sign in signs if isinstance(sign, Said)] == ["I look", "all done"]
    assert Saying(text="all done", begins=True) in signs
    assert TakenUp(message_id="m-1") in signs
    assert Listening(conversation=SESSION) in signs
    assert signs[-1] == TurnEnded(reason="ok", text="all done")


def test_nothing_is_said_before_the_workspaces_instructions_are_switched_off() -> None:
    played = Played()
    played.write(played.dialogue.say("Go."))
    assert played.methods == ["session.create"]
    played.answer(sessionId=SESSION)
    assert played.methods == ["session.create", "session.options.update"]
    assert played.written[1]["params"]["skipCustomInstructions"] is True
    assert played.answer(success=True) == [Listening(conversation=SESSION)]
    assert played.methods[2:] == ["session.send"]
    assert "mode" not in played.written[-1]["params"]


@pytest.mark.parametrize("refused", [0, 1])
def test_a_session_that_is_refused_cannot_begin(refused: int) -> None:
    played = Played({"session": {"sessionId": SESSION}, "resumes": True})
    played.write(played.dialogue.begin())
    assert played.methods == ["session.resume"]
    if refused:
        played.answer(sessionId=SESSION)
    wrong = {"id": played.written[-1]["id"], "error": {"message": "Session not found"}}
    assert played.hear(wrong) == [CannotBegin(why="Session not found")]


def test_what_is_said_in_a_turn_steers_it_and_waits_while_it_is_interrupted() -> None:
    played = Played()
    played.begin_turn()
    played.write(played.dialogue.say("Hurry.", "m-2"))
    assert played.written[-1]["params"]["mode"] == "immediate"
    played.answer(messageId="own-2")
    assert played.hear(told("user.message", messageId="own-2")) == [TakenUp(message_id="m-2")]
    played.write(played.dialogue.interrupt())
    played.write(played.dialogue.say("Answer now.", "m-3"))
    assert played.methods[-2:] == ["session.abort", "session.tasks.list"]
    running = {"id": "0", "type": "shell", "status": "running"}
    played.answer(tasks=[running, {"id": "1", "status": "completed"}, "x", {"status": "running"}])
    assert played.methods[-1] == "session.tasks.cancel"
    assert played.written[-1]["params"] == {"sessionId": SESSION, "id": "0"}
    ended = played.hear(told("session.idle", aborted=True))
    assert ended == [
        TurnEnded(reason="cancelled", text="the turn was interrupted", interrupted=True)
    ]
    assert played.written[-1]["params"] == {"sessionId": SESSION, "prompt": "Answer now."}


def test_an_interrupt_waits_until_copilot_has_what_was_said_or_it_would_be_passed_over() -> None:
    """Seen with 1.0.102: an abort in the moment of a `send` is answered first, and the turn begins
    all the same.
    """
    played = Played()
    played.begin()
    played.write(played.dialogue.say("Go.", "m-1"))
    sent = played.written[-1]["id"]
    assert played.dialogue.interrupt() == b""
    played.write(played.dialogue.say("Answer now.", "m-2"))
    assert played.methods[-1] == "session.send"
    played.hear({"id": sent, "result": {"messageId": "own-1"}})
    assert played.methods[-2:] == ["session.abort", "session.tasks.list"]
    (ended,) = played.hear(told("session.idle", aborted=True))
    assert isinstance(ended, TurnEnded)
    assert ended.interrupted
    # It had not taken up the first message, and has forgotten it.
    said = [event["params"] for event in played.written if event["method"] == "session.send"]
    assert [params["prompt"] for params in said] == ["Go.", "Go.", "Answer now."]


def test_what_is_said_as_a_turn_ends_begins_the_next_one() -> None:
    played = Played()
    played.begin_turn()
    played.write(played.dialogue.say("Hurry.", "m-2"))
    sent = played.written[-1]["id"]
    assert played.hear(told("session.idle")) == [TurnEnded(reason="ok")]
    played.hear({"id": sent, "result": {"messageId": "own-2"}})
    taken = played.hear(told("user.message", messageId="own-2"))
    assert taken == [TakenUp(message_id="m-2")]
    assert played.hear(told("session.idle")) == [TurnEnded(reason="ok")]
    assert played.hear(told("session.idle")) == []


def test_what_is_refused_in_a_turn_is_said_in_the_next_one() -> None:
    played = Played()
    played.begin_turn()
    played.write(played.dialogue.say("Hurry.", "m-2"))
    assert played.hear({"id": played.written[-1]["id"], "error": {"message": "busy"}}) == []
    assert played.hear(told("session.idle")) == [TurnEnded(reason="ok")]
    assert played.written[-1]["params"] == {"sessionId": SESSION, "prompt": "Hurry."}


def test_nothing_is_typed_into_a_running_command() -> None:
    """What is typed is no command, so no rule could decide about it."""
    agent = agent_with(permissions=Permissions(allow=("Bash",)))
    played = Played()
    played.begin_turn()
    typed = {"shellId": "s1", "input": "rm -rf /{enter}"}
    call = told("tool.execution_start", toolCallId="c-1", toolName="write_bash", arguments=typed)
    asked = permission("r-1", kind="shell", fullCommandText="ls", toolCallId="c-1")
    questions = [sign for sign in played.hear(call, asked) if isinstance(sign, PermissionAsked)]
    assert [Copilot().decide(agent, each).verdict for each in questions] == ["deny"]
    session = Copilot().launch(agent, terms()).opening["session"]
    assert "builtin:write_bash" not in str(session)


def test_outside_of_a_turn_there_is_nothing_to_interrupt_and_no_verdict() -> None:
    played = Played()
    assert played.dialogue.interrupt() == b""
    played.begin()
    assert played.dialogue.interrupt() == b""
    assert played.hear(told("session.idle")) == []


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (
            {
                "message": "Failed to get response from the AI model; retried 5 times (total "
                "retry wait time: 55.44 seconds) Last error: 429 Rate limit",
                "statusCode": 429,
            },
            "api_rate_limit",
            "429 Rate limit",
        ),
        (
            {
                "message": "Authentication failed with provider at http://127.0.0.1:8080 (HTTP "
                "401).\n  Check your COPILOT_PROVIDER_API_KEY, or another.",
                "statusCode": 401,
            },
            "api_auth",
            "Authentication failed with provider at http://127.0.0.1:8080 (HTTP 401).",
        ),
        ({"message": "400 refused", "statusCode": 400}, "api_error", "400 refused"),
        ({"message": "529 busy", "statusCode": 529}, "api_overloaded", "529 busy"),
        (
            {"message": "Failed to finalize Anthropic message stream: stream ended"},
            "stream_cut",
            "Failed to finalize Anthropic message stream: stream ended",
        ),
        ({}, "api_error", "copilot did not say why"),
    ],
)
def test_an_error_of_a_turn_is_its_verdict(error: Event, reason: str, text: str) -> None:
    played = Played()
    played.begin_turn()
    played.hear(told("assistant.message", content="Half."), told("session.error", **error))
    (ended,) = played.hear(told("session.idle"))
    assert isinstance(ended, TurnEnded)
    assert (ended.reason, ended.text) == (reason, text)
    played.write(played.dialogue.say("Again."))
    assert played.hear(told("session.idle")) == [TurnEnded(reason="ok")]


def test_a_repeated_request_is_told_with_its_cause() -> None:
    played = Played()
    played.begin_turn()
    failed = told("model.call_failure", statusCode=529, retryAttempt=1, errorMessage="busy")
    retrying = Retrying(attempt=2, status=529, error="busy")
    assert played.hear(failed, told("assistant.turn_retry", reason="api_error")) == [retrying]


def test_kinds_of_questions_become_calls_that_rules_can_name() -> None:
    agent = AgentSpec(
        name="a",
        description="d",
        permissions=Permissions(allow=("Edit(src/**)", "WebFetch(domain:example.org)", "Read")),
    )
    played = Played()
    played.begin_turn()
    signs = played.hear(
        permission("r-1", kind="write", fileName="src/a", diff="+x", toolCallId="c-1"),
        permission("r-2", kind="write", fileName="src/x", resolvedPath="/etc/x", diff="+x"),
        permission("r-3", kind="url", url="https://example.org/", toolCallId="c-3"),
        permission("r-4", kind="memory", fact="obey me", toolCallId="c-4"),
        permission("r-5", kind="hook", toolName="bash", toolCallId="c-5"),
        permission("r-6", kind="mcp", serverName="evil", toolName="evil-x", args={}),
    )
    asked = [sign for sign in signs if isinstance(sign, PermissionAsked)]
    verdicts = [Copilot().decide(agent, each).verdict for each in asked]
    assert verdicts == ["allow", "deny", "allow", "deny", "deny", "deny"]


def test_a_question_is_withdrawn_once_and_answered_once() -> None:
    played = Played()
    played.begin_turn()
    signs = played.hear(permission("r-1", kind="shell", fullCommandText="ls", toolCallId="c-1"))
    (asked,) = (sign for sign in signs if isinstance(sign, PermissionAsked))
    assert asked.input == {"command": "ls"}
    gone = told("permission.completed", requestId="r-1")
    assert played.hear(gone, gone) == [PermissionWithdrawn(request_id="r-1")]
    assert played.dialogue.allow(asked, {}) == b""


def test_hostile_events_are_no_errors_and_do_not_pile_up() -> None:
    played = Played()
    played.begin_turn()
    odd: list[Event] = [
        {"method": "session.event"},
        {"method": "session.event", "params": {"sessionId": SESSION, "event": []}},
        {"method": "session.event", "params": {"sessionId": "other", "event": {}}},
        told("permission.requested"),
        told("permission.requested", requestId="--all", permissionRequest={"kind": "shell"}),
        told("tool.execution_start", toolCallId=7, toolName=[]),
        told("tool.execution_complete", toolCallId=None),
        told("session.mcp_servers_loaded", servers=[1, {"name": "evil", "status": "connected"}]),
        {"id": 99, "result": None},
        {"id": "x", "error": "y"},
        {"id": "x" * 100_000, "method": "host.ask"},
        {"id": [1], "method": "host.ask"},
        {"id": 10**100, "method": "host.ask"},
    ]
    before = len(played.written)
    assert played.hear(*odd) == []
    assert len(played.written) == before  # an id that is repeated is short
    questions = [{"id": n, "method": "host.ask", "params": {}} for n in range(10 * MAX_UNANSWERED)]
    before = len(played.written)
    assert played.hear(*questions) == []
    assert len(played.written) - before == MAX_UNANSWERED
    asked = [permission(f"r-{n}", kind="shell", fullCommandText="x") for n in range(1000)]
    signs = played.hear(*asked)
    assert sum(isinstance(sign, PermissionAsked) for sign in signs) == MAX_UNANSWERED
    (noise,) = played.dialogue.hear(b"junk" * 100)
    assert isinstance(noise, Noise)


def terms(**fields: object) -> LaunchTerms:
    given = {"base_url": "http://127.0.0.1:8080", "token": "run-token", "cwd": "/workspace"}
    return LaunchTerms.model_validate({**given, **fields})


def agent_with(**fields: object) -> AgentSpec:
    return AgentSpec.model_validate({"name": "a", "description": "d", "prompt": "P", **fields})


def test_a_launch_switches_off_all_that_files_could_say() -> None:
    agent = agent_with(
        permissions=Permissions(allow=("Bash(git:*)", "Read", "mcp__srv__get")),
        approval={"Write": "ask"},
        ask=Asking(whom="parent"),
        mcp_servers=(McpServer(name="srv", command="python3", args=("$HOME",), env={"A": "b"}),),
    )
    given = terms(
        mcp_servers=agent.mcp_servers,
        parent_url="http://127.0.0.1:8083/mcp",
        conversation=SESSION,
        memory="M",
        more_folders=("/agent",),
    )
    launch = Copilot().launch(agent, given)
    session = launch.opening["session"]
    assert isinstance(session, dict)
    off = [key for key, value in session.items() if value is False]
    assert off == [
        *("enableConfigDiscovery", "enableFileHooks", "enableSkills"),
        *("enableOnDemandInstructionDiscovery", "enableHostGitOperations"),
        "enableSessionTelemetry",
    ]
    assert session["sessionId"] == SESSION
    assert session["systemMessage"] == {"mode": "replace", "content": "P\n\nM"}
    assert session["provider"]["apiKey"] == "run-token"
    assert session["additionalDirectories"] == ["/agent"]
    assert session["availableTools"] == [
        *("builtin:bash", "builtin:read_bash", "builtin:stop_bash", "builtin:list_bash"),
        *("builtin:view", "builtin:create", "builtin:apply_patch", "mcp:*"),
    ]
    assert session["mcpServers"]["srv"]["args"][-2:] == ["python3", "${ORCHESTRATOR_DOLLAR}HOME"]
    assert session["mcpServers"]["parent"]["timeout"] == 24 * 3600 * 1000
    assert "run-token" not in " ".join((*launch.argv, *launch.env.values()))
    history = Copilot().history_file(SESSION, "/workspace")
    assert history is not None
    assert history.startswith(str(session["configDir"]))


def test_an_agent_cannot_set_what_the_cli_goes_by() -> None:
    for name in ("COPILOT_ALLOW_ALL", "GITHUB_TOKEN", "HOME"):
        with pytest.raises(AgentInvalid, match=name):
            Copilot().launch(agent_with(), terms(env={name: "true"}))


def test_the_model_is_shown_tools_of_servers_that_a_rule_lets_it_call() -> None:
    servers = (McpServer(name="srv", command="x"), McpServer(name="two", command="x"))
    agent = agent_with(permissions=Permissions(allow=("mcp__srv__get",)), mcp_servers=servers)
    names = ("bash", "srv-get", "srv-put", "two-any")
    assert [Copilot().is_offered(agent, name) for name in names] == [True, True, False, True]
    more = (*servers, McpServer(name="srv-x", command="x"))
    agent = agent.model_copy(update={"mcp_servers": more})
    assert Copilot().is_offered(agent, "srv-x-put")
