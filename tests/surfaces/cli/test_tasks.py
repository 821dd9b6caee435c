"""Runs of another process, from the command line: what they ask, and what is done about it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from orchestrator.app import open_runtime
from orchestrator.containers.owner import Owner
from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.settings import read_settings
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.talk.asked import TERMINAL_INPUT_CHARS, input_line
from orchestrator.surfaces.cli.talk.tasks import EXIT_NOT_ENDED, exit_code
from orchestrator.surfaces.text import span
from tests.surfaces.conftest import Project

PATIENCE = 120
"""For anything at all; the machine may be busy."""

CODE = "from orchestrator.surfaces.cli.main import main; main()"

ASKING = """\
steps:
  - tool: mcp__parent__ask_parent
    input: {question: "Which colour?"}
  - text: "it is {last_tool_result}"
"""
CAREFUL = """\
steps:
  - tool: Bash
    input: {command: "echo asked-for"}
  - text: "got {last_tool_result}"
"""
STUCK = "steps:\n  - text: too late\n    delay_seconds: 600\n    repeat: true\n"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


# On the store alone


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two runs of an orchestrator that lives: one asks something, one has ended."""
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path))
    now = time.time()

    async def fill(owner: str) -> None:
        store = Store(tmp_path / "runs.sqlite", owner)
        exchanges = Exchanges(store)
        for run_id in ("r1", "r2"):
            task = Task(agent="coder", prompt="p", run_id=run_id, project=read_settings().project)
            await store.add_run(task)
            await store.set_status(run_id, "running")
        await exchanges.ask(
            Question(
                message_id="m1",
                run_id="r1",
                question="Which\ncolour?\x1b[2J",
                asked=now,
                deadline=now + 7200,
            )
        )
        for call in ("c1", "c2"):
            await exchanges.request(
                Approval(
                    call_id=call,
                    run_id="r1",
                    tool="Bash",
                    input={"command": f"echo {call}"},
                    asked=now,
                    deadline=now + 7200,
                )
            )
        await store.finish(
            RunResult(run_id="r2", agent="coder", caller="main", status="failed", reason="budget")
        )
        store.close()

    with Owner(tmp_path) as owner:
        anyio.run(fill, owner.id)
        yield tmp_path


def approvals(state: Path) -> dict[str, Approval]:
    async def read() -> dict[str, Approval]:
        store = Store(state / "runs.sqlite")
        try:
            return {each.call_id: each for each in await Exchanges(store).approvals("r1")}
        finally:
            store.close()

    return anyio.run(read)


