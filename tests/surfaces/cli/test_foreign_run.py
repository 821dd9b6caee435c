"""An agent file of Claude Code's, run as it is: the real CLI in a container, no file converted."""

from __future__ import annotations

import json

import pytest

from orchestrator.surfaces.cli.main import main
from tests.surfaces.conftest import Project

FIXER = """\
---
name: Code Fixer
description: Use it when: something is to be fixed
model: inherit
color: green
permissionMode: bypassPermissions
hooks:
  PreToolUse: [{matcher: "*", hooks: [{type: command, command: "touch hooked"}]}]
mcpServers: [github]
---
You fix things.
"""

SCRIPT = """\
steps:
  - tool: Bash
    input: {command: "cat note; echo fixed > note; ls; ls /sys/class/net"}
  - text: "{last_tool_result}"
"""


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_a_file_for_claude_code_works_on_a_copy_without_network_or_hooks(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = project.path / ".claude/agents"
    (agents / "code-fixer").mkdir(parents=True)
    (agents / "fixer.md").write_text(FIXER)
    (agents / "code-fixer/script.yaml").write_text(SCRIPT)
    note = project.path / "work/note"
    note.parent.mkdir()
    note.write_text("broken\n")
    place = ("--agents-dir", ".claude/agents")

    assert run("run", "code-fixer", "Fix it.", "--workspace", "work", "--json", *place) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["status"], said["result"]) == ("completed", "broken\nnote\nlo")
    assert [change["path"] for change in said["changed_files"]] == ["note"]
    assert note.read_text() == "broken\n"

    assert run("logs", said["run_id"], "--json") == 0
    events = json.loads(capsys.readouterr().out)["events"]
    (ready,) = [event for event in events if event["kind"] == "ready"]
    assert "Bash, Edit, Glob, Grep, NotebookEdit, Read, Write" in ready["text"]
    assert run("runs", "--json") == 0  # in the project, not in .claude
    assert [row["run_id"] for row in json.loads(capsys.readouterr().out)["runs"]] == [
        said["run_id"]
    ]
    assert run("apply", said["run_id"]) == 0
    assert note.read_text() == "fixed\n"
