"""One set of promises for every runner: the real program, in a locked container, against a
scripted model in its own format.

`test_what_every_runner_does` has one session, and in it one run after another: each is a cell of
the table in agents/README.md, and is reported by its name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.task import Task
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.gateway.model import bill
from orchestrator.runners.known import RUNNERS
from orchestrator.runners.signs import UNKNOWN
from tests.engine.harness import Harness, Steps
from tests.engine.servers.stage import pin, use
from tests.engine.spares.watched_pool import WatchedPool
from tests.gateway.tools.remote_servers import remote_server
from tests.runners.contract_suite.clis import CLIS, ScriptedCli
from tests.runners.contract_suite.play import CANARY, Play, Playing, played
from tests.runners.contract_suite.search import SEARCH

CELL_SECONDS = 120
"""For one of them, on a machine under load."""

MAX_TURNS = 10

COUNT = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}

MCP_SERVER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    params = asked.get("params", {})
    if asked["method"] == "initialize":
        done = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "srv", "version": "1"}}
    elif asked["method"] == "tools/list":
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        done = {"tools": [{"name": "env", "description": "A variable.", "inputSchema": schema}]}
    elif asked["method"] == "tools/call":
        name = params["arguments"]["name"]
        said = f"{name}={os.environ.get(name)} {sys.argv[1]}"
        done = {"content": [{"type": "text", "text": said}]}
    else:
        done = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": done}), flush=True)
"""

INSIDE = {
    "name": "srv",
    "command": "python3",
    "args": ["-c", MCP_SERVER, "c$HOME"],
    "env": {"A": "b$HOME"},
}
"""A server that the CLI starts; what it is given is taken literally by none of them by itself."""


@pytest.fixture(params=list(CLIS))
def cli(request: pytest.FixtureRequest) -> ScriptedCli:
    return CLIS[request.param]


@pytest.fixture
def harness(
    runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path
) -> Iterator[Harness]:
    made = Harness(runtime, runner_image, tmp_path)
    yield made
    made.store.close()


def test_every_runner_is_in_the_suite() -> None:
    assert set(CLIS) == set(RUNNERS)


async def test_a_spare_works_on_a_copy_within_its_rules_and_answers_as_its_schema_says(
    harness: Harness, cli: ScriptedCli, runtime: DockerRuntime, tmp_path: Path
) -> None:
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    (project / "old.txt").write_text("old\n")
    steps: Steps = [
        cli.command("touch new.txt"),
        cli.command("rm old.txt"),
        {"text": "no idea"},
        {"text": '{"n": 3}'},
    ]
    model = Playing()
    model.play(steps)
    harness.models = model.service
    harness.pool = WatchedPool(PoolLimits(quiet_seconds=CELL_SECONDS))
    service = harness.service(
        steps,
        warm=1,
        workspace="copy",
        permissions={"allow": ["Bash(cd:*)", "Bash(touch:*)"]},
        output_schema=COUNT,
        **cli.agent,
    )
    task = Task(agent="worker", prompt="Do it.", workspace=project)
    with anyio.fail_after(CELL_SECONDS):
        async with harness.pool:
            staging = service._staging
            agent = service.agents.current().agent("worker")
            staging.stock._want(await staging.planner.prepare(agent, task))
            await harness.pool.until(lambda state: state.waiting == 1)
            (waiting,) = await runtime.list()
            result = await service.run(task, harness.events.append)
        assert (harness.pool.state.claimed, harness.pool.state.cold) == (1, 0)

    (started,) = (event.text for event in harness.events if event.kind == "started")
    assert started == f"{cli.runner} in {waiting.name}"
    assert (result.status, result.result, result.attempts) == ("completed", {"n": 3}, 2), result
    assert (result.runner, result.tried) == (cli.runner, ())
    assert result.denied_tools == ("Bash",)
    assert [(file.path, file.change) for file in result.changed_files] == [("new.txt", "added")]
    assert result.usage.requests == 4
    assert result.cost_usd > 0
    assert {"started", "ready", "tool_call", "schema_failed"} <= set(harness.kinds())


Cell = Callable[[Play], Awaitable[None]]


