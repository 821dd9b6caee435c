"""`orchestrator plan`: by value for the rendering, from outside for the rest."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from orchestrator.app import NO_ENGINE, NOT_BUILT, ShownPlan, ShownTrust
from orchestrator.domain.agent import (
    AgentSpec,
    Asking,
    McpServer,
    Network,
    Permissions,
    Secret,
    Session,
    Workspace,
)
from orchestrator.domain.container import User
from orchestrator.domain.task import Task
from orchestrator.plan import STAND_IN_RUN, STAND_IN_TOKEN, Place, plan, shown_variables
from orchestrator.runners.choice import RunnerWay
from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.plan import (
    MODEL_SECRET,
    Row,
    first_screen,
    plan_document,
    plan_rows,
)

AGENT = AgentSpec(
    name="fixer",
    description="Fixes.",
    prompt="You fix.",
    workspace=Workspace(mode="rw"),
    permissions=Permissions(allow=("Bash", "Read"), deny=("Bash(rm:*)",)),
    mcp_servers=(
        McpServer(
            name="tracker", command="npx", args=("-y", "it"), env={"KEY": "${TRACKER_KEY:-none}"}
        ),
    ),
    network=Network(mode="allow", allow=("example.org",)),
    secrets=(
        Secret(name="git", hosts=("git.example.org",), paths=("/acme/**",)),
        Secret(name="api-key", expose="env"),
    ),
    max_budget_usd=0.5,
    env={"TOKEN": "${FIXER_TOKEN}", "LANG": "de"},
)
PLACE = Place(image="agents:1", workspace_owner=User(uid=501, gid=20))
TASK = Task(agent="fixer", prompt="(the task)", workspace=Path("/srv/work"))

TRUST = ShownTrust(reaches=True, wants=(), command="orchestrator trust /srv")

LAUNCH = ("command", "environment", "file")
"""Rows that tell what is launched, word for word."""


def shown(agent: AgentSpec = AGENT, task: Task = TASK, *unset: str) -> ShownPlan:
    agent = agent.model_copy(update={"env": {"TOKEN": "${FIXER_TOKEN}"}})
    values, _ = shown_variables(agent, {"FIXER_TOKEN": "x"})
    made = plan(agent, task, PLACE, values, STAND_IN_TOKEN, {"api-key": "<api-key>"})
    return ShownPlan(made, {"orchestrator.run": STAND_IN_RUN}, unset, TRUST)


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_people_read_what_a_run_could_touch() -> None:
    rows = list(plan_rows(shown()))
    told = [row._replace(detail=False) for row in rows if row.heading not in LAUNCH]
    assert told == [
        Row("agent", "fixer, for main"),
        Row("runner", "claude with sonnet"),
        Row("trust", "its project is trusted with what it could reach"),
        Row("image", "agents:1"),
        Row("user", "501:20, without any capability"),
        Row("mount", "/srv/work -> /workspace, to read and write", warning=True),
        Row(
            "scratch",
            "/tmp 256 MiB, /home/agent 256 MiB, gone with the container; all else is read-only",
        ),
        Row("network", "no interface; the model, at http://127.0.0.1:8080"),
        Row("network", "example.org, by HTTP and HTTPS"),
        Row("network", "64 connections at once, 1024 MiB"),
        Row("model secret", MODEL_SECRET),
        Row("secret", "git is added outside, for git.example.org: GET, HEAD /acme/**"),
        Row("secret", "api-key enters the container, as its API_KEY", warning=True),
        Row("variable", "FIXER_TOKEN enters the container, as its TOKEN", warning=True),
        Row(
            "variable",
            "TRACKER_KEY enters the container, as KEY of its MCP server tracker",
            warning=True,
        ),
        Row("tools allowed", "Bash, Read"),
        Row("tools denied", "Bash(rm:*)"),
        Row("MCP server", "tracker: npx -y it"),
        Row("limits", "2048 MiB of memory, 2 processors, 256 processes, 4096 open files each"),
        Row("system calls", "our short list (doctor shows whether it is in force)"),
        Row("timeout", "120 s, 50 turns"),
        Row("budget", "$0.5"),
        Row("answer", "text, 2 retries"),
        Row(
            "stand-in",
            "<a token for one run> is shown for the token that opens the model to one container, "
            "which is random",
        ),
        Row("stand-in", "<FIXER_TOKEN> is shown for the value of FIXER_TOKEN, which is not shown"),
    ]
    (command,) = (row.text for row in rows if row.heading == "command")
    assert command.startswith("claude -p ")
    assert Row("environment", "TOKEN=<FIXER_TOKEN>", detail=True) in rows
    assert Row("environment", f"ANTHROPIC_API_KEY={STAND_IN_TOKEN}", detail=True) in rows


def test_the_first_screen_has_what_matters_and_every_warning() -> None:
    hosts = tuple(f"h{n}.example.org" for n in range(9))
    agent = AGENT.model_copy(update={"network": Network(mode="allow", allow=hosts[:3])})
    wants = ("network: a.org", "network: b.org", "secret: git by GET", "secret: git to b.org")
    trust = TRUST._replace(wants=wants)
    plan = shown(agent)._replace(trust=trust)
    assert list(first_screen(plan)) == [
        Row("agent", "fixer, for main"),
        Row("runner", "claude with sonnet"),
        Row("trust", "not trusted yet with network: a.org, b.org", warning=True),
        Row("trust", "not trusted yet with secret: git", warning=True),
        Row("trust", "it does not run before you say: orchestrator trust /srv", warning=True),
        Row("image", "agents:1"),
        Row("mount", "/srv/work -> /workspace, to read and write", warning=True),
        Row("network", "no interface; the model, at http://127.0.0.1:8080"),
        Row("network", f"{', '.join(hosts[:3])}, by HTTP and HTTPS"),
        Row("secret", "git is added outside, for git.example.org: GET, HEAD /acme/**"),
        Row("secret", "api-key enters the container, as its API_KEY", warning=True),
        Row("variable", "FIXER_TOKEN enters the container, as its TOKEN", warning=True),
        Row(
            "variable",
            "TRACKER_KEY enters the container, as KEY of its MCP server tracker",
            warning=True,
        ),
        Row("tools allowed", "Bash, Read"),
        Row("tools denied", "Bash(rm:*)"),
        Row("MCP server", "tracker: npx -y it"),
        Row("limits", "2048 MiB of memory, 2 processors, 256 processes"),
        Row("timeout", "120 s, 50 turns; budget: $0.5"),
        Row("answer", "text, 2 retries"),
        Row("more", "command, environment, files: orchestrator plan fixer --all"),
    ]
    everything = set(plan_rows(plan))
    warnings = {row for row in everything if row.warning and row.heading != "trust"}
    assert warnings <= set(first_screen(plan))


def test_of_many_rows_alike_the_first_are_shown() -> None:
    servers = tuple(McpServer(name=f"s{n}", command="npx") for n in range(9))
    agent = AGENT.model_copy(update={"mcp_servers": servers})
    rows = [row.text for row in first_screen(shown(agent)) if row.heading == "MCP server"]
    assert rows == ["s0: npx", "s1: npx", "s2: npx", "and 6 more"]


def test_runners_that_would_go_on_are_shown_and_those_that_are_not_tried() -> None:
    way = RunnerWay(runner="codex", model="gpt-5.5", wire_format="responses")
    plan = shown(AGENT)._replace(next_ways=(way,), passed_over=("gemini: it has no credential",))
    rows = [row for row in plan_rows(plan) if row.heading == "runner"]
    assert rows == [
        Row("runner", "claude with sonnet, then codex with gpt-5.5"),
        Row("runner", "not gemini: it has no credential", warning=True),
    ]


def test_what_a_run_would_lack_is_shown_before_it() -> None:
    agent = AGENT.model_copy(update={"permissions": Permissions(allow=("Bash", "WebFetch"))})
    way = RunnerWay(runner="codex", model="gpt-5.5", wire_format="responses")
    plan = shown(agent)._replace(next_ways=(way,), no_credential="A_KEY or B_KEY")
    lacking = [row for row in first_screen(plan) if row.heading in ("runner", "tools allowed")]
    assert [row.text for row in lacking if row.warning] == [
        "it does not run before there is a credential: set A_KEY or B_KEY",
        "codex has no WebFetch",
    ]


def test_programs_read_the_same() -> None:
    told = plan_document(shown(AGENT, TASK, "TRACKER_KEY"))
    command, environment, files = (told.pop(key) for key in ("command", "environment", "files"))
    assert told == {
        "agent": "fixer",
        "allowed_callers": ["main"],
        "trust": {"needed": True, "missing": [], "command": None},
        "runners": [{"runner": "claude", "model": "sonnet", "wire_format": "anthropic"}],
        "passed_over": [],
        "image": "agents:1",
        "user": {"uid": 501, "gid": 20},
        "mounts": [{"source": "/srv/work", "target": "/workspace", "access": "rw"}],
        "covered": [],
        "scratch": [
            {"target": "/tmp", "size_bytes": 256 * 1024 * 1024},
            {"target": "/home/agent", "size_bytes": 256 * 1024 * 1024},
        ],
        "network": {
            "interfaces": [],
            "through_the_wire": ["model", "egress", "routes"],
            "egress": {
                "mode": "allow",
                "allow": ["example.org"],
                "allow_private": [],
                "deny": [],
                "max_connections": 64,
                "max_mb": 1024,
            },
        },
        "secrets": {
            "model": MODEL_SECRET,
            "added_outside": [
                {
                    "name": "git",
                    "hosts": ["git.example.org"],
                    "methods": ["GET", "HEAD"],
                    "paths": ["/acme/**"],
                    "scheme": "bearer",
                    "header": "Authorization",
                    "username": "x-access-token",
                    "headers": [],
                }
            ],
            "enter_the_container": [
                {"variable": "FIXER_TOKEN", "as": "its TOKEN", "set": True},
                {
                    "variable": "TRACKER_KEY",
                    "as": "KEY of its MCP server tracker",
                    "set": False,
                },
                {"secret": "api-key", "as": "its API_KEY"},
            ],
        },
        "workspace": {"mode": "rw", "gitignore": False},
        "runtime": None,
        "seccomp": "strict",
        "seccomp_sha256": None,
        "lease_seconds": 60.0,
        "lifetime_seconds": 180.0,
        "labels": {"orchestrator.run": "<the run's id>"},
        "stand_ins": {
            "<a token for one run>": "the token that opens the model to one container, "
            "which is random",
            "<the run's id>": "what the run is called, which is random",
            "<FIXER_TOKEN>": "the value of FIXER_TOKEN, which is not shown",
        },
        "tools": {"allow": ["Bash", "Read"], "deny": ["Bash(rm:*)"]},
        "approval": {},
        "approval_by": "parent",
        "ask": {"whom": "nobody", "answer_seconds": 3600.0, "approval_seconds": 3600.0},
        "subagents": [],
        "agent_files": [],
        "mcp_servers": [{"name": "tracker", "command": "npx", "args": ["-y", "it"]}],
        "servers": [],
        "limits": {
            "memory_bytes": 2048 * 1024 * 1024,
            "cpus": 2.0,
            "pids": 256,
            "open_files": 4096,
            "shm_bytes": 64 * 1024 * 1024,
            "disk_bytes": 2048 * 1024 * 1024,
        },
        "session": {
            "keep": False,
            "idle_seconds": 300.0,
            "stop_seconds": 1800.0,
            "expire_seconds": 2592000.0,
        },
        "memory": "none",
        "warm": 0,
        "timeout_seconds": 120.0,
        "max_turns": 50,
        "max_budget_usd": 0.5,
        "retries": 2,
        "output_format": "text",
        "cwd": "/workspace",
    }
    launch = shown().plan.launch
    assert (command, environment) == (list(launch.argv), launch.env)
    assert files == [
        {
            "path": file.path,
            "mode": "0600",
            "bytes": len(file.content),
            "sha256": hashlib.sha256(file.content).hexdigest(),
        }
        for file in launch.files
    ]


def test_people_read_what_stays_and_whom_it_deals_with() -> None:
    agent = AgentSpec(
        name="keeper",
        description="Keeps.",
        session=Session(keep=True),
        memory="rw",
        permissions=Permissions(allow=("Bash", "Read"), deny=("Write",)),
        approval={"Bash": "ask", "Read": "deny"},
        ask=Asking(whom="user"),
        subagents=("fixer",),
    )
    rows = list(plan_rows(shown(agent, Task(agent="keeper", prompt="-"))))
    told = [row._replace(detail=False) for row in rows if row.heading not in LAUNCH]
    assert told[5:7] == [
        Row("mount", "a volume of its own -> /workspace, to read and write", warning=True),
        Row("mount", "a volume of its own -> /home/agent, to read and write", warning=True),
    ]
    assert told[11:-7] == [
        Row("tools allowed", "Bash, Read"),
        Row("tools denied", "Write, Read"),
        Row("approval", "only a person allows: Bash"),
        Row("asks", "may ask the person behind its caller"),
        Row("subagents", "may run fixer", warning=True),
        Row("MCP servers", "none"),
        Row(
            "session", "container, files and conversation are kept for 30 days after the last call"
        ),
        Row("memory", "memory.md beside agent.md, and what it writes there is kept", warning=True),
        Row(
            "limits",
            "2048 MiB of memory, 2 processors, 256 processes, 4096 open files each, 2048 MiB of "
            "disk",
        ),
    ]


def test_people_read_how_many_containers_wait() -> None:
    agent = AgentSpec(name="quick", description="Quick.", warm=2)
    rows = plan_rows(shown(agent, Task(agent="quick", prompt="-")))
    assert Row("spares", "2 wait, with the CLI started") in rows


def test_values_of_variables_are_never_filled_in() -> None:
    environ = {"FIXER_TOKEN": "s3cret", "PATH": "/bin"}
    assert shown_variables(AGENT, environ) == ({"FIXER_TOKEN": "<FIXER_TOKEN>"}, ())
    assert shown_variables(AGENT, {"TRACKER_KEY": "s3cret"}) == (
        {"FIXER_TOKEN": "<FIXER_TOKEN, which is not set>", "TRACKER_KEY": "<TRACKER_KEY>"},
        ("FIXER_TOKEN",),
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an agent, and no engine."""
    agent = tmp_path / "agents" / "fixer" / "agent.md"
    agent.parent.mkdir(parents=True)
    agent.write_text('---\nname: fixer\ndescription: Fixes.\nenv: {TOKEN: "${FIXER_TOKEN}"}\n---\n')
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    monkeypatch.setenv("FIXER_TOKEN", "a-value-to-look-for")
    for name in ("ORCHESTRATOR_AGENT_IMAGE", "ORCHESTRATOR_AGENTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_plan_needs_no_engine_and_shows_no_secret(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", "fixer", "--workspace", "work", "--json") == 0
    out = capsys.readouterr().out
    told = json.loads(out)
    assert told["image"] == NO_ENGINE
    assert told["mounts"] == [
        {"source": str(here / "work"), "target": "/workspace", "access": "ro"}
    ]
    assert run("plan", "fixer") == 0
    out += capsys.readouterr().out
    assert "mount          nothing of this machine\n" in out
    assert "a-value-to-look-for" not in out


