"""Record what the real claude CLI says, for the tests of its parser.

    python -m tests.runners.claude.record [CASE...]

Runs both pinned versions on this machine, in an empty HOME, against a scripted model on loopback,
and writes recorded/<version>/<case>.jsonl. What differs from run to run or from machine to machine
(ids, times, paths, ports) is replaced; long lists are cut; nothing else is touched.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc

from orchestrator.containers.images.claude_binary import fetch_claude
from orchestrator.domain.agent import AgentSpec, McpServer, Permissions
from orchestrator.domain.container import HOME, WORKSPACE, Launch
from orchestrator.gateway.http.loopback import listen_on_loopback
from orchestrator.gateway.parent import PARENT_PATH, ParentAccess
from orchestrator.runners.claude import input as claude_input
from orchestrator.runners.claude import launch as claude_launch
from orchestrator.runners.claude.output import Parser
from orchestrator.runners.contract import LaunchTerms
from orchestrator.runners.signs import PermissionAsked, ToolCalled, TurnEnded
from orchestrator.settings import read_settings
from tests.runners.claude.fake_model import Cut, Fail, FakeModel, Say, Stall, Step, Together, Use

VERSIONS = ("2.1.197", "2.1.325")
RECORDED = Path(__file__).parent / "recorded"

CASE_SECONDS = 120
"""For one case on a loaded machine."""

LONGEST_LINE = 4000
LONGEST_LIST = 4
"""What is left of each list in a line that is too long."""


@dataclass(frozen=True)
class Case:
    """What the model does, what the CLI is told, and who the agent is."""

    steps: tuple[Step, ...]
    messages: tuple[str, ...] = ("Do it.",)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    max_turns: int = 50
    retries: int = 0
    servers: tuple[McpServer, ...] = ()
    interrupt: bool = False
    """Stop the first turn when a tool is called, or when the model does not go on."""
    ask: tuple[str, ...] = ()
    decide: Callable[[PermissionAsked], bytes] | None = None
    """The lines to say to a call that asks for permission; with none, calls do not ask."""
    parent: bool = False
    """There is somebody to ask, who answers the second question first, and each with its text."""


def allow(asked: PermissionAsked) -> bytes:
    return claude_input.allow(asked.request_id, asked.input)


def edit(asked: PermissionAsked) -> bytes:
    return claude_input.allow(asked.request_id, {"command": "echo edited"})


def deny(asked: PermissionAsked) -> bytes:
    return claude_input.deny(asked.request_id, "Not on a Sunday.")


def deny_the_second(asked: PermissionAsked) -> bytes:
    return deny(asked) if asked.input == {"command": "touch b"} else allow(asked)


def interrupt_and_allow(asked: PermissionAsked) -> bytes:
    """Too late, that is."""
    return claude_input.interrupt("stop-1") + allow(asked)


def question(text: str) -> Use:
    return Use("mcp__parent__ask_parent", {"question": text})


DONE = Say("All done.")
CASES = {
    "text": Case((Say("Hello there."),)),
    "tool": Case((Use("Bash", {"command": "echo hi"}), DONE), allow=("Bash",)),
    "two_turns": Case((Say("One."), Say("Two.")), messages=("First.", "Second.")),
    "schema_retry": Case(
        (Say('{"n": "one"}'), Use("Bash", {"command": "echo 1"}), Say('{"n": 1}')),
        messages=("Count.", "Your answer does not fit the schema: /n: 'one' is not an integer."),
        allow=("Bash(echo:*)",),
    ),
    "api_400": Case((Fail(400),)),
    "api_401": Case((Fail(401),)),
    "api_429": Case((Fail(429),)),
    "api_500": Case((Fail(500),)),
    "api_529": Case((Fail(529),)),
    "api_500_then_ok": Case((Fail(500), DONE), retries=1),
    "cut_in_text": Case((Cut("Half an ans"),)),
    "cut_after_text": Case((Cut("An answer.", block_ends=True),)),
    "cut_after_tool": Case(
        (Use("Bash", {"command": "echo hi"}), Cut("An answer.", block_ends=True)), allow=("Bash",)
    ),
    "cut_then_ok": Case((Cut("Half an ans"), DONE)),
    "dropped_in_text": Case((Cut("Half an ans", dropped=True),)),
    "dropped_after_text": Case((Cut("An answer.", block_ends=True, dropped=True),)),
    "max_turns": Case((Use("Bash", {"command": "echo hi"}),), allow=("Bash",), max_turns=2),
    "refusal": Case((Say("I will not.", stop="refusal"),)),
    "max_tokens": Case((Say("And then, and then", stop="max_tokens"),)),
    "stop_sequence": Case((Say("Stopped.", stop="stop_sequence"),)),
    "interrupt": Case(
        (Use("Bash", {"command": "tail -f /dev/null"}), Say("Back again.")),
        messages=("Wait.", "Go on."),
        allow=("Bash",),
        interrupt=True,
    ),
    "interrupt_streaming": Case(
        (Stall("Half an ans"), Say("Back again.")), messages=("Talk.", "Go on."), interrupt=True
    ),
    "denied_twice": Case(
        (Use("Bash", {"command": "touch a"}), DONE, Use("Bash", {"command": "touch b"}), DONE),
        messages=("First.", "Second."),
        allow=("Bash(curl:*)",),
    ),
    "denied": Case((Use("Bash", {"command": "touch forbidden"}), DONE), allow=("Bash(curl:*)",)),
    "denied_by_rule": Case(
        (Use("Bash", {"command": "curl --version"}), DONE),
        allow=("Bash",),
        deny=("Bash(curl:*)",),
    ),
    "unknown_tool": Case((Use("Bash", {"command": "echo hi"}), DONE)),
    "approved": Case(
        (Use("Bash", {"command": "touch a"}), DONE),
        allow=("Bash",),
        ask=("Bash(touch:*)",),
        decide=allow,
    ),
    "approved_edited": Case(
        (Use("Bash", {"command": "echo original"}), DONE),
        allow=("Bash",),
        ask=("Bash",),
        decide=edit,
    ),
    "rejected": Case((Use("Bash", {"command": "touch a"}), DONE), ask=("Bash",), decide=deny),
    "asked_unmentioned": Case(
        (Use("Bash", {"command": "touch a"}), DONE),
        allow=("Bash(curl:*)",),
        ask=("Write",),
        decide=deny,
    ),
    "asked_and_denied_by_rule": Case(
        (Use("Bash", {"command": "touch a"}), DONE),
        allow=("Bash",),
        deny=("Bash(touch:*)",),
        ask=("Bash",),
        decide=allow,
    ),
    "asked_and_denied_in_a_subshell": Case(
        (Use("Bash", {"command": "(mkdir b && touch a)"}), DONE),
        allow=("Bash",),
        deny=("Bash(touch:*)",),
        ask=("Bash",),
        decide=deny,
    ),
    "asked_of_parts": Case(
        (Use("Bash", {"command": "mkdir d && touch a"}), DONE),
        allow=("Bash",),
        ask=("Bash(touch:*)",),
        decide=deny,
    ),
    "asked_of_mcp": Case(
        (question("Which colour?"), DONE), ask=("mcp__parent",), decide=deny, parent=True
    ),
    "asked_together": Case(
        (
            Together((Use("Bash", {"command": "touch a"}), Use("Bash", {"command": "touch b"}))),
            DONE,
        ),
        allow=("Bash",),
        ask=("Bash",),
        decide=deny_the_second,
    ),
    "asked_interrupted": Case(
        (Use("Bash", {"command": "touch a"}), Say("Back again.")),
        messages=("Do it.", "Go on."),
        allow=("Bash",),
        ask=("Bash",),
        decide=interrupt_and_allow,
    ),
    "parent_asked": Case((question("Which colour?"), DONE), parent=True),
    "parent_asked_twice_at_once": Case(
        (Together((question("Which colour?"), question("Which size?"))), DONE), parent=True
    ),
    "parent_told": Case(
        (Use("mcp__parent__update_status", {"summary": "Half way."}), DONE), parent=True
    ),
    "parent_interrupted": Case(
        (question("Which colour?"), Say("Back again.")),
        messages=("Ask.", "Go on."),
        parent=True,
        interrupt=True,
    ),
    "failed_mcp": Case(
        (DONE,), servers=(McpServer(name="absent", command="/no/such/server", args=("x",)),)
    ),
}


async def record(version: str, name: str) -> bytes:
    """The lines of one case, as they came."""
    case = CASES[name]
    model = FakeModel(list(case.steps))
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        home, workspace = _folders(Path(folder))
        with anyio.fail_after(CASE_SECONDS):
            async with model.on_loopback() as base_url, parent_on_loopback(case) as parent_url:
                launch = here(launch_of(case, base_url, parent_url), version, home, workspace)
                raw = await converse(launch, case, model)
    address = base_url.removeprefix("http://")
    places = {str(home): HOME, str(workspace): WORKSPACE, address: "127.0.0.1:8080"}
    return sanitised(raw, places)


@asynccontextmanager
async def parent_on_loopback(case: Case) -> AsyncIterator[str]:
    """Somebody who answers a question with what it was, but only after the one that came next."""
    several = isinstance(case.steps[0], Together)
    asked, answered = anyio.Event(), anyio.Event()

    async def ask(text: str, _: str | None) -> str:
        if case.interrupt:
            await anyio.sleep_forever()
        if several and not asked.is_set():
            asked.set()
            await answered.wait()
        answered.set()
        return f"You asked: {text}"

    access = ParentAccess(ask, lambda *_: None)

    async with listen_on_loopback(access.service) as url:
        yield f"{url}{PARENT_PATH}"


def _folders(parent: Path) -> tuple[Path, Path]:
    home, workspace = parent / "home", parent / "workspace"
    home.mkdir()
    workspace.mkdir()
    return home, workspace


def launch_of(case: Case, base_url: str, parent_url: str) -> Launch:
    agent = AgentSpec(
        name="recorded",
        description="Is recorded.",
        prompt="You are a test.",
        model="claude-sonnet-4-5",
        max_turns=case.max_turns,
        permissions=Permissions(allow=case.allow, deny=case.deny),
        approval=dict.fromkeys(case.ask, "ask"),
        mcp_servers=case.servers,
    )
    terms = LaunchTerms(
        base_url=base_url,
        token="run-token",
        mcp_servers=case.servers,
        cwd=WORKSPACE,
        parent_url=parent_url if case.parent else None,
    )
    made = claude_launch.launch(agent, terms)
    retries = {"CLAUDE_CODE_MAX_RETRIES": str(case.retries)}
    return made.model_copy(update={"env": {**made.env, **retries}})


def here(launch: Launch, version: str, home: Path, workspace: Path) -> Launch:
    """The same program outside a container: its files placed, its paths those of this machine."""
    for file in launch.files:
        path = Path(file.path.replace(HOME, str(home)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    binary = fetch_claude(read_settings().cache_dir, version, "x64", print)
    argv = (str(binary), *(arg.replace(HOME, str(home)) for arg in launch.argv[1:]))
    env = {name: value.replace(HOME, str(home)) for name, value in launch.env.items()}
    return Launch(argv=argv, env=env, cwd=str(workspace))


async def converse(launch: Launch, case: Case, model: FakeModel) -> bytes:
    """Say each message when the turn before it has ended; all that was answered."""
    messages = list(case.messages)
    said, parser = b"", Parser()
    async with await anyio.open_process(
        launch.argv, cwd=launch.cwd, env=launch.env, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin
        assert process.stdout
        await process.stdin.send(claude_input.user_message(messages.pop(0)))
        if isinstance(case.steps[0], Stall):
            await model.stalled.wait()
            await process.stdin.send(claude_input.interrupt("stop-1"))
        async for chunk in process.stdout:
            said += chunk
            for sign in parser.feed(chunk):
                if isinstance(sign, ToolCalled) and case.interrupt:
                    await process.stdin.send(claude_input.interrupt("stop-1"))
                elif isinstance(sign, PermissionAsked) and case.decide:
                    await process.stdin.send(case.decide(sign))
                elif isinstance(sign, TurnEnded) and messages:
                    await process.stdin.send(claude_input.user_message(messages.pop(0)))
                elif isinstance(sign, TurnEnded):
                    await process.stdin.aclose()
    return said


def sanitised(raw: bytes, places: dict[str, str]) -> bytes:
    text = raw.decode()
    for place, shown in places.items():
        text = text.replace(place, shown)
        # Claude's own folders are named after a path, with "-" for all that is no letter or digit.
        text = text.replace(re.sub(r"[^A-Za-z0-9]", "-", place), re.sub(r"\W", "-", shown))
    ids: dict[str, str] = {}
    text = re.sub(
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        lambda match: ids.setdefault(match[0], f"00000000-0000-4000-8000-{len(ids):012}"),
        text,
    )
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "2026-01-01T00:00:00.000Z", text)
    text = re.sub(r"/cc-socks/\d+", "/cc-socks/1", text)
    text = re.sub(r"first after \d+ ms", "first after 10 ms", text)
    return "".join(_steady(line) + "\n" for line in text.splitlines()).encode()


def _steady(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return line
    value = _timeless(value)
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(line) > LONGEST_LINE:
        line = json.dumps(_shortened(value), ensure_ascii=False, separators=(",", ":"))
    return line


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: 100 if key.endswith("_ms") and isinstance(item, (int, float)) else _timeless(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return value


def _shortened(value: object) -> object:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value[:LONGEST_LIST]]
    return value


async def main(names: list[str]) -> None:
    for version in VERSIONS:
        for name in names or CASES:
            target = RECORDED / version / f"{name}.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            lines = await record(version, name)
            target.write_bytes(lines)
            print(f"{version} {name}: {len(lines.splitlines())} lines, {len(lines)} bytes")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:])
