"""`orchestrator show` and `orchestrator apply` from outside: what a run did to its copy."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.store.runs import RunRecord
from orchestrator.surfaces.cli import changes
from orchestrator.surfaces.cli.changes import changed_line, patch_styles, record_lines
from orchestrator.surfaces.cli.main import main
from tests.surfaces.conftest import Project

FIELDS = "permissions: {allow: [Bash]}\nworkspace: copy"

EDIT = """\
steps:
  - tool: Bash
    input:
      command: "echo good bye > greeting.txt; mv old.txt new.txt; rm gone.txt; chmod +x run.sh;
        printf 'a\\\\0b' > bin"
  - text: I have changed {last_user_text}.
"""

CHANGES = ["A  bin", "D  gone.txt", "M  greeting.txt", "R  old.txt -> new.txt", "m  run.sh"]


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_warnings_of_a_run_are_shown() -> None:
    known: dict[str, str] = {"run_id": "r1", "agent": "a", "caller": "main", "status": "completed"}
    ended = RunResult.model_validate({**known, "reason": "ok", "warnings": ("left\nout",)})
    record = RunRecord.model_validate(
        {**known, "reason": "ok", "prompt": "go", "created": 0.0, "ended": 1.0, "result": ended}
    )
    assert "warning   left out" in record_lines(record)


def make_tree(root: Path) -> Path:
    root.mkdir()
    for name, text in (("greeting.txt", "hello"), ("gone.txt", "x"), ("run.sh", "true")):
        (root / name).write_text(f"{text}\n")
    (root / "old.txt").write_text("".join(f"{number}\n" for number in range(20)))
    return root


def tree(root: Path) -> dict[str, tuple[bytes, bool]]:
    """Every file: what is in it, and whether it can be run."""
    return {p.name: (p.read_bytes(), os.access(p, os.X_OK)) for p in sorted(root.iterdir())}


@pytest.fixture
def data(project: Project) -> Path:
    return make_tree(project.path / "data")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changes")


@pytest.fixture
def tmp_path(shared: Path) -> Path:
    """The same place for all tests, empty for each: the record of a run names its workspace."""
    shutil.rmtree(shared / "place", ignore_errors=True)
    (shared / "place").mkdir()
    return shared / "place"


@pytest.fixture
def run_id(shared: Path, project: Project, data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A run that changed its copy of `data`; it is run once, and all that it left is kept."""
    kept, said = shared / "kept", shared / "run_id"
    if kept.exists():
        shutil.copytree(kept, shared / "place", dirs_exist_ok=True, symlinks=True)
    else:
        run_id = changed_data(project, capsys)
        shutil.copytree(shared / "place", kept, symlinks=True)
        said.write_text(run_id)
    return said.read_text()


def changed_data(project: Project, capsys: pytest.CaptureFixture[str]) -> str:
    project.agent("edit", EDIT, FIELDS)
    assert run("run", "edit", "things", "--workspace", "data") == 0
    said = capsys.readouterr()
    assert said.out == "I have changed things.\n"
    found = re.search(r"; 5 files changed, `orchestrator apply (r[0-9a-f]+)` applies it", said.err)
    assert found is not None, said.err
    return found[1]


