"""What gemini 0.61.0 and opencode 1.18.33 were recorded to say, and what they are answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.agent import AgentSpec, Asking, McpServer, Permissions
from orchestrator.domain.container import Launch
from orchestrator.errors import AgentInvalid
from orchestrator.runners.acp.calls import call_id, input_of
from orchestrator.runners.acp.dialogue import LEAD, AcpDialogue
from orchestrator.runners.acp.gemini import Gemini
from orchestrator.runners.acp.opencode import Opencode
from orchestrator.runners.contract import MAX_UNANSWERED, LaunchTerms
from orchestrator.runners.json_fields import TEXT_CHARS
from orchestrator.runners.signs import (
    CannotBegin,
    Listening,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Said,
    Saying,
    Sign,
    TakenUp,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

Event = dict[str, Any]

SESSION = "ses_1"

ONE_OF_EACH = (
    *("Bash", "Bash", "Read", "Read", "Write", "Edit", "Grep", "Glob"),
    "mcp__tst__echo",
)


def recorded(name: str) -> list[Event]:
    path = Path(__file__).parent / "recorded" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


class Played:
    """A dialogue, and what it wrote."""

    def __init__(self, runner: Gemini | Opencode, resume: str = "") -> None:
        opening: dict[str, object] = {"session": {"cwd": "/srv"}, "resume": resume, "model": "m"}
        opening |= {"tools": ["Bash"], "servers": ["tst"]}
        self.dialogue = AcpDialogue(Launch(argv=("x",), opening=opening), runner.manners)
        self.written: list[Event] = []

    def write(self, data: bytes) -> None:
        self.written += [json.loads(line) for line in data.splitlines()]

    def hear(self, *events: Event) -> list[Sign]:
        heard = self.dialogue.hear(b"".join(json.dumps(e).encode() + b"\n" for e in events))
        self.write(self.dialogue.replies())
        return heard

    @property
    def methods(self) -> list[str]:
        return [event["method"] for event in self.written if "method" in event]

    @property
    def prompts(self) -> list[list[str]]:
        asked = [event for event in self.written if event.get("method") == "session/prompt"]
        return [[block["text"] for block in event["params"]["prompt"]] for event in asked]

    def answer(self, at: int = -1, **result: object) -> list[Sign]:
        """To one of our requests, the latest if not said."""
        asked = [event["id"] for event in self.written if "id" in event and "method" in event]
        return self.hear({"jsonrpc": "2.0", "id": asked[at], "result": result})

    def begin(self) -> list[Sign]:
        self.write(self.dialogue.begin())
        while self.methods[-1] in ("initialize", "authenticate"):
            self.answer(protocolVersion=1)
        return self.answer(sessionId=SESSION)

    def begin_turn(self) -> None:
        self.begin()
        self.write(self.dialogue.say("Go.", "m-1"))
        self.hear(chunk("Hm."))


def update(what: str, **fields: object) -> Event:
    said = {"sessionUpdate": what, **fields}
    return {"method": "session/update", "params": {"sessionId": SESSION, "update": said}}


def chunk(text: str) -> Event:
    return update("agent_message_chunk", content={"type": "text", "text": text})


def question(number: int, call: str, **fields: object) -> Event:
    options = [
        {"optionId": "yes", "kind": "allow_once"},
        {"optionId": "ever", "kind": "allow_always"},
        {"optionId": "no", "kind": "reject_once"},
    ]
    params = {"sessionId": SESSION, "options": options, "toolCall": {"toolCallId": call, **fields}}
    return {"id": number, "method": "session/request_permission", "params": params}


def play(runner: Gemini | Opencode, name: str) -> tuple[Played, list[Sign]]:
    """A recorded turn in which all is allowed, but for .env."""
    played, signs = Played(runner), list[Sign]()
    played.write(played.dialogue.say("/init", "m-1"))
    for event in recorded(name):
        for sign in played.hear(event):
            signs.append(sign)
            if isinstance(sign, PermissionAsked):
                if sign.input.get("file_path") == "/workspace/.env":
                    played.write(played.dialogue.deny(sign, "not that one"))
                else:
                    played.write(played.dialogue.allow(sign, sign.input))
            elif isinstance(sign, TurnEnded):
                return played, signs
    raise AssertionError("the turn did not end")


def test_a_recorded_turn_of_opencode_is_understood_and_every_call_is_asked_about() -> None:
    played, signs = Played(Opencode()), list[Sign]()
    played.write(played.dialogue.say("/init", "m-1"))
    for event in recorded("opencode"):
        for sign in played.hear(event):
            signs.append(sign)
            if isinstance(sign, PermissionAsked):
                played.write(played.dialogue.allow(sign, sign.input))
    asked = [sign for sign in signs if isinstance(sign, PermissionAsked)]
    assert tuple(sign.tool for sign in asked)[:9] == ONE_OF_EACH
    assert asked[1].input["command"] == "touch /workspace/no"
    assert asked[3].input == {"file_path": "/workspace/.env"}
    assert asked[4].input == {"file_path": "/workspace/new.txt", "content": "hello"}
    assert (asked[8].input, asked[8].is_whole) == ({"x": "1"}, True)
    answers = [event["result"] for event in played.written if "result" in event]
    chosen = {"outcome": {"outcome": "selected", "optionId": "once"}}
    assert answers[:9] == [chosen] * 9
    assert [sign.text for sign in signs if isinstance(sign, Said)] == ["I look", "all done"]
    returned = [sign for sign in signs if isinstance(sign, ToolReturned)]
    assert (returned[0].text, returned[1].is_error) == ("hi\n", True)
    assert TurnEnded(reason="ok", text="all done") in signs
    assert played.prompts == [[LEAD, "/init"]]


def test_a_recorded_turn_of_gemini_is_understood_and_every_call_is_asked_about() -> None:
    played, signs = play(Gemini(), "gemini")
    asked = [sign for sign in signs if isinstance(sign, PermissionAsked)]
    assert [sign.tool for sign in asked] == [
        *("Bash", "Bash", "Read", "Write", "Edit", "Grep", "Glob", "Glob", "mcp__tst__echo"),
    ]
    assert asked[0].input == {"command": "touch /workspace/yes", "cwd": "/srv"}
    assert asked[2].input == {"file_path": "/workspace/a.txt"}
    assert asked[4].input["new_string"] == "BB\n"
    assert asked[8].input == {"x": "1"}
    called = {sign.id: sign for sign in signs if isinstance(sign, ToolCalled)}
    assert {sign.call_id for sign in asked} < set(called)
    assert signs[-1] == TurnEnded(reason="ok", text="all done")
    assert played.methods[:3] == ["initialize", "authenticate", "session/new"]
    assert sum(isinstance(sign, Ready) for sign in signs) == 1
    assert signs.count(TakenUp(message_id="m-1")) == 1


def test_opencode_is_steered_and_its_turn_ends_when_all_is_answered() -> None:
    played = Played(Opencode())
    played.begin_turn()
    played.write(played.dialogue.say("Hurry.", "m-2"))
    assert played.prompts == [[LEAD, "Go."], [LEAD, "Hurry."]]
    played.hear(chunk("Done."))
    assert played.answer(at=-2, stopReason="end_turn") == [Said(text="Hm.Done.")]
    assert played.answer(stopReason="end_turn") == [
        TakenUp(message_id="m-2"),
        TurnEnded(reason="ok", text="Hm.Done."),
    ]


def test_what_is_said_to_gemini_in_a_turn_is_kept_for_the_next_one() -> None:
    played = Played(Gemini())
    played.begin_turn()
    played.write(played.dialogue.say("Hurry.", "m-2"))
    played.write(played.dialogue.say("Please.", "m-3"))
    assert played.prompts == [[LEAD, "Go."]]
    assert TurnEnded(reason="ok", text="Hm.") in played.answer(stopReason="end_turn")
    assert played.prompts[1:] == [[LEAD, "Hurry.", "Please."]]
    taken = [sign for sign in played.hear(chunk("Yes.")) if isinstance(sign, TakenUp)]
    assert [sign.message_id for sign in taken] == ["m-2", "m-3"]


@pytest.mark.parametrize("runner", [Gemini(), Opencode()])
def test_what_is_said_is_taken_up_though_its_turn_ends_before_anything_is_told(
    runner: Gemini | Opencode,
) -> None:
    played = Played(runner)
    played.begin_turn()
    played.answer(stopReason="end_turn")
    played.write(played.dialogue.say("Again.", "m-2"))
    ready, taken, ended = played.answer(stopReason="end_turn")
    assert isinstance(ready, Ready)
    assert taken == TakenUp(message_id="m-2")
    assert isinstance(ended, TurnEnded)


def test_an_interrupt_answers_what_is_asked_and_what_was_not_heard_is_said_again() -> None:
    played = Played(Opencode())
    played.begin_turn()
    played.write(played.dialogue.say("Hurry.", "m-2"))
    played.hear(
        update("tool_call", toolCallId="c-1", title="bash", rawInput={"command": "sleep 9"}),
        question(7, "c-1", title="sleep 9", rawInput={"command": "sleep 9"}),
    )
    played.write(played.dialogue.interrupt())
    cancelled = {"id": 7, "result": {"outcome": {"outcome": "cancelled"}}}
    assert played.written[-1] == {"jsonrpc": "2.0", **cancelled}
    assert played.methods[-1] == "session/cancel"
    played.write(played.dialogue.say("Answer now.", "m-3"))
    played.answer(at=-2, stopReason="cancelled")
    (ended,) = played.answer(stopReason="cancelled")
    assert isinstance(ended, TurnEnded)
    assert ended.interrupted
    assert played.prompts[2:] == [[LEAD, "Hurry.", "Answer now."]]


def test_why_a_call_is_refused_is_told_to_opencode_and_cannot_be_told_to_gemini() -> None:
    told = {}
    for runner in (Opencode(), Gemini()):
        played = Played(runner)
        played.begin_turn()
        call: Event = {"title": "bash", "rawInput": {"command": "rm x"}}
        played.hear(update("tool_call", toolCallId="run_shell_command__1", **call))
        (asked,) = played.hear(question(7, "run_shell_command__1", **call))
        assert isinstance(asked, PermissionAsked)
        assert (asked.tool, asked.input) == ("Bash", {"command": "rm x"})
        played.write(played.dialogue.deny(asked, "no rule allows it"))
        answers = [event["result"] for event in played.written if "result" in event]
        assert answers == [{"outcome": {"outcome": "selected", "optionId": "no"}}]
        told[runner.name] = played.prompts[1:]
        assert played.dialogue.deny(asked, "again") == b""
    assert told == {"opencode": [[LEAD, "Bash was refused: no rule allows it"]], "gemini": []}


def test_a_question_waits_until_the_input_of_its_call_is_told() -> None:
    played = Played(Opencode())
    played.begin_turn()
    call = {"toolCallId": "c-1", "title": "tst_echo"}
    played.hear(update("tool_call", **call, status="pending", rawInput={}))
    assert played.hear(question(7, "c-1", title="tst_echo", rawInput={})) == []
    later = update("tool_call_update", **call, status="in_progress", rawInput={"x": "1"})
    called, asked = played.hear(later)
    assert isinstance(called, ToolCalled)
    assert isinstance(asked, PermissionAsked)
    assert (asked.tool, asked.input, asked.is_whole) == ("mcp__tst__echo", {"x": "1"}, True)
    assert played.answer(stopReason="end_turn")[:1] == [PermissionWithdrawn(request_id="int-7")]


@pytest.mark.parametrize(
    ("said", "cwd"),
    [
        ("[current working directory /srv] (d)", "/srv"),
        ("[in /workspace]", None),
        ("[in ../workspace] (as asked) [background]", None),
        ("[in /workspace/a b]", "/workspace/a b"),
        ("[in /workspace] (x] (y)", "/srv/[in /workspace] (x] (y)"),
        ("Trust me.", "/srv/Trust me."),
        ("", "/srv"),
    ],
)
def test_the_folder_that_gemini_runs_a_command_in_is_told(said: str, cwd: str | None) -> None:
    played = Played(Gemini())
    played.begin_turn()
    content = [{"type": "content", "content": {"type": "text", "text": said}}]
    call = question(7, "run_shell_command__1", kind="execute", title="rm -r build", content=content)
    asked = played.hear(call)[-1]
    assert isinstance(asked, PermissionAsked)
    assert asked.input == {"command": "rm -r build"} | ({} if cwd is None else {"cwd": cwd})


def test_the_folder_that_opencode_runs_a_command_in_is_waited_for() -> None:
    """Seen with 1.18.33: what it asks with has the command alone."""
    played = Played(Opencode())
    played.begin_turn()
    call: Event = {"toolCallId": "c-1", "kind": "execute"}
    played.hear(update("tool_call", **call, title="bash", status="pending", rawInput={"cwd": "/"}))
    raw = {"command": "rm -r build"}
    assert played.hear(question(7, "c-1", kind="execute", title="rm", rawInput=raw)) == []
    told = {**raw, "workdir": "/home/agent"}
    later = update("tool_call_update", **call, title="rm", status="in_progress", rawInput=told)
    asked = played.hear(later)[-1]
    assert isinstance(asked, PermissionAsked)
    assert asked.input == {**raw, "cwd": "/home/agent"}
    here = {**raw, "workdir": "/workspace"}
    played.hear(update("tool_call", toolCallId="c-2", kind="execute", title="bash", rawInput=here))
    asked = played.hear(question(8, "c-2", kind="execute", title="rm", rawInput=raw))[-1]
    assert isinstance(asked, PermissionAsked)
    assert asked.input == raw


def test_where_gemini_searches_is_not_told_so_what_is_denied_stays_denied() -> None:
    permissions = Permissions(allow=("Grep", "Glob"), deny=("Read(//etc/**)",))
    played = Played(Gemini())
    played.begin_turn()
    verdicts = []
    for number, name in ((7, "grep_search"), (8, "glob")):
        call = question(number, f"{name}__1", kind="search", title="'x' within /etc")
        asked = played.hear(call)[-1]
        assert isinstance(asked, PermissionAsked)
        verdicts.append(Gemini().decide(agent_with(permissions=permissions), asked).verdict)
    assert verdicts == ["deny", "allow"]


def test_a_conversation_is_taken_up_and_what_is_told_again_of_it_is_passed_over() -> None:
    played = Played(Gemini(), resume=SESSION)
    played.write(played.dialogue.say("Go on.", "m-1"))
    played.answer()
    played.answer()
    assert played.written[-1]["params"] == {"cwd": "/srv", "sessionId": SESSION}
    assert played.hear(chunk("Old.")) == []
    assert played.answer() == []
    assert played.hear(chunk("Old again.")) == []
    assert played.prompts == []
    signs = played.hear(update("available_commands_update"))
    assert signs[0] == Listening(conversation=SESSION)
    assert played.prompts == [[LEAD, "Go on."]]
    assert played.hear(chunk("New.")) == [Saying(text="New.", begins=True)]

    played = Played(Opencode(), resume=SESSION)
    played.write(played.dialogue.begin())
    played.answer()
    assert played.methods[-1] == "session/resume"
    assert played.answer() == [Listening(conversation=SESSION)]


def test_a_conversation_that_is_not_there_cannot_begin() -> None:
    played = Played(Opencode(), resume="other")
    played.write(played.dialogue.begin())
    played.answer()
    wrong = {"id": played.written[-1]["id"], "error": {"code": -32603, "message": "no session"}}
    assert played.hear(wrong) == [CannotBegin(why="no session")]


@pytest.mark.parametrize(
    ("answer", "reason", "text"),
    [
        ({"result": {"stopReason": "end_turn"}}, "ok", "Hm."),
        ({"result": {"stopReason": "max_tokens"}}, "max_tokens", "Hm."),
        ({"result": {"stopReason": "refusal"}}, "refusal", "Hm."),
        ({"result": {"stopReason": "something"}}, "cli_crashed", "Hm."),
        ({"result": None}, "cli_crashed", "Hm."),
        (
            {
                "error": {
                    "code": -32603,
                    "message": "Internal error: refused by the orchestrator: budget",
                }
            },
            "api_error",
            "refused by the orchestrator: budget",
        ),
        (
            {"error": {"code": 429, "message": "You have exhausted your daily quota"}},
            "api_rate_limit",
            "You have exhausted your daily quota",
        ),
        (
            {"error": {"code": 400, "message": '{"error":{"message":"API key not valid"}}'}},
            "api_auth",
            "API key not valid",
        ),
        ({"error": "nonsense"}, "api_error", "the CLI did not say why"),
    ],
)
def test_how_a_prompt_ends_is_the_verdict(answer: Event, reason: str, text: str) -> None:
    played = Played(Opencode())
    played.begin_turn()
    signs = played.hear({"id": played.written[-1]["id"], **answer})
    ended = signs[-1]
    assert isinstance(ended, TurnEnded)
    assert (ended.reason, ended.text) == (reason, text)


def test_names_of_tools_are_told_apart_by_the_servers_there_are() -> None:
    played = Played(Gemini())
    played.begin_turn()
    ids = (
        *("mcp_tst_echo__x1", "mcp_tst_a__b__x1", "mcp_tst_a__b__mcp_tst_a__b_17_0"),
        *("mcp_other_echo__x1", "mcp_tst___x1", "exit_plan_mode__x1", "../x__x1", "x1"),
    )
    calls = [update("tool_call", toolCallId=each, status="in_progress") for each in ids]
    tools = [sign.tool for sign in played.hear(*calls) if isinstance(sign, ToolCalled)]
    own = ["mcp_other_echo", "mcp_tst_", "exit_plan_mode", ".._x", "unknown"]
    assert tools == ["mcp__tst__echo", "mcp__tst__a__b", "mcp__tst__a__b", *own]


def test_an_id_that_is_too_long_or_odd_has_another_in_its_place() -> None:
    assert call_id({"toolCallId": "call_1"}) == "call_1"
    ids = [call_id({"toolCallId": odd}) for odd in ("x" * 65, "--all", "a b", "ä")]
    assert all(len(each) == 64 and each.isalnum() for each in ids)
    assert len(set(ids)) == 4
    assert call_id({"toolCallId": 7}) == ""


def test_hostile_lines_are_no_errors_and_do_not_pile_up() -> None:
    for runner in (Gemini(), Opencode()):
        played = Played(runner)
        played.begin_turn()
        odd: list[Event] = [
            {"method": "session/update"},
            update("tool_call"),
            update("tool_call", toolCallId=[], title=7),
            update("agent_message_chunk", content="x"),
            {"method": "session/update", "params": {"sessionId": "other", "update": {}}},
            {"id": 99, "result": {}},
            {"id": [], "method": "session/request_permission"},
            {"id": None, "result": 1},
        ]
        said = [sign for sign in played.hear(*odd) if not isinstance(sign, Said | Saying)]
        assert said == []
        before = len(played.written)
        played.hear(*({"id": n, "method": "fs/read_text_file"} for n in range(1000)))
        assert len(played.written) - before == MAX_UNANSWERED
        odd_ids: tuple[object, ...] = ("x" * 100_000, 10**100, {}, True)
        before = len(played.written)
        played.hear(*(question(1, "c-1", title="x") | {"id": odd} for odd in odd_ids))
        assert len(played.written) == before  # an id that is repeated is short
        asked = [question(n, f"c-{n}", kind="execute", title="x") for n in range(1000)]
        signs = played.hear(*asked)
        signs += played.hear(
            *(update("tool_call", toolCallId=f"c-{n}", rawInput={"x": 1}) for n in range(1000))
        )
        assert sum(isinstance(sign, PermissionAsked) for sign in signs) == MAX_UNANSWERED
        assert len(played.dialogue.hear(b"\xff\xfe{]\n[1]\n")) == 2


def test_an_id_or_a_text_without_end_takes_no_more_than_its_share() -> None:
    for runner in (Gemini(), Opencode()):
        played = Played(runner)
        played.begin_turn()
        # To look for a name in all of it took minutes, in which no other run went on.
        played.hear(update("tool_call", toolCallId="_" * TEXT_CHARS, title="x"))
        chunk = update("agent_message_chunk", content={"type": "text", "text": "a" * 300_000})
        signs = played.hear(*[chunk] * 8, question(1, "c-1", kind="execute", title="x"))
        (said,) = (sign for sign in signs if isinstance(sign, Said))
        assert len(said.text) == TEXT_CHARS


def terms(**fields: object) -> LaunchTerms:
    given = {"base_url": "http://127.0.0.1:8080", "token": "run-token", "cwd": "/workspace"}
    return LaunchTerms.model_validate({**given, **fields})


def agent_with(**fields: object) -> AgentSpec:
    return AgentSpec.model_validate({"name": "a", "description": "d", "prompt": "P", **fields})


SERVER = McpServer(name="srv", command="python3", args=("$HOME", "{env:HOME}"), env={"A": "b"})


def test_opencode_is_told_all_in_one_variable_that_nothing_is_filled_into() -> None:
    agent = agent_with(
        prompt="P {env:HOME} {file:/etc/passwd}",
        permissions=Permissions(allow=("Bash(git:*)", "Write", "WebSearch")),
        mcp_servers=(SERVER,),
        ask=Asking(whom="parent"),
        model="claude-x",
    )
    given = terms(mcp_servers=agent.mcp_servers, parent_url="http://127.0.0.1:8083/mcp")
    launch = Opencode().launch(agent, given)
    text = launch.env["OPENCODE_CONFIG_CONTENT"]
    assert "{env:" not in text
    assert "{file:" not in text
    config = json.loads(text)
    assert config["agent"]["build"]["prompt"].startswith("P {env:HOME} {file:/etc/passwd}\n\n")
    assert config["permission"] == {
        "*": "deny",
        "bash": "ask",
        "edit": "ask",
        "srv_*": "ask",
        "parent_*": "ask",
        "external_directory": "allow",
        "doom_loop": "allow",
    }
    assert config["mcp"]["srv"]["command"][-3:] == ["python3", "$HOME", "{env:HOME}"]
    assert config["mcp"]["parent"]["timeout"] == 24 * 3600 * 1000
    assert config["model"] == config["small_model"] == "gw/claude-x"
    assert launch.opening["session"] == {"cwd": "/srv", "mcpServers": []}
    assert launch.cwd == "/srv"


def test_gemini_has_settings_of_ours_and_servers_inside_apart_from_them() -> None:
    agent = agent_with(
        permissions=Permissions(allow=("Bash(git:*)", "Edit")),
        mcp_servers=(SERVER,),
        ask=Asking(whom="parent"),
        model="gemini-x",
    )
    given = terms(mcp_servers=agent.mcp_servers, parent_url="http://127.0.0.1:8083/mcp")
    launch = Gemini().launch(agent, given)
    files = {file.path.rpartition("/")[2]: file.content.decode() for file in launch.files}
    settings = json.loads(files["gemini-settings.json"])
    assert settings["tools"]["core"] == ["run_shell_command", "replace"]
    assert settings["context"]["includeDirectories"] == ["/workspace"]
    assert settings["mcp"] == {"allowed": ["srv", "parent"]}
    assert list(settings["mcpServers"]) == ["parent"]
    assert settings["hooksConfig"] == settings["skills"] == {"enabled": False}
    assert "$" not in files["gemini-settings.json"]
    session = launch.opening["session"]
    assert isinstance(session, dict)
    assert session["mcpServers"][0]["args"][-2:] == ["$HOME", "{env:HOME}"]
    assert files["gemini-system.md"].startswith("P\n\n")
    assert "run-token" not in " ".join(launch.argv)


@pytest.mark.parametrize("name", ["GEMINI_API_KEY", "GOOGLE_API_KEY", "NODE_OPTIONS", "HOME"])
def test_an_agent_cannot_set_what_gemini_goes_by(name: str) -> None:
    with pytest.raises(AgentInvalid, match=name):
        Gemini().launch(agent_with(), terms(env={name: "x"}))


@pytest.mark.parametrize("name", ["OPENCODE_CONFIG", "XDG_CONFIG_HOME", "BUN_OPTIONS", "HOME"])
def test_an_agent_cannot_set_what_opencode_goes_by(name: str) -> None:
    with pytest.raises(AgentInvalid, match=name):
        Opencode().launch(agent_with(), terms(env={name: "x"}))


def test_the_model_is_shown_tools_of_servers_that_a_rule_lets_it_call() -> None:
    servers = (McpServer(name="srv", command="x"), McpServer(name="two", command="x"))
    agent = agent_with(permissions=Permissions(allow=("mcp__srv__get",)), mcp_servers=servers)
    for runner, prefix in ((Gemini(), "mcp_"), (Opencode(), "")):
        names = ("bash", f"{prefix}srv_get", f"{prefix}srv_put", f"{prefix}two_any")
        assert [runner.is_offered(agent, name) for name in names] == [True, True, False, True]


@pytest.mark.parametrize("runner", [Gemini(), Opencode()])
def test_servers_whose_tools_could_have_one_name_are_refused(runner: Gemini | Opencode) -> None:
    """a_b_c is the tool b_c of a, or the tool c of a_b."""
    for names, refused in ((("a", "a_b"), True), (("a", "a-b"), False), (("a.b", "a_b"), True)):
        servers = tuple(McpServer(name=name, command="x") for name in names)
        given = terms(mcp_servers=servers)
        if refused:
            with pytest.raises(AgentInvalid, match=f"'{names[0]}'.*'{names[1]}'.*rename one"):
                runner.launch(agent_with(mcp_servers=servers), given)
        else:
            runner.launch(agent_with(mcp_servers=servers), given)


def test_a_call_of_gemini_without_arguments_has_none() -> None:
    given = {"kind": "other", "content": [{"type": "content", "content": {"text": "{}"}}]}
    assert input_of(given, "/srv") == {}
