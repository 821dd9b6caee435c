"""How a command ends that does not come to its own end: quietly, and with the right exit code."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from orchestrator.errors import EngineUnreachable, StoreFailed
from orchestrator.surfaces.cli.failures import LogLines, Outcome, mistake, outcome
from tests.surfaces.conftest import Project

PATIENCE = 120
"""For anything at all; the machine may be busy."""

CODE = "from orchestrator.__main__ import main; main()"

SLOW = """\
steps:
  - tool: Bash
    input: {command: "true"}
  - text: the answer
    delay_seconds: 1
"""


@contextmanager
def started(
    *argv: str, code: str = CODE, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *argv]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("exc", "meant"),
    [
        (KeyboardInterrupt(), Outcome(130)),
        (typer.Abort(), Outcome(130)),
        (BrokenPipeError(), Outcome(141)),
        (ExceptionGroup("", [ExceptionGroup("", [BrokenPipeError()])]), Outcome(141)),
        (ExceptionGroup("", [ValueError(), BrokenPipeError()]), Outcome(141)),
        (
            ExceptionGroup("", [EngineUnreachable("no engine")]),
            Outcome(6, "engine_unreachable", "no engine"),
        ),
        (
            PermissionError(13, "Permission denied", "/x"),
            Outcome(
                *(4, "operator_error"),
                "/x: Permission denied; check that it is there, that it is yours, and the disk",
            ),
        ),
        (ValueError("a bug"), None),
        (ExceptionGroup("", [EngineUnreachable("no engine"), ValueError("a bug")]), None),
    ],
)
def test_every_exception_has_a_meaning_or_is_a_mistake(
    exc: BaseException, meant: Outcome | None
) -> None:
    assert outcome(exc) == meant


def test_a_mistake_of_ours_is_a_sentence_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path))
    with pytest.raises(ValueError, match="so it") as caught:
        int("so it\nwent")
    said = mistake(caught.value)
    (report,) = (tmp_path / "reports").iterdir()
    assert said == Outcome(
        *(70, "internal_error"),
        "this is a mistake in the orchestrator itself (ValueError: invalid literal for int() with "
        f"base 10: 'so it\\nwent'); please report it: what led to it is in {report}",
    )
    assert "test_endings.py" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600


def test_a_log_line_says_what_an_exception_means(caplog: pytest.LogCaptureFixture) -> None:
    exc = StoreFailed("no room")
    logging.getLogger("x").error("the result of %s is not kept yet", "r1", exc_info=exc)
    (record,) = caplog.records
    assert LogLines().format(record) == "error: the result of r1 is not kept yet: no room"


def test_a_reader_that_leaves_ends_the_command_quietly(project_dir: Path) -> None:
    read, written = os.pipe()
    os.close(read)
    with started("agents", "list", stdout=written) as process:
        os.close(written)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (141, "")


def test_output_that_cannot_be_written_is_told(project_dir: Path) -> None:
    with Path("/dev/full").open("w") as full, started("agents", "list", stdout=full.fileno()) as it:
        _, err = it.communicate(timeout=PATIENCE)
    assert it.returncode == 4
    assert (
        err == "error: No space left on device; check that it is there, that it is yours, and "
        "the disk\n"
    )


def test_closed_streams_are_no_mistake(project_dir: Path) -> None:
    shell = f"exec {sys.executable} -c '{CODE}' agents list >&- 2>&- <&-"
    assert subprocess.run(["sh", "-c", shell], timeout=PATIENCE).returncode == 0


def test_an_early_ctrl_c_is_quiet(project_dir: Path) -> None:
    code = "import orchestrator.__main__ as m; print('loaded', flush=True); m.main()"
    with started("logs", "-f", "r1", code=code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        process.send_signal(signal.SIGINT)  # while it imports all the rest
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (-signal.SIGINT, 130)
    assert err == ""


@pytest.fixture
def project_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an agent; nothing here needs an engine."""
    (tmp_path / "agents/echo").mkdir(parents=True)
    (tmp_path / "agents/echo/agent.md").write_text("---\nname: echo\ndescription: Echoes.\n---\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRATOR_AGENTS_DIR", raising=False)
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


# With an engine


def test_a_disk_that_is_full_in_the_middle_of_a_run_is_told_and_the_answer_is_not_lost(
    project: Project,
) -> None:
    project.agent("slow", SLOW, "permissions: {allow: [Bash]}")
    with started("run", "slow", "go") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if " uses " in line)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))  # no file can grow
        out, err = process.communicate(timeout=PATIENCE)
    assert out == "the answer\n"
    assert process.returncode == 4
    assert "Traceback" not in err
    assert "could not be written down, so later it is told as lost. Check free space" in err
