"""`orchestrator run` from outside: the real CLI in a container, a script in the model's place."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys

import pytest

from orchestrator.domain.result import RunResult
from orchestrator.surfaces.cli.main import main
from tests.surfaces.conftest import Project

ECHO = "steps:\n  - text: '{last_user_text}'\n"
COUNT = """\
permissions: {allow: [Bash]}
output_schema: {type: object, required: [n], properties: {n: {type: integer}}}"""
COUNT_SCRIPT = """\
steps:
  - tool: Bash
    input: {command: ls /workspace | wc -l}
  - text: '{"n": "many"}'
  - text: '{"n": {last_tool_result}}'
"""
STUCK = "steps:\n  - text: too late\n    delay_seconds: 600\n    repeat: true\n"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_the_answer_goes_to_stdout_and_what_happens_meanwhile_to_stderr(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("count", COUNT_SCRIPT, COUNT)
    (project.path / "data").mkdir()
    for name in ("a", "b", "c"):
        (project.path / "data" / name).touch()

    assert run("run", "count", "How many files?", "--workspace", "data") == 0
    captured = capsys.readouterr()
    assert captured.out == '{\n  "n": 3\n}\n'
    lines = captured.err.splitlines()
    labels = [line.split()[2] for line in lines[:-1]]
    assert labels.count("model") == 3  # the gateway's word, a moment before the CLI's or after
    assert [label for label in labels if label != "model"] == [
        *("queued", "starting", "started", "ready"),
        *("uses", "result", "says", "sent", "says", "ended"),
    ]
    assert "/n: 'many' is not of type 'integer'" in captured.err
    assert lines[-1].startswith("completed in ")


def test_json_is_exactly_one_object_the_envelope(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("echo", ECHO)
    assert run("run", "echo", "hello", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said) == list(RunResult.model_fields)
    assert (said["status"], said["reason"], said["result"]) == ("completed", "ok", "hello")
    assert said["caller"] == "main"


def test_the_prompt_can_come_from_stdin_and_context_goes_before_it(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.agent("echo", ECHO)
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert run("run", "echo", "-", "--context", "It is late.") == 0
    assert capsys.readouterr().out == "Context:\nIt is late.\n\nTask:\nfrom a pipe\n"


@pytest.mark.parametrize("workspace", ["ro", "copy"])
def test_the_directory_that_one_stands_in_can_be_the_workspace(
    project: Project, capsys: pytest.CaptureFixture[str], workspace: str
) -> None:
    script = "steps: [{tool: Bash, input: {command: cat note}}, {text: '{last_tool_result}'}]"
    fields = f"workspace: {workspace}\npermissions: {{allow: [Bash]}}"
    project.agent("reader", script, fields)
    (project.path / "note").write_text("water the plants")
    assert run("run", "reader", "read", "--workspace", ".") == 0
    assert capsys.readouterr().out == "water the plants\n"


def test_a_run_that_fails_exits_with_1_and_says_why(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("locked-out", "steps:\n  - error: 401\n    repeat: true\n")
    assert run("run", "locked-out", "hello") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: locked-out failed (api_auth): " in captured.err


def test_a_run_past_its_time_exits_with_8(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("stuck", STUCK)
    assert run("run", "stuck", "hello", "--timeout", "2", "--json") == 8
    said = json.loads(capsys.readouterr().out)
    assert (said["status"], said["reason"]) == ("timed_out", "deadline")


def test_a_run_that_waits_for_the_agent_image_says_how_far_it_is(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base that cannot be had ends the build soon, and what comes before that is told."""
    project.agent("echo", ECHO)
    monkeypatch.delenv("ORCHESTRATOR_AGENT_IMAGE")
    monkeypatch.setenv("ORCHESTRATOR_BASE_IMAGE", "127.0.0.1:1/nothing:1")
    assert run("run", "echo", "hello") == 4
    *lines, error = capsys.readouterr().err.splitlines()
    assert [line.split(maxsplit=3)[2:] for line in lines] == [
        ["image", "the image for claude is not there yet; it is made once, in a minute or two"],
        ["image", "pulling 127.0.0.1:1/nothing:1"],
    ]
    assert error.startswith("error: ORCHESTRATOR_BASE_IMAGE=127.0.0.1:1/nothing:1 is not on the")


def test_an_unknown_agent_is_an_error_with_a_guess(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("echo", ECHO)
    assert run("run", "eco", "hello") == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: no agent 'eco'; known: echo (did you mean 'echo'?)\n"


def test_a_caller_that_the_agent_does_not_allow_is_refused(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.agent("echo", ECHO, "allowed_callers: [planner]")
    assert run("run", "echo", "hello", "--json") == 5
    assert json.loads(capsys.readouterr().out) == {
        "error": {
            "code": "caller_refused",
            "message": "agent 'echo' does not allow caller 'main'; it allows planner",
        }
    }
    assert run("run", "echo", "hello", "--caller", "planner") == 0
    monkeypatch.setenv("ORCHESTRATOR_CALLER", "planner")
    assert run("run", "echo", "hello") == 0


def test_a_directory_that_no_container_may_see_is_the_callers_error(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.agent("echo", ECHO)
    assert run("run", "echo", "hello", "--workspace", "/etc") == 5
    assert "error: /etc belongs to the system" in capsys.readouterr().err


def test_no_agents_directory_is_the_operators_to_mend(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "echo", "hello", "--agents-dir", "nowhere") == 4
    assert capsys.readouterr().err.startswith(
        f"error: there is no directory {project.path}/nowhere"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_run_and_no_container_is_left(
    project: Project, number: signal.Signals
) -> None:
    project.agent("stuck", STUCK)
    code = "from orchestrator.surfaces.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "run", "stuck", "hello", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if " ready " in line)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    said = json.loads(out)
    assert (said["status"], said["reason"]) == ("cancelled", "cancelled")