async def calls_are_decided_and_servers_are_reached(play: Play) -> None:
    """A tool, a denied one, an approval, a rejection with a reason, MCP over stdio and HTTP, a
    question to the caller.
    """
    cli, abilities = play.cli, RUNNERS[play.cli.runner].abilities
    steps: Steps = [
        cli.command("touch allowed"),
        cli.command("mkdir denied"),
        cli.command("touch asked-yes"),
        cli.command("touch asked-no"),
        cli.server("srv", "env", {"name": "A"}),
        cli.server("far", "echo", {"text": "over HTTP"}),
        cli.server("parent", "ask_parent", {"question": "Which colour?"}),
        {"text": "All done."},
    ]
    run_id = await play.start(steps, "/init is what I say, and @x.")
    book = play.tasks.book
    (first,) = (await play.until(run_id, lambda view: view.approvals)).approvals
    assert first.input["command"] == cli.line("touch asked-yes")
    assert await play.files() == {"allowed"}
    await book.decide(run_id, "main", approve=[first.call_id])
    await play.until(run_id, lambda view: [a for a in view.approvals if a != first])
    await book.decide(run_id, "main", reject_all=True, message="not today")
    (question,) = (await play.until(run_id, lambda view: view.questions)).questions
    await book.reply(run_id, question.message_id, "Green.", "main")
    result = await play.end(run_id)

    assert (result.status, result.result) == ("completed", "All done."), result
    assert await play.files() == {"allowed", "asked-yes"}
    assert result.denied_tools == ("Bash",)
    assert (result.failed_mcp_servers, result.session_note) == ((), "")
    (ready,) = (event for event in play.events if event.kind == "ready")
    status = "connected" if abilities.tells_servers else UNKNOWN
    assert ready.data["mcp_servers"] == dict.fromkeys(("srv", "far", "parent"), status)
    heard = play.model.bodies
    assert result.usage.requests == len(heard)
    assert "You work." in heard[0]
    assert "/init is what I say, and @x." in heard[0]
    assert "not today" not in heard[3]
    whole = heard[-1]
    assert ("not today" in whole) is abilities.tells_reason
    assert "A=b$HOME c$HOME" in whole
    assert "over HTTP" in play.model.bodies[6].replace(json.dumps(steps[5]["input"]), "")
    assert "Green." in whole
    told = [warning for warning in result.warnings if "why a call was refused" in warning]
    assert bool(told) is not abilities.tells_reason, result.warnings


async def it_is_told_something_in_a_turn(play: Play) -> None:
    wait = play.cli.command("mkfifo go; cat go")
    run_id = await play.start([wait, {"text": "{user_texts}", "repeat": True}], "Wait.")
    await play.model.until_asked(1)
    await play.until_runs("cat go ", True)
    assert await play.tasks.tell(run_id, "Hurry.", "main")
    while "steered" not in play.kinds():
        await anyio.sleep(0.02)
    await play.inside("sh", "-c", "echo on > go")
    result = await play.end(run_id)

    assert (result.status, result.reason) == ("completed", "ok"), result
    steers = RUNNERS[play.cli.runner].abilities.steers
    assert ("Hurry." in play.model.bodies[1]) is steers
    assert "Hurry." in play.model.bodies[-1]
    told = [warning for warning in result.warnings if "when its turn is over" in warning]
    assert bool(told) is not steers, result.warnings


async def it_is_interrupted(play: Play) -> None:
    steps: Steps = [
        play.cli.command("mkfifo never; cat never"),
        {"text": "{user_texts}", "repeat": True},
    ]
    run_id = await play.start(steps, "Wait again.")
    await play.model.until_asked(1)
    await play.until_runs("cat never ", True)
    assert await play.tasks.tell(run_id, "Answer now.", "main", now=True)
    result = await play.end(run_id)

    assert (result.status, result.reason) == ("completed", "ok"), result
    assert "Answer now." in play.model.bodies[-1]
    await play.until_runs("cat never ", False)


NEVER = {"text": "Too late.", "delay_seconds": 3600}


