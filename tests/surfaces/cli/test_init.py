"""`orchestrator init` from outside: what it writes works, nothing is overwritten, and each client
finds its entry.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.settings import OWN_VARIABLES
from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.setup import init as cli_init
from orchestrator.surfaces.cli.setup.client_entries import CODEX_APPROVED, KNOWN_CLIENTS
from tests.surfaces.conftest import Project
from tests.surfaces.mcp.mcp_stage import TOOLS

FILES = ("agents/hello/agent.md", "agents/hello/script.yaml", ".mcp.json")

AGENTS_DIR = "ORCHESTRATOR_AGENTS_DIR"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_the_example_loads_and_runs(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [f"written  {project.path / name}" for name in FILES]
    assert run("agents", "check") == 0
    assert capsys.readouterr().out == "1 agent, all good\n"
    assert run("run", "hello", "Which kernel is this?") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["answer", "evidence"]


def test_a_second_time_changes_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = [part for name in KNOWN_CLIENTS for part in ("--client", name)]
    assert run("init", str(tmp_path), *every) == 0
    capsys.readouterr()
    (tmp_path / "agents/hello/agent.md").write_text("mine")
    before = _tree(tmp_path)
    assert run("init", str(tmp_path), *every) == 0
    out = capsys.readouterr().out.splitlines()
    files = [*FILES, *(client.file for client in KNOWN_CLIENTS.values())]
    assert out[: out.index("")] == [f"exists   {tmp_path / n}" for n in dict.fromkeys(files)]
    assert _tree(tmp_path) == before


def test_a_project_with_agents_of_its_own_gets_no_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents/mine").mkdir(parents=True)
    (tmp_path / "agents/mine/agent.md").touch()
    assert run("init", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"written  {tmp_path}/.mcp.json\n")
    assert "hello" not in out


def test_what_exists_is_merged_with_and_what_cannot_be_read_is_left_with_the_lines_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = '{\n  // mine\n  "mcpServers": {"other": {"command": "x"}}\n}\n'
    (tmp_path / ".mcp.json").write_text(mine)
    (tmp_path / ".mcp.json").chmod(0o640)
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini/settings.json").write_text("{ mine")
    (tmp_path / ".codex").mkdir()
    (tmp_path / "elsewhere.toml").touch()
    (tmp_path / ".codex/config.toml").symlink_to(tmp_path / "elsewhere.toml")
    (tmp_path / ".cursor").mkdir()
    other = '{"mcpServers": {"subagents": {"url": "http://mine"}}}'
    (tmp_path / ".cursor/mcp.json").write_text(other)
    names = ("claude", "gemini", "codex", "cursor")
    asked = ["init", str(tmp_path), *(part for name in names for part in ("--client", name))]

    before = _tree(tmp_path)
    assert run(*asked, "--dry-run") == 1
    assert f"would add to {tmp_path}/.mcp.json\n" in capsys.readouterr().out
    assert _tree(tmp_path) == before

    assert run(*asked) == 1
    out = capsys.readouterr().out
    assert f"added    {tmp_path}/.mcp.json\n" in out
    text = (tmp_path / ".mcp.json").read_text()
    assert text.startswith('{\n  // mine\n  "mcpServers": {"other": {"command": "x"},\n')
    assert (tmp_path / ".mcp.json").stat().st_mode & 0o777 == 0o640
    assert f"refused  {tmp_path}/.gemini/settings.json\n" in out
    assert "it is no JSON: in line 1, there should be a comma or a name in quotes; add this" in out
    assert '"ANTHROPIC_API_KEY": "${ANTHROPIC_API_KEY:-}"' in out
    assert "it is a link, or lies behind one" in out
    assert "[mcp_servers.subagents]" in out
    assert f"kept     {tmp_path}/.cursor/mcp.json\n" in out
    assert "it has another entry mcpServers.subagents; ours would be:" in out
    assert "Claude Code finds .mcp.json when it is started here:\n" in out
    for title in ("gemini", "codex"):
        assert f"{title} does not know the server yet: do what stands above:\n" in out
        assert f"{title} finds" not in out
    assert "Cursor uses the entry that was in .cursor/mcp.json before:\n" in out
    assert (tmp_path / ".gemini/settings.json").read_text() == "{ mine"
    assert (tmp_path / "elsewhere.toml").read_text() == ""
    assert (tmp_path / ".cursor/mcp.json").read_text() == other


def test_in_a_folder_of_a_project_it_says_that_this_is_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", str(tmp_path)) == 0
    assert "inside of the project" not in capsys.readouterr().out
    (tmp_path / "src").mkdir()
    assert run("init", str(tmp_path / "src")) == 0
    assert f"this is a project of its own, inside of the project {tmp_path}\n" in (
        capsys.readouterr().out
    )


def test_with_json_it_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".mcp.json").write_text("mine")
    assert run("init", str(tmp_path), "--client", "claude", "--client", "zed", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert [(Path(file["path"]).name, file["outcome"]) for file in said["files"]] == [
        ("agent.md", "written"),
        ("script.yaml", "written"),
        (".mcp.json", "refused"),
        ("settings.json", "written"),
    ]
    assert said["files"][2]["client"] == "claude"
    assert "".join(said["files"][2]["lines"]).startswith("{")
    assert said["clients"]["claude"].startswith("It asks whether you trust the folder")
    assert list(said["clients"]) == ["claude", "zed"]


def test_each_client_finds_the_server_where_it_looks(tmp_path: Path) -> None:
    assert {each.value for each in cli_init.ClientChoice} == {*KNOWN_CLIENTS, "claude-plugin"}
    every = [part for name in KNOWN_CLIENTS for part in ("--client", name)]
    assert run("init", str(tmp_path), *every) == 0
    command = cli_init.own_command()
    plain = {"command": command, "args": ["serve"]}
    assert _json(tmp_path / ".mcp.json") == {"mcpServers": {"subagents": plain}}
    opened = {**plain, "env": {AGENTS_DIR: "${workspaceFolder}/agents"}}
    assert _json(tmp_path / ".cursor/mcp.json") == {"mcpServers": {"subagents": opened}}
    typed = {"type": "stdio", **opened}
    assert _json(tmp_path / ".vscode/mcp.json") == {"servers": {"subagents": typed}}
    placed = {**plain, "env": {AGENTS_DIR: f"{tmp_path}/agents"}}
    assert _json(tmp_path / ".zed/settings.json") == {"context_servers": {"subagents": placed}}
    gemini = _json(tmp_path / ".gemini/settings.json")["mcpServers"]["subagents"]
    assert gemini["env"]["ANTHROPIC_API_KEY"] == "${ANTHROPIC_API_KEY:-}"
    codex = tomllib.loads((tmp_path / ".codex/config.toml").read_text())["mcp_servers"]["subagents"]
    assert set(codex["env_vars"]) == set(OWN_VARIABLES)
    approved = {"approval_mode": "approve"}
    assert codex["tools"] == dict.fromkeys(CODEX_APPROVED, approved)
    assert set(CODEX_APPROVED) < set(TOOLS) - {"apply_changes", "cancel_task"}
    said = subprocess.run([command, "serve", "--help"], capture_output=True, timeout=60)
    assert said.returncode == 0


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_our_command_is_called_by_name_only_where_that_finds_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_dir = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(bin_dir))
    assert cli_init.own_command() == "orchestrator"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli_init.own_command() == str(bin_dir / "orchestrator")
    other = tmp_path / "orchestrator"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert cli_init.own_command() == str(bin_dir / "orchestrator")


def test_a_file_that_a_team_shares_names_no_place_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    shared = [name for name in KNOWN_CLIENTS if name != "zed"]
    assert (
        run("init", str(tmp_path), *(part for name in shared for part in ("--client", name))) == 0
    )
    for name in shared:
        text = (tmp_path / KNOWN_CLIENTS[name].file).read_text()
        assert '"orchestrator"' in text
        assert not [word for word in text.split('"') if word.startswith("/")]
    assert "is not on your PATH" not in capsys.readouterr().out

    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("init", str(tmp_path / "other")) == 0
    assert "`orchestrator` is not on your PATH, so files for clients name it by its place" in (
        capsys.readouterr().out
    )


def test_clients_can_be_told_of_an_orchestrator_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:8900"
    wanted = [part for name in KNOWN_CLIENTS for part in ("--client", name)]
    assert run("init", str(tmp_path), *wanted, "--server", f"{url}/mcp") == 0
    assert "ORCHESTRATOR_TOKEN" in capsys.readouterr().out
    assert not (tmp_path / "agents").exists()
    for name, client in KNOWN_CLIENTS.items():
        text = (tmp_path / client.file).read_text()
        entry: Any = tomllib.loads(text) if client.kind == "toml" else json.loads(text)
        for part in client.path:
            entry = entry[part]
        assert entry["args"] == ["connect", url], name
        assert "ORCHESTRATOR_AGENTS_DIR" not in entry.get("env", {})
    assert run("init", str(tmp_path), "--server", "http://example.org") == 4
    assert run("init", str(tmp_path), "--server", url, "--client", "claude-plugin") == 2


def test_a_place_that_cannot_be_written_to_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents").write_text("a file")
    assert run("init", str(tmp_path)) == 4
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/agents/hello/agent.md cannot be")


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