def test_pending_lists_what_waits_with_the_commands_that_answer_it(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pending", "--all") == 0
    assert capsys.readouterr().out.splitlines() == [
        "r1: coder asks (m1; answers itself in 2 h)",
        "    Which",
        "    colour?�[2J",
        "  without an answer, it goes by this:",
        "  orchestrator reply r1 m1 ANSWER",
        "r1: coder wants to use Bash (c1; rejected in 2 h)",
        '    {"command": "echo c1"}',
        "  orchestrator approve r1 c1    or reject",
        "r1: coder wants to use Bash (c2; rejected in 2 h)",
        '    {"command": "echo c2"}',
        "  orchestrator approve r1 c2    or reject",
    ]
    assert run("pending", "--all", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["message_id"] for each in said["questions"]] == ["m1"]
    assert [each["call_id"] for each in said["approvals"]] == ["c1", "c2"]
    assert run("pending", "--all", "--hook") == 0
    line = "1 question and 2 tool calls of your subagents wait for you: `orchestrator pending`"
    assert json.loads(capsys.readouterr().out) == {"systemMessage": f"{line} shows them"}


def test_a_question_is_answered_once(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reply", "r1", "m1", "blue", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"run_id": "r1", "message_id": "m1", "answer": "blue"}
    for argv, why in (
        (("r1", "m1", "red"), "question m1 has been answered already: 'blue'"),
        (("r1", "m9", "red"), "run r1 has asked no question 'm9'"),
        (
            ("r1", "red"),
            "r1 has no question that waits for you; this waits: `orchestrator approve r1 c1`",
        ),
        (("c1", "yes"), "this project has no question c1 that waits for you; this waits: `orch"),
        (("r1", "m1", "red", "and", "blue"), "put the answer in quotes: reply RUN MESSAGE 'THE"),
        (("r9", "m1", "red"), "there is no run 'r9'; `orchestrator runs` lists them"),
    ):
        assert run("reply", *argv) in (2, 5)
        assert capsys.readouterr().err.startswith(f"error: {why}")


def test_of_several_tool_calls_one_is_allowed_only_by_its_name_or_with_all_others(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, code in (((), 5), (("c",), 5), (("c1", "--all"), 2)):
        assert run("approve", "r1", *argv) == code
        assert "name the calls, or say --all" in capsys.readouterr().err
    assert run("approve", "r1", "c1", "c9") == 5
    assert capsys.readouterr().err == (
        "error: r1 has no tool call c9 that waits for you; this waits: `orchestrator reply r1 m1 "
        "ANSWER`, `orchestrator approve r1 c1`, `orchestrator approve r1 c2`\n"
    )
    assert {each.decision for each in approvals(state).values()} == {"pending"}

    assert run("approve", "r1", "c1", "--input", '{"command": "true"}') == 0
    assert capsys.readouterr().out == 'approved  c1  Bash {"command": "true"}\n'
    assert run("reject", "r1", "--all", "--why", "not today", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [(each["call_id"], each["decision"]) for each in said["approvals"]] == [
        ("c2", "rejected")
    ]
    kept = approvals(state)
    assert kept["c1"].new_input == {"command": "true"}
    assert kept["c2"].message == "not today"
    assert run("approve", "r1", "--all") == 0
    assert capsys.readouterr().out == (
        "r1 has no tool call that waits for you; this waits: `orchestrator reply r1 m1 ANSWER`\n"
    )


def test_what_is_meant_needs_no_more_words_than_tell_it_apart(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("reply", "m", "blue", "--json") == 0
    assert json.loads(capsys.readouterr().out)["message_id"] == "m1"
    assert run("reply", "green") == 5
    assert (
        "this project has no question that waits for you; this waits: `orchestrator approve r1"
        in (capsys.readouterr().err)
    )
    assert run("reject", "c1") == 0  # without its run
    assert capsys.readouterr().out.startswith("rejected  c1  Bash")
    assert run("approve", "--json") == 0  # the only one that is left
    (said,) = json.loads(capsys.readouterr().out)["approvals"]
    assert (said["call_id"], said["decision"]) == ("c2", "approved")
    assert run("approve") == 5
    assert capsys.readouterr().err == (
        "error: this project has no tool call that waits for you; "
        "`orchestrator pending --all` looks at every project\n"
    )
    assert run("approve", "--all") == 2

    for meant in ("r2", "last"):  # of two runs in the same moment, the last one added
        assert run("show", meant, "--json") == 0
        assert json.loads(capsys.readouterr().out)["run_id"] == "r2"
    assert run("logs", "r") == 5
    said_ = capsys.readouterr().err
    assert said_ == "error: 'r' is the beginning of several runs: r2, r1; write more of it\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("c1", "--input", "{"), "--input is no JSON"),
        (("c1", "--input", "[]"), "--input must be a JSON object"),
        (("c1", "c2", "--input", "{}"), "--input goes with exactly one CALL"),
        (("--all", "--input", '{"a": 1}'), "--input goes with exactly one CALL"),
    ],
)
def test_an_input_that_nobody_understands_allows_nothing(
    state: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], why: str
) -> None:
    assert run("approve", "r1", *options) == 2
    assert why in capsys.readouterr().err
    assert {each.decision for each in approvals(state).values()} == {"pending"}


def test_waiting_ends_at_once_for_a_run_that_asks_or_has_ended(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("wait", "r1") == EXIT_NOT_ENDED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "r1: coder waiting_parent_reply"
    assert lines[1].startswith("r1: coder asks (m1;")
    assert run("wait", "r2", "--json") == 1
    (view,) = json.loads(capsys.readouterr().out)["runs"]
    assert TaskView.model_validate_json(json.dumps(view)).reason == "budget"
    assert run("wait", "r1", "r2", "--any", "--timeout", "0") == 1


def test_an_ended_run_can_be_cancelled_again_and_hears_nothing_more(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("cancel", "r2") == 0
    assert capsys.readouterr().out.startswith("r2: coder failed (budget) in ")
    assert run("resume", "r2", "go on") == 5
    assert "r2 has ended and its container is gone" in capsys.readouterr().err
    assert run("resume", "r1", "hurry", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"run_id": "r1", "told": "hurry"}


def test_the_exit_code_is_that_of_the_first_run_that_did_not_end_well() -> None:
    done = TaskView(run_id="r1", agent="a", caller="main", status="completed")
    late, open_ = (
        done.model_copy(update={"status": status}) for status in ("timed_out", "running")
    )
    assert exit_code([done, done], any_=False) == 0
    assert exit_code([done, late], any_=False) == 8
    assert exit_code([done, open_], any_=False) == EXIT_NOT_ENDED
    assert exit_code([done, open_], any_=True) == 0
    assert exit_code([open_], any_=True) == EXIT_NOT_ENDED


def test_an_input_that_is_too_long_says_how_much_is_missing() -> None:
    shown = input_line({"command": "x" * 5000})
    assert shown.endswith(
        f"… and {5000 + 15 - TERMINAL_INPUT_CHARS} characters more (pending --json)"
    )
    assert [span(seconds) for seconds in (-1, 59, 60, 7200, 86400)] == [
        *("0 s", "59 s", "1 min", "2 h", "1 d"),
    ]


# With real runs of another process


@contextmanager
def running(*argv: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command in a process of its own, and the id of its run, once it has one."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "run", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if " queued " in line)
            yield process, _only_run()
        finally:
            process.kill()


def _only_run() -> str:
    async def find() -> str:
        store = Store(Path(os.environ["ORCHESTRATOR_STATE_DIR"]) / "runs.sqlite")
        try:
            return (await store.find_runs(limit=1))[0].run_id
        finally:
            store.close()

    return anyio.run(find)


def test_a_question_of_a_run_in_one_terminal_is_answered_in_another(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("asker", ASKING, "ask: parent")
    with running("asker", "go") as (process, run_id):
        assert process.stderr is not None
        hint = next(line for line in process.stderr if "orchestrator reply" in line)
        assert run("wait", run_id, "--timeout", "60") == EXIT_NOT_ENDED
        assert "asker asks (" in capsys.readouterr().out
        assert run("pending", "--json") == 0
        (question,) = json.loads(capsys.readouterr().out)["questions"]
        message_id = question["message_id"]
        assert f"`orchestrator reply {run_id} {message_id} ANSWER`" in hint
        assert run("reply", run_id, message_id, "blue") == 0
        out, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "it is blue\n")
    capsys.readouterr()
    assert run("pending") == 0
    assert capsys.readouterr().out.startswith(f"nothing waits for you in {project.path}; --all")
    assert run("pending", "--hook") == 0
    assert capsys.readouterr().out == ""
    assert run("wait", run_id) == 0


def test_a_tool_call_of_a_run_is_edited_and_allowed_in_another_terminal(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("careful", CAREFUL, "permissions: {allow: [Bash]}\napproval: {Bash: ask}")
    with running("careful", "go") as (process, run_id):
        assert process.stderr is not None
        hint = next(line for line in process.stderr if "orchestrator approve" in line)
        call = re.findall(rf"`orchestrator approve {run_id} (\S+)`", hint)[0]
        assert run("approve", run_id, call, "--input", '{"command": "echo edited"}') == 0
        out, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "got edited\n")


def test_a_run_is_cancelled_from_another_terminal(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("stuck", STUCK)
    with running("stuck", "go", "--json") as (process, run_id):
        assert process.stderr is not None
        next(line for line in process.stderr if " ready " in line)
        assert run("cancel", run_id) == 0
        assert capsys.readouterr().out.startswith(f"{run_id}: stuck cancelled in ")
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 9
        assert json.loads(out)["status"] == "cancelled"


def test_a_run_that_was_killed_is_told_of_truthfully(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("stuck", STUCK)
    with running("stuck", "go") as (process, run_id):
        assert process.stderr is not None
        next(line for line in process.stderr if " ready " in line)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE)
        assert run("wait", run_id, "--json") == 1
        (view,) = json.loads(capsys.readouterr().out)["runs"]
        assert (view["status"], view["reason"]) == ("failed", "orchestrator_lost")
    anyio.run(_container_goes)


async def _container_goes() -> None:
    async with open_runtime(read_settings(), reap=False) as runtime:
        with anyio.fail_after(PATIENCE):
            while await runtime.list():
                await anyio.lowlevel.checkpoint()


def test_a_question_is_answered_right_there_at_the_terminal(project: Project) -> None:
    project.agent("asker", ASKING, "ask: parent")
    terminal, theirs = os.openpty()
    command = [sys.executable, "-c", CODE, "run", "asker", "go", "--notify"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            if b"\a" not in _read_until(terminal, b"type the answer to"):
                _read_until(terminal, b"\a")  # before there is an answer, so it is not of the end
            os.write(terminal, b"blue\n")
            _read_until(terminal, b"it is blue")
            with suppress(OSError):  # it hangs up
                while os.read(terminal, 4096):
                    pass
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(terminal)


def test_a_run_in_the_background_goes_on_when_it_asks(project: Project) -> None:
    project.agent("asker", ASKING, "ask: parent")
    terminal, theirs = os.openpty()
    asks = shlex.join([sys.executable, "-c", CODE, "run", "asker", "go"])
    job = ["setsid", "--ctty", "--wait", "bash", "-c", f"set -m; {asks} & wait"]
    with subprocess.Popen(job, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            said = _read_until(terminal, b" ANSWER`").decode()
            _, run_id, message = said[said.rindex("orchestrator reply") :].split()[1:4]
            os.write(terminal, b"to somebody else\n")
            assert run("reply", run_id, message, "blue") == 0
            _read_until(terminal, b"it is blue")
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(terminal)


def test_an_answer_without_words_is_none(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for answer in ("", "  "):
        assert run("reply", "r1", "m1", answer) == 5
        assert capsys.readouterr().err.startswith("error: the answer is empty")


def _read_until(terminal: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        said += os.read(terminal, 4096)
    return said
