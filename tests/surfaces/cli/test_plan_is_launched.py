"""`orchestrator plan --json` is what runs launch: both compared, for agents of all kinds."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import certifi
import pytest

from orchestrator.app import ShownPlan, ShownTrust, open_orchestrator
from orchestrator.containers.lazy_runtime import LazyRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import Launch
from orchestrator.domain.task import Task
from orchestrator.engine.live import LiveRun
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.staging import Gateway
from orchestrator.gateway.reach import Reach
from orchestrator.plan import STAND_IN_CONVERSATION, STAND_IN_RUN, STAND_IN_TOKEN, Plan
from orchestrator.settings import read_settings
from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.plan import plan_document
from orchestrator.trust import extent_of
from orchestrator.wire.host import Process
from tests.surfaces.conftest import Project

PATIENCE = 240

SECRETS = {"git-token": "value-of-git-token", "api-key": "value-of-api-key"}
VARIABLES = {"TRACKER_KEY": "value-of-tracker-key", "FLAVOUR": "value-of-flavour"}

TRACKER = {
    "name": "tracker",
    "command": "true",
    "args": ["--flavour", "${FLAVOUR:-none}"],
    "env": {"KEY": "${TRACKER_KEY}", "MISSING": "${NOT_SET:-a default}"},
}

AGENTS: dict[str, dict[str, object]] = {
    "plain": {"allowed_callers": ["main", "parent"]},
    "files": {"files": ["tools", "style.md"]},
    "limited": {
        "resources": {"memory_mb": 1024, "cpus": 1, "pids": 128, "scratch_mb": 100},
        "seccomp": "engine",
        "timeout_ms": 90_000,
        "max_turns": 7,
        "model": "haiku",
        "output_schema": {"type": "object", "required": ["done"]},
    },
    "session": {"session": True},
    "memory": {"session": {"keep": True, "idle_seconds": 60}, "memory": "rw"},
    "session-copy": {"session": True, "workspace": "copy", "network": {"allow": ["example.org"]}},
    "copy": {"workspace": "copy"},
    "reads": {"workspace": "ro"},
    "writes": {"workspace": "rw"},
    "git": {"workspace": "rw"},
    "linked": {"workspace": "ro"},
    "network": {"network": {"allow": ["example.org", "*.example.net"]}},
    "secrets": {
        "secrets": [
            {"name": "git-token", "hosts": ["git.example.org"], "paths": ["/acme/**"]},
            {"name": "api-key", "expose": "env"},
        ]
    },
    "variables": {"env": {"FLAVOUR": "${FLAVOUR}"}, "mcp_servers": [TRACKER]},
    "warm": {"warm": 1},
    "parent": {"ask": "parent", "subagents": ["plain"], "approval": {"Bash": "ask"}},
}

WORKSPACES = {
    "session-copy": "project",
    "copy": "project",
    "reads": "project",
    "writes": "project",
    "git": "repository",
    "linked": "link",
}


class Recorder:
    """What the runtime made, what was spawned there, and to which runs it was opened."""

    def __init__(self) -> None:
        self.labels: dict[str, Mapping[str, str]] = {}
        """Of containers, by their names."""
        self.launched: dict[str, tuple[Container, Launch]] = {}
        """By the token for the model, which each container has for itself."""
        self.bound: dict[str, tuple[LiveRun, str, list[str]]] = {}
        """By the agent's name: its run, its container's token, the services that were opened."""


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    seen = Recorder()
    opened, kept = LazyRuntime.open, LazyRuntime.keep
    spawned, bound = Container.spawn, Gateway.bind

    @asynccontextmanager
    async def open_(self: LazyRuntime, *args: Any, **options: Any) -> AsyncIterator[Container]:
        async with opened(self, *args, **options) as container:
            seen.labels[container.name] = options["labels"]
            yield container

    @asynccontextmanager
    async def keep(self: LazyRuntime, *args: Any, **options: Any) -> AsyncIterator[Container]:
        async with kept(self, *args, **options) as container:
            seen.labels[container.name] = options["labels"]
            yield container

    def spawn(self: Container, launch: Launch) -> AbstractAsyncContextManager[Process]:
        if token := launch.env.get("ANTHROPIC_API_KEY"):
            seen.launched[token] = self, launch
        return spawned(self, launch)

    def bind(self: Gateway, reach: Reach, prepared: Prepared, live: LiveRun) -> None:
        bound(self, reach, prepared, live)
        services = {"egress": reach.egress, "routes": reach.routes, "parent": reach.parent._ask}
        opened = ["model", *(name for name, service in services.items() if service is not None)]
        assert prepared.agent.name not in seen.bound
        seen.bound[prepared.agent.name] = live, reach.model.token, opened

    monkeypatch.setattr(LazyRuntime, "open", open_)
    monkeypatch.setattr(LazyRuntime, "keep", keep)
    monkeypatch.setattr(Container, "spawn", spawn)
    monkeypatch.setattr(Gateway, "bind", bind)
    return seen


@pytest.fixture
def work(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workspaces of all kinds, variables and secrets, and certificates of the machine's own."""
    work = tmp_path / "work"
    for name in ("project", "repository"):
        (work / name).mkdir(parents=True)
        (work / name / "file").write_text("one\n")
    subprocess.run(["git", "init", "-q", work / "repository"], check=True)
    (work / "link").symlink_to(work / "project")
    for path in (work, *work.rglob("*")):
        os.chown(path, 1234, 1234, follow_symlinks=False)  # an agent is never root
    whole = Path(certifi.where()).read_text()
    pem = tmp_path / "certificates.pem"
    pem.write_text(whole[whole.index("-----BEGIN") : whole.index("-----END")] + END)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    monkeypatch.setenv("ORCHESTRATOR_ALLOWED_ROOTS", str(work))
    monkeypatch.delenv("ORCHESTRATOR_AGENT_IMAGE")  # found by both, and not told
    for name, value in SECRETS.items():
        variable = f"ORCHESTRATOR_SECRET_{name.upper().replace('-', '_')}"
        monkeypatch.setenv(variable, value)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    for name, fields in AGENTS.items():
        steps = [{"text": '{"done": true}'}]
        lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
        project.agent(name, json.dumps({"steps": steps}), "\n".join(lines))
    (project.path / "agents" / "memory" / "memory.md").write_text("The door is blue.\n")
    (project.path / "agents" / "files" / "tools").mkdir()
    for name in ("style.md", "tools/server.py"):
        (project.path / "agents" / "files" / name).write_bytes(b"\xff" + name.encode())
    return work