def test_a_run_is_shown_with_what_it_changed(
    run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", run_id) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"run       {run_id}, edit for main",
        "status    completed",
        "task      things",
    ]
    assert lines[3].startswith("took      ")
    assert sorted(lines[4:9]) == [f"changed   {line}" for line in CHANGES]
    assert lines[9:] == [
        f"          `orchestrator apply {run_id}` applies it, --patch prints it",
        "",
        "I have changed things.",
    ]

    assert run("show", run_id, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["run_id"] == run_id
    assert said["result"]["result"] == "I have changed things."
    assert {"path": "new.txt", "change": "renamed", "old_path": "old.txt", "acts": ""} in (
        said["result"]["changed_files"]
    )


def test_a_patch_has_colours_by_its_lines_and_not_by_how_they_look() -> None:
    patch = [
        *("diff --git a/x b/x", "--- a/x", "+++ b/x", "@@ -1,2 +1,3 @@ def f():", " same"),
        *("--- a comment that is gone", "+++ one that came", "+more", "diff --git a/y b/y"),
    ]
    assert list(patch_styles(patch)) == list(
        zip(
            patch,
            ["bold", "bold", "bold", "cyan", "", "red", "green", "green", "bold"],
            strict=True,
        )
    )


def test_a_patch_that_is_printed_is_one_that_git_takes(
    run_id: str, data: Path, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", run_id, "--patch") == 0
    patch = capsys.readouterr().out
    assert run("show", run_id, "--patch", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"run_id": run_id, "patch": patch}

    other = make_tree(project.path / "other")
    subprocess.run(("git", "apply"), input=patch.encode(), cwd=other, check=True)
    assert run("apply", run_id) == 0
    assert tree(other) == tree(data)
    assert tree(data)["bin"] == (b"a\0b", False)
    assert tree(data)["run.sh"] == (b"true\n", True)


def test_changes_are_applied_once_they_have_been_looked_at(
    run_id: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(data)
    assert run("apply", run_id, "--dry-run") == 0
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == CHANGES
    assert said.err == f"5 files would be changed in {data}\n"
    assert tree(data) == before

    assert run("apply", run_id, "nosuch") == 5
    assert "the run has changed nothing at nosuch; changed: bin" in capsys.readouterr().err
    # A part of it, as the changes name it, and as a shell in the directory above completes it.
    assert run("apply", run_id[:6], "new.txt", "./data/run.sh") == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == CHANGES[3:]
    assert said.err == f"2 files changed in {data}; 3 files more changed in the copy\n"
    assert sorted(tree(data)) == ["gone.txt", "greeting.txt", "new.txt", "run.sh"]

    assert run("apply", "last") == 0
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == CHANGES[:3]
    assert said.err == f"3 files changed in {data}\n"
    assert sorted(tree(data)) == ["bin", "greeting.txt", "new.txt", "run.sh"]
    assert tree(data)["greeting.txt"] == (b"good bye\n", False)

    assert run("apply", run_id) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"nothing to do: {data} is like that already\n")
    assert run("apply", run_id, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("files")
    assert document == {"already": True, "dry_run": False, "kept_folders": []}


def test_changes_can_be_applied_to_another_directory(
    run_id: str, data: Path, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    other, before = make_tree(project.path / "other"), tree(data)
    assert run("apply", run_id, "--to", "other", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said.pop("files")) == len(CHANGES)
    assert said == {"already": False, "dry_run": False, "kept_folders": []}
    assert tree(other)["greeting.txt"] == (b"good bye\n", False)
    assert tree(data) == before

    for place, why in (("agents", "which no agent may write"), ("/etc", "belongs to the system")):
        assert run("apply", run_id, "--to", place) == 5
        assert why in capsys.readouterr().err


def test_a_project_that_holds_its_agents_is_changed_and_they_are_not(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """\
steps:
  - tool: Bash
    input: {command: "%s"}
  - text: done
"""
    project.agent("good", script % "echo new > notes.txt", FIELDS)
    project.agent("bad", script % "echo new > more.txt; echo x >> agents/good/agent.md", FIELDS)
    worse = "echo x > orchestrator.yaml; mkdir Agents; echo x > Agents/x"
    project.agent("worse", script % worse, FIELDS)

    def changed(agent: str) -> str:
        assert run("run", agent, "x", "--workspace", ".", "--json") == 0
        run_id = json.loads(capsys.readouterr().out)["run_id"]
        assert isinstance(run_id, str)
        return run_id

    run_id = changed("good")
    for options in (("--dry-run",), ()):
        assert run("apply", run_id, *options) == 0
    assert (project.path / "notes.txt").read_text() == "new\n"
    capsys.readouterr()

    run_id = changed("bad")
    for options in (("--dry-run",), ()):
        assert run("apply", run_id, *options) == 5
        said = capsys.readouterr().err
        assert f"agents/good/agent.md belongs to the orchestrator's own {project.path}/agents" in (
            said
        )
        assert "more.txt" not in said
    assert not (project.path / "more.txt").exists()

    run_id = changed("worse")
    assert run("apply", run_id) == 5
    said = capsys.readouterr().err
    for place in ("Agents", "Agents/x", "orchestrator.yaml"):  # on a Mac, case does not count
        assert f"\n  {place} belongs to the orchestrator's own" in said
    assert sorted(path.name for path in project.path.iterdir()) == ["agents", "notes.txt"]


def test_a_tree_that_has_moved_is_left_alone_and_the_conflict_is_named(
    run_id: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "greeting.txt").write_text("mine\n")
    before = tree(data)
    for options in ((), ("--dry-run",)):
        assert run("apply", run_id, *options) == 5
        said = capsys.readouterr()
        assert said.out == ""
        first, *others = said.err.splitlines()
        assert first == f"error: {data} was left as it is, since the changes do not fit:"
        assert len(others) == 1
        assert "greeting.txt" in others[0]
        assert tree(data) == before
    assert run("apply", run_id, "--json") == 5
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "apply_refused"


def test_an_apply_that_is_told_to_end_takes_back_what_it_has_done(
    run_id: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = tree(data), os.rename
    for sign in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        handler = signal.getsignal(sign)
        renamed: list[object] = []

        def rename(*args: object, **options: object) -> None:
            real(*args, **options)  # type: ignore[arg-type]
            renamed.append(args[0])  # noqa: B023 called in this round
            if len(renamed) == 2:  # noqa: B023
                os.kill(os.getpid(), sign)  # noqa: B023
                os.kill(os.getpid(), signal.SIGTERM)  # somebody is impatient

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            assert run("apply", run_id) != 0
        assert len(renamed) == 2
        assert tree(data) == before
        assert signal.getsignal(sign) == handler


def test_a_patch_that_is_no_text_is_printed_as_it_is_and_not_as_json(
    project: Project, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = """\
steps:
  - tool: Bash
    input: {command: "printf 'caf\\\\351\\\\n' > greeting.txt"}
  - text: done
"""
    project.agent("latin", script, FIELDS)
    assert run("run", "latin", "x", "--workspace", "data", "--json") == 0
    said = json.loads(capfdbinary.readouterr().out)
    assert "GIT binary patch" in said["patch"]
    assert run("show", said["run_id"], "--patch") == 0
    assert b"-hello\n+caf\xe9\n" in capfdbinary.readouterr().out
    assert run("show", said["run_id"], "--patch", "--json") == 5
    error = json.loads(capfdbinary.readouterr().out)["error"]
    assert "print it without --json" in error["message"]


def test_a_run_that_is_not_there_or_changed_nothing_is_told(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in (("show", "r0"), ("show", "r0", "--patch"), ("apply", "r0"), ("apply", "../x")):
        assert run(*argv) == 5
        said = f"error: there is no run '{argv[1]}'; `orchestrator runs` lists them\n"
        assert capsys.readouterr().err == said
    assert run("apply", "r0", "--json") == 5
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "run_not_found"

    project.agent("idle", "steps:\n  - text: done\n", FIELDS)
    make_tree(project.path / "data")
    assert run("run", "idle", "x", "--workspace", "data", "--json") == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    for argv in (("show", run_id, "--patch"), ("apply", run_id)):
        assert run(*argv) == 5
        assert capsys.readouterr().err.startswith(f"error: run {run_id} has changed no file, so ")
    assert run("show", run_id) == 0
    assert "changed" not in capsys.readouterr().out


def test_a_failed_run_is_shown_with_its_reason_and_its_changes_can_be_applied(
    project: Project, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """\
steps:
  - tool: Bash
    input: {command: echo late > greeting.txt}
  - error: 401
    repeat: true
"""
    project.agent("unlucky", script, FIELDS)
    assert run("run", "unlucky", "x", "--workspace", "data", "--json") == 1
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    assert run("show", run_id) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "status    failed (api_auth)"
    assert lines[3].startswith("message   ")
    assert "changed   M  greeting.txt" in lines
    assert run("apply", run_id) == 0
    assert capsys.readouterr().err == f"1 file changed in {data}\n"
    assert (data / "greeting.txt").read_text() == "late\n"


def test_what_acts_on_this_machine_is_shown_and_wants_a_word(
    project: Project,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = """\
steps:
  - tool: Bash
    input: {command: "echo 'all: evil' > Makefile; echo x > fine"}
  - text: done
"""
    project.agent("acting", steps, FIELDS)
    assert run("run", "acting", "x", "--workspace", "data", "--json") == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    line = "A  Makefile  (acts: make and its like run what it says)"
    assert run("show", run_id) == 0
    assert f"changed   {line}" in capsys.readouterr().out.splitlines()
    assert run("apply", run_id, "--dry-run") == 0
    assert line in capsys.readouterr().out.splitlines()

    assert run("apply", run_id) != 0
    told = capsys.readouterr().err
    assert f"`orchestrator show {run_id} --patch`" in told
    assert f"`orchestrator apply {run_id} --allow-acting`" in told
    monkeypatch.setattr(changes, "_can_ask", lambda: True)
    for answer, applied in (("n\n", False), ("y\n", True)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert (run("apply", run_id) == 0) is applied
        said = capsys.readouterr().err
        assert line in said
        assert "Have you looked at them" in said
        assert (data / "fine").exists() is applied
    (data / "fine").unlink()
    (data / "Makefile").unlink()
    monkeypatch.setattr(changes, "_can_ask", lambda: False)
    assert run("apply", run_id, "--allow-acting") == 0
    assert (data / "Makefile").read_text() == "all: evil\n"


def test_a_name_that_would_look_like_more_lines_stays_on_its_own() -> None:
    file = ChangedFile(path="a\nM  b", change="renamed", old_path="\x1b[2J")
    assert changed_line(file) == r'R  "\u001b[2J" -> "a\nM  b"'