async def a_soft_deadline_rescues_the_answer(play: Play) -> None:
    run_id = await play.start([NEVER, {"text": "What I had.", "repeat": True}], "Think.")
    await play.model.until_asked(1)
    play.pass_time(run_id, 550)
    result = await play.end(run_id)

    assert (result.status, result.reason) == ("completed", "deadline"), result
    assert result.result == "What I had."
    assert "nudged" in play.kinds()


async def a_hard_deadline_ends_the_run(play: Play) -> None:
    run_id = await play.start([NEVER | {"repeat": True}], "Think again.")
    await play.model.until_asked(1)
    play.pass_time(run_id, 550)
    await play.model.until_asked(2)
    play.pass_time(run_id, 596)
    result = await play.end(run_id)

    assert (result.status, result.reason) == ("timed_out", "deadline"), result
    assert {"nudged", "interrupted"} <= set(play.kinds())


ENDINGS: dict[str, tuple[dict[str, object], str]] = {
    "401": ({"error": 401, "message": f"the key {CANARY} is none"}, "api_auth"),
    "429": ({"error": 429, "retry_after": 0}, "api_rate_limit"),
    "quota": ({"error": 429, "means": "quota", "retry_after": 0}, "api_rate_limit"),
    "500": ({"error": 500, "retry_after": 0}, "api_error"),
    "529": ({"error": 529, "retry_after": 0}, "api_overloaded"),
    "cut": ({"text": "half an ans", "cut": True}, "stream_cut"),
    "refusal": ({"text": "I will not.", "stop_reason": "refusal"}, "refusal"),
    "length": ({"text": "It goes on and", "stop_reason": "max_tokens"}, "max_tokens"),
}
"""What the model does -> what the run is told to have failed for."""


def the_model_does(name: str) -> Cell:
    async def seen(play: Play) -> None:
        step, reason = ENDINGS[name]
        result = await play.run([step | {"repeat": True}], f"Try {name}.")
        assert (result.status, result.reason) == ("failed", reason), result
        assert len(play.model.bodies) <= 5
        for of_the_inside in ("127.0.0.1", "refused by the orchestrator", CANARY):
            assert of_the_inside not in result.message
        # and the next run is none the worse for it
        after = await play.run([{"text": "Well.", "repeat": True}], f"Well after {name}?")
        assert (after.status, after.result) == ("completed", "Well."), after

    return seen


async def turns_are_limited(play: Play) -> None:
    steps = [play.cli.command(f"echo {number}") for number in range(MAX_TURNS + 1)]
    result = await play.run(steps, "Again.")
    assert (result.status, result.reason) == ("failed", "max_turns"), result
    assert result.usage.requests == MAX_TURNS


async def the_same_call_is_made_again_and_again(play: Play) -> None:
    steps = [play.cli.command("echo round")] * (MAX_TURNS - 2)
    result = await play.run([*steps, {"text": "Round."}], "Go round.")
    if play.cli.ends_loops:
        assert (result.status, result.reason) == ("failed", "max_turns"), result
        assert "by itself" in result.message
    else:
        assert (result.status, result.result) == ("completed", "Round."), result


async def money_is_limited(play: Play) -> None:
    # Not for a million tokens: the CLIs would take the conversation for too long, and shorten it.
    again = play.cli.command("echo once more", repeat=True)
    result = await play.run([again], "Spend.", budget_usd=0.0001)
    assert (result.status, result.reason) == ("failed", "budget"), result
    assert result.usage.requests == 1


async def the_key_is_nowhere(play: Play) -> None:
    """The search finds what is there: the run's token, and a word that lies in a file."""
    await play.start([NEVER], "Hold.")
    await play.model.until_asked(1)
    await play.inside("sh", "-c", "echo needle-in-a-file > needle")
    (held,) = play.harness.sessions._live.values()
    assert held.place is not None
    token = held.place.reach.model.token
    words = [CANARY, token, "needle-in-a-file"]
    said = await play.inside("python3", "-c", SEARCH, *(word[::-1] for word in words))
    key, own, needle = json.loads(said)
    assert key == []
    assert "memory" in own, own
    assert "file" in needle, needle
    assert all(play.model.keys), "the API has seen it with every request"
    assert not any(CANARY in body for body in play.model.bodies)
    inspected = await play.harness._runtime.engine.inspect(held.place.container.name)  # type: ignore[attr-defined]
    assert CANARY not in str(inspected)