def test_a_variable_that_is_not_set_is_told_and_not_an_error(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FIXER_TOKEN")
    assert run("plan", "fixer") == 0
    said = "FIXER_TOKEN enters the container, as its TOKEN (not set: a run would fail)\n"
    assert said in capsys.readouterr().out


def test_a_workspace_that_would_be_refused_is_refused_here(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", "fixer", "--workspace", "/etc") == 5
    assert capsys.readouterr().err.startswith("error: /etc belongs to the system")
    assert run("plan", "fixr") == 5
    assert "did you mean 'fixer'?" in capsys.readouterr().err


def test_the_image_is_looked_up_on_the_engine(
    image: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    assert run("plan", "fixer", "--json") == 0
    assert json.loads(capsys.readouterr().out)["image"] == image


def test_a_terminal_gets_a_table(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert run("plan", "fixer") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["agent", "fixer,", "for", "main"]
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert run("plan", "fixer", "--all") == 0
    assert "CLAUDE_CODE_" in capsys.readouterr().out


def test_an_image_that_is_not_built_is_named_and_not_built(
    image: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("ORCHESTRATOR_BASE_IMAGE", "nobody/has:this")
    assert run("plan", "fixer", "--json") == 0
    assert json.loads(capsys.readouterr().out)["image"] == NOT_BUILT.format(
        command="orchestrator images build"
    )


def test_a_default_stands_in_for_a_variable_that_is_empty_or_not_set() -> None:
    agent = AGENT.model_copy(
        update={"env": {"A": "${ONE:-a}${TWO}", "B": "${ONE:-b}"}, "mcp_servers": ()}
    )
    assert shown_variables(agent, {"TWO": "s3cret"}) == ({"TWO": "<TWO>"}, ())
    assert shown_variables(agent, {}) == ({"TWO": "<TWO, which is not set>"}, ("TWO",))
    assert shown_variables(agent, {"ONE": "", "TWO": ""}) == ({"ONE": "", "TWO": ""}, ())


def test_a_socket_in_the_workspace_is_told_as_covered(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(here / "work/pipe")
    assert run("plan", "fixer", "--workspace", "work") == 0
    assert "/workspace/pipe is a FIFO, which the agent cannot reach\n" in capsys.readouterr().out
    assert run("plan", "fixer", "--workspace", "work", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["covered"] == [{"target": "/workspace/pipe", "what": "FIFO"}]
    assert len(told["mounts"]) == 1