END = "-----END CERTIFICATE-----\n"


def test_a_plan_is_what_a_run_launches(
    work: Path, recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = {name: plan_of(name, work, capsys) for name in AGENTS}

    anyio.run(run_all, work, recorder)

    for name in AGENTS:
        assert launched_document(recorder, name) == planned[name], name
    assert "value-of-" not in json.dumps(planned)  # no secret was asked for, no variable filled in
    # All of it was missing when the command made plans by itself.
    assert planned["network"]["environment"]["SSL_CERT_FILE"] == "/home/agent/.orchestrator/ca.pem"
    assert f"--session-id={STAND_IN_CONVERSATION}" in planned["session"]["command"]
    assert planned["memory"]["files"] != planned["session"]["files"]
    assert planned["plain"]["seccomp_sha256"] is not None
    assert planned["linked"]["mounts"][0]["source"] == str(work / "project")
    assert len(planned["git"]["mounts"]) > 1


def plan_of(name: str, work: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    argv = ["plan", name, "--json"]
    if name in WORKSPACES:
        argv += ["--workspace", str(work / WORKSPACES[name])]
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


async def run_all(work: Path, recorder: Recorder) -> None:
    """Run each agent once, and see it complete; a warm one when its spare is there."""
    with anyio.fail_after(PATIENCE):
        async with open_orchestrator(read_settings()) as service, anyio.create_task_group() as all_:
            all_.start_soon(service.keep_warm)
            while not recorder.launched:  # a spare
                await anyio.sleep(0.05)

            async def run(name: str) -> None:
                workspace = work / WORKSPACES[name] if name in WORKSPACES else None
                result = await service.run(Task(agent=name, prompt="Do it.", workspace=workspace))
                assert result.status == "completed", result

            async with anyio.create_task_group() as tasks:
                for name in AGENTS:
                    tasks.start_soon(run, name)
            all_.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for row in await service.sessions.list():
                    await service.sessions.remove(row.key)


def launched_document(recorder: Recorder, name: str) -> dict[str, Any]:
    """What the agent's run was given, in the words of `plan`, with its stand-ins."""
    live, token, services = recorder.bound[name]
    container, launch = recorder.launched[token]
    plan = Plan(
        agent=live.prepared.agent,
        task=live.prepared.task,
        container=container.spec,
        launch=with_stand_ins(launch),
        way=live.plan.way,
        timeout_seconds=live.clock.seconds,
        first_message=live.plan.first_message,
        agent_files=live.plan.agent_files,
    )
    labels = {
        key: STAND_IN_RUN if value == live.run_id else value
        for key, value in recorder.labels[container.name].items()
    }
    trust = ShownTrust(bool(extent_of(live.prepared.agent, {}).grants), (), "")
    shown = ShownPlan(plan, labels, (), trust)
    document: dict[str, Any] = json.loads(json.dumps(plan_document(shown)))
    document["network"]["through_the_wire"] = services
    return document


def with_stand_ins(launch: Launch) -> Launch:
    """The launch, with stand-ins for the values that `plan` does not show."""
    values = {launch.env["ANTHROPIC_API_KEY"]: STAND_IN_TOKEN}
    values |= {value: f"<{name}>" for name, value in (SECRETS | VARIABLES).items()}
    for conversation in re.findall(r"--session-id=(\S+)", " ".join(launch.argv)):
        values[conversation] = STAND_IN_CONVERSATION

    def shown(text: str) -> str:
        for value, stand_in in values.items():
            text = text.replace(value, stand_in)
        return text

    return Launch(
        argv=tuple(map(shown, launch.argv)),
        env={name: shown(value) for name, value in launch.env.items()},
        cwd=launch.cwd,
        files=tuple(
            file.model_copy(update={"content": shown(file.content.decode()).encode()})
            for file in launch.files
        ),
    )