async def it_is_cancelled(play: Play) -> None:
    run_id = await play.start([play.cli.command("mkfifo not-ever; cat not-ever")], "Wait for ever.")
    await play.model.until_asked(1)
    await play.until_runs("cat not-ever ", True)
    view = await play.tasks.cancel(run_id, "main", seconds=CELL_SECONDS)
    assert view.result is not None
    assert (view.result.status, view.result.reason) == ("cancelled", "cancelled"), view.result
    await play.until_runs("cat not-ever ", False)


async def it_remembers_after_a_cancel_and_after_a_kill_with_a_new_prompt(play: Play) -> None:
    said: Steps = [{"text": "I was told: {user_texts}", "repeat": True}]
    first = await play.run(said, "And now?")
    assert (first.status, first.session_note) == ("completed", ""), first
    assert all(word in str(first.result) for word in ("Wait again.", "And now?"))

    (held,) = play.harness.sessions._live.values()
    assert held.stage is not None
    held.stage.conversation.process.signal(9)
    await held.stage.conversation.process.wait()
    agent = play.harness.agents_dir / "worker" / "agent.md"
    agent.write_text(agent.read_text().replace("You work.", "You are new."))
    second = await play.run(said, "And then?")
    assert (second.status, second.session_note) == ("completed", ""), second
    assert all(word in str(second.result) for word in ("And now?", "And then?"))
    assert "You are new." in play.model.bodies[-1]
    assert "You work." not in play.model.bodies[-1]


CELLS: dict[str, Cell] = {
    "calls, approvals, servers, ask_parent": calls_are_decided_and_servers_are_reached,
    "steering": it_is_told_something_in_a_turn,
    "interrupt": it_is_interrupted,
    "soft deadline": a_soft_deadline_rescues_the_answer,
    "hard deadline": a_hard_deadline_ends_the_run,
    "turns": turns_are_limited,
    "a loop": the_same_call_is_made_again_and_again,
    "budget": money_is_limited,
    **{name: the_model_does(name) for name in ENDINGS},
    "cancel": it_is_cancelled,
    "session": it_remembers_after_a_cancel_and_after_a_kill_with_a_new_prompt,
    "key nowhere": the_key_is_nowhere,
}


@asynccontextmanager
async def session_of(harness: Harness, cli: ScriptedCli) -> AsyncIterator[Play]:
    """A session of an agent that may do something of everything."""
    async with remote_server() as remote:
        server = {
            "url": f"{remote.url}/mcp",
            "network": {"allow_private": [remote.url.removeprefix("http://")]},
        }
        folder = harness.agents_dir / "servers" / "far"
        folder.mkdir(parents=True)
        (folder / "server.yaml").write_text(json.dumps(server))
        await pin(harness, "far")
        fields = {
            "permissions": {"allow": ["Bash"], "deny": ["Bash(mkdir:*)"]},
            "approval": {"Bash(touch asked*)": "ask"},
            "ask": "parent",
            "mcp_servers": [INSIDE, use("echo", name="far")],
            "max_turns": MAX_TURNS,
            "timeout_ms": 600_000,
        }
        async with played(harness, cli, **fields) as play:
            yield play


async def test_what_every_runner_does(
    harness: Harness,
    cli: ScriptedCli,
    subtests: pytest.Subtests,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(bill, "FAILURES_IN_A_ROW", 1)  # a CLI waits for long before it asks again
    caplog.set_level(logging.DEBUG, "orchestrator")
    async with session_of(harness, cli) as play:
        for name, cell in CELLS.items():
            with subtests.test(name), anyio.fail_after(CELL_SECONDS):
                await play.show(cell)
        kept = [result.model_dump_json() for result in play.results]
    assert CANARY not in "".join((*kept, repr(harness.events), caplog.text))
    assert_nowhere(CANARY.encode(), tmp_path)


def assert_nowhere(word: bytes, folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "runs.sqlite" for path in files)
    assert [path for path in files if word in path.read_bytes()] == []
