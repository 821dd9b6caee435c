"""`orchestrator doctor` from outside: what it prints where, and what it exits with."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from orchestrator.containers.docker import runtime as docker_runtime
from orchestrator.containers.docker.create import create_body
from orchestrator.doctor.examination import Check
from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.setup.doctor import EXIT_BROKEN_PROMISE, _shown_checks

HELD = Check(name="dns", promise="no name can be resolved", ok=True, detail="[none]", advice="")
BROKEN = Check(name="user", promise="not root", ok=False, detail="uid 0", advice="do [this]")


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ORCHESTRATOR_SCRIPTED", "1")  # a key of this machine's is not asked about


@pytest.fixture
def _built(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_AGENT_IMAGE", image)


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.usefixtures("_built")
def test_all_promises_hold_and_json_is_exactly_one_object(
    capsys: pytest.CaptureFixture[str], image: str
) -> None:
    code = run("doctor", "--json")
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert [row for row in said["checks"] if not row["ok"]] == []
    assert code == 0
    assert captured.err == ""
    assert list(said) == ["ok", "engine", "image", "checks"]
    assert said["ok"] is True
    assert said["image"] == image
    assert list(said["engine"]) == ["address", "version", "api_version"]
    for row in said["checks"]:
        assert list(row) == ["name", "promise", "ok", "detail", "advice", "warning"]
    (workspace,) = (row["detail"] for row in said["checks"] if row["name"] == "workspace")
    assert workspace == "a directory that is shown to be read is mounted read-only"


@pytest.mark.usefixtures("_built")
def test_a_broken_promise_gets_a_cross_an_advice_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_a_cpu_limit(*args: object, **kwargs: object) -> dict[str, object]:
        body = create_body(*args, **kwargs)  # type: ignore[arg-type]
        config = body["HostConfig"]
        assert isinstance(config, dict)
        return {**body, "HostConfig": {**config, "NanoCpus": 0}}

    monkeypatch.setattr(docker_runtime, "create_body", without_a_cpu_limit)
    assert run("doctor") == EXIT_BROKEN_PROMISE
    lines = capsys.readouterr().out.splitlines()
    crosses = [at for at, line in enumerate(lines) if line.startswith("✗")]
    assert [lines[at].split()[1] for at in crosses] == ["processors"]
    assert lines[crosses[0] + 1].split()[0] == "→"
    assert {line[0] for line in lines} == {"✓", "✗", " ", "1"}
    assert lines[-1].startswith("1 of ")


@pytest.mark.parametrize("address", ["unix:///nowhere/engine.sock", "tcp://127.0.0.1:1"])
def test_an_unreachable_engine_is_an_error_of_its_own(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    assert run("doctor") == 6
    captured = capsys.readouterr()
    assert f"✗ socket           there is a container engine, and you may use it: {address}" in (
        captured.out
    )
    assert captured.err.startswith("error: no container engine answers")
    assert address in captured.err

    assert run("doctor", "--json") == 6
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["ok", "engine", "image", "checks", "error"]
    assert (said["ok"], said["engine"]) == (False, None)
    assert said["error"]["code"] == "engine_unreachable"


def test_an_image_that_is_not_there_is_an_error_that_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_AGENT_IMAGE", "orchestrator-test/no-such:image")
    assert run("doctor") == 4
    captured = capsys.readouterr()
    assert "✗" not in captured.out
    assert "orchestrator-test/no-such:image is not on the engine" in captured.err


def test_a_terminal_gets_a_table_row_per_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    with _shown_checks() as show:
        show(HELD)
        first = capsys.readouterr().out
        show(BROKEN)
    rows = [" ".join(line.split()) for line in (first + capsys.readouterr().out).splitlines()]
    assert rows == ["✓ no name can be resolved [none]", "✗ not root uid 0", "→ do [this]"]
    assert first.count("\n") == 1


def test_an_output_without_unicode_still_tells_good_from_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    with _shown_checks() as show:
        show(HELD)
        show(BROKEN)
    assert [line.split()[0] for line in written.getvalue().splitlines()] == [b"ok", b"no", b"->"]


def test_help_names_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "doctor" in capsys.readouterr().out
