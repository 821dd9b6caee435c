"""The Claude Code plugin: what it starts, and what its hook says.

tests/surfaces/mcp/test_clients.py has the real CLI run it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.surfaces.cli.setup import plugin
from orchestrator.surfaces.cli.talk.asked import waiting_line


def _program(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("package", "program"),
    [
        ("venv/lib/python3.12/site-packages/orchestrator", "venv/bin"),
        ("checkout/orchestrator", "checkout/.venv/bin"),
        ("elsewhere/orchestrator", "on-the-path"),
    ],
)
def test_it_starts_the_orchestrator_that_it_came_with(
    tmp_path: Path, package: str, program: str
) -> None:
    place = shutil.copytree(plugin.PLUGIN_DIR, tmp_path / package / "surfaces/claude_plugin")
    _program(tmp_path / program / "orchestrator", f'echo {program} "$ORCHESTRATOR_AGENTS_DIR" "$@"')
    path = f"{tmp_path / 'on-the-path'}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "CLAUDE_PROJECT_DIR": "/p q"}
    said = subprocess.run(
        ["sh", str(place / "orchestrator.sh"), "serve", "a b"], env=env, capture_output=True
    )
    assert said.stdout.decode() == f"{program} /p q/agents serve a b\n"


@pytest.mark.parametrize("ends", ["exit 0", "echo wrong >&2; exit 2", "kill -9 $$"])
def test_its_hook_never_fails_since_claude_would_send_the_model_back_to_work(
    tmp_path: Path, ends: str
) -> None:
    place = shutil.copytree(plugin.PLUGIN_DIR, tmp_path / "a/b/c")
    _program(tmp_path / "bin/orchestrator", f'echo "$@"; {ends}')
    env = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    said = subprocess.run(["sh", str(place / "hooks/waiting.sh")], env=env, capture_output=True)
    assert (said.returncode, said.stdout, said.stderr) == (0, b"pending --hook\n", b"")


def test_its_manifest_has_our_version() -> None:
    manifest = json.loads((plugin.PLUGIN_DIR / ".claude-plugin/plugin.json").read_text())
    assert manifest["version"] == __version__
    assert manifest["name"] == plugin.PLUGIN


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("", "`claude` is not on the PATH; install it, then type"),
        ("echo no such command >&2; exit 1", "no such command; try it yourself"),
        ("""echo '{"outcome":"error","message":"not now"}'; exit 1""", "not now; try it yourself"),
        ("exit 3", "exit code 3; try it yourself"),
        ("""echo '{"outcome":"ok"}'""", ""),
    ],
)
def test_what_claude_says_to_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    if program:
        _program(tmp_path / "claude", program)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = plugin.install()
    assert done.done == (not why)
    assert done.why.endswith(why)
    assert plugin.line_to_type() == (
        f"claude plugin install subagents --marketplace {plugin.PLUGIN_DIR}"
    )


@pytest.mark.parametrize(
    ("questions", "calls", "said"),
    [(1, 0, "1 question of"), (0, 2, "2 tool calls of"), (1, 1, "1 question and 1 tool call of")],
)
def test_the_hook_counts_what_waits(questions: int, calls: int, said: str) -> None:
    verb = "waits" if questions + calls == 1 else "wait"
    line = f"{said} your subagents {verb} for you: `orchestrator pending` shows them"
    assert waiting_line(questions, calls) == line
