"""The real key stays in this process: an agent looks for it everywhere, and so do we."""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.gateway.model.scripted import Script
from orchestrator.settings import Settings
from tests.engine.staged import engine_of, open_service, write_agent, write_workspace
from tests.gateway.model.scripted_server import ScriptedServer, scripted_server

RUN_SECONDS = 120

SEARCH_SECONDS = 60
"""For all of the container's files, the CLI's 366 MB among them."""

CREDENTIALS = {
    "anthropic_api_key": "x-api-key",
    "anthropic_auth_token": "authorization",
    "claude_code_oauth_token": "authorization",
}
"""Each setting that may hold the key, and the header in which the API expects it."""


def new_key() -> str:
    return f"sk-ant-{secrets.token_hex(24)}"


def shapes(key: str) -> tuple[str, ...]:
    """The key as it may be written: plain, in hex, and in base64 at every offset."""
    found = [key, key.encode().hex()]
    for offset in range(3):
        text = base64.b64encode(b"-" * offset + key.encode()).decode()
        # The first and the last group depend on what stands beside the key.
        found.append(text[4:-4])
    return tuple(found)


def pattern(text: str) -> str:
    """Finds the text, and is not the text: whoever searches must not bring along what they seek."""
    return f"[{text[0]}]{text[1:]}"


def search(*texts: str) -> str:
    """A command that prints where in the container any of these is.

    grep's code is 2 when there was something that it may not read, such as /root.
    """
    options = " ".join(f"-e '{pattern(text)}'" for text in texts)
    return (
        f"env | grep {options} | cut -d= -f1; "  # the value would be in a file of the CLI's then
        f"grep -las {options} /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/task/*/comm; "
        f"timeout {SEARCH_SECONDS} grep -rlas {options} "
        "--exclude-dir=proc --exclude-dir=sys --exclude-dir=dev /; "
        "echo code $?; id -u"
    )


@dataclass
class Seen:
    """What could be seen of a run from outside its container."""

    events: list[Event] = field(default_factory=list)
    result: RunResult | None = None
    container: object = None
    """As the engine describes it."""
    machine: list[bytes] = field(default_factory=list)
    """Command lines and environments of all processes, while the run was under way."""
    stored: dict[str, bytes] = field(default_factory=dict)

    def everything(self, caplog: pytest.LogCaptureFixture) -> bytes:
        logged = [f"{record.__dict__}\n{record.getMessage()}" for record in caplog.records]
        said = [repr(self.events), repr(self.result), repr(self.container), *logged, caplog.text]
        return b"\n".join([*(text.encode() for text in said), *self.machine, *self.stored.values()])


async def watched_run(settings: Settings, task: Task) -> Seen:
    """Run it, and look around while the container is there."""
    seen = Seen()
    started = anyio.Event()

    def listen(event: Event) -> None:
        seen.events.append(event)
        if event.kind == "ready":
            started.set()

    async def look() -> None:
        await started.wait()
        runtime = await engine_of(service)
        (info,) = await runtime.list()
        seen.container = await runtime.engine.inspect(info.id)
        seen.machine = [*_processes()]

    with anyio.fail_after(RUN_SECONDS):
        async with open_service(settings) as service:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(look)
                seen.result = await service.run(task, listen)
            seen.stored = _files(settings.state_dir)  # while there is a -wal beside it
            assert await service.store.events(task.run_id) == tuple(seen.events)
    seen.stored |= {f"closed {name}": data for name, data in _files(settings.state_dir).items()}
    return seen


def _processes() -> list[bytes]:
    texts = []
    for name in ("cmdline", "environ"):
        for path in Path("/proc").glob(f"[0-9]*/{name}"):
            try:
                texts.append(path.read_bytes())
            except OSError:  # it has ended, or is not ours to look at
                continue
    return texts


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@asynccontextmanager
async def paid_with(
    settings: Settings, credential: str, key: str, script: object
) -> AsyncIterator[tuple[Settings, ScriptedServer]]:
    """Settings with the key, and an API over HTTP that remembers what it was shown."""
    async with scripted_server(Script.model_validate({"steps": script})) as api:
        none = dict.fromkeys(CREDENTIALS)
        ours = {**none, credential: SecretStr(key), "anthropic_base_url": api.url}
        yield settings.model_copy(update={**ours, "scripted": False}), api


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"agents_dir": tmp_path / "agents"})


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_an_agent_that_searches_its_container_for_the_key_finds_nothing(
    settings: Settings, credential: str, caplog: pytest.LogCaptureFixture
) -> None:
    key, in_environment, in_file = new_key(), f"env-{new_key()}", f"file-{new_key()}"
    command = search(*shapes(key), in_environment, in_file)
    script = [{"tool": "Bash", "input": {"command": command}}, {"text": "{last_tool_result}"}]
    write_agent(
        settings,
        "seeker",
        permissions={"allow": ["Bash"]},
        env={"CANARY": in_environment, "BASH_DEFAULT_TIMEOUT_MS": str(SEARCH_SECONDS * 1000)},
        workspace="ro",
    )
    workspace = write_workspace(settings, {"canary.txt": in_file})
    caplog.set_level(logging.DEBUG)

    async with paid_with(settings, credential, key, script) as (paid, api):
        seen = await watched_run(paid, Task(agent="seeker", prompt="Seek.", workspace=workspace))

    # The API was paid with the real key, each time and in nothing but its own header.
    asked = [request for request in api.requests if request.method == "POST"]
    shown = [request.header(CREDENTIALS[credential]) for request in asked]
    assert [text.removeprefix("Bearer ") for text in shown] == [key, key]
    assert all(key.encode() not in request.body for request in asked)

    # The search works, since it finds what was left for it to find, and nothing else.
    assert seen.result is not None
    assert seen.result.status == "completed", seen.result
    *found, code, uid = str(seen.result.result).splitlines()
    assert code in ("code 0", "code 2"), "124 is a search that was not finished"
    assert uid == "1000"
    processes = [line for line in found if line.startswith("/proc/")]
    assert [line for line in found if line not in processes] == ["CANARY", "/workspace/canary.txt"]
    assert processes
    assert all(line.endswith("/environ") for line in processes)

    # And nobody outside has seen it either.
    assert any(name.endswith("runs.sqlite-wal") for name in seen.stored)
    assert b"orchestrator.run" in repr(seen.container).encode()
    everything = seen.everything(caplog)
    assert everything.count(b"Seek.") >= 2  # what was searched is this run
    assert [shape for shape in shapes(key) if shape.encode() in everything] == []


@pytest.mark.parametrize(("status", "reason"), [(401, "api_auth"), (400, "api_error")])
async def test_an_api_that_repeats_the_key_in_its_error_tells_nobody(
    settings: Settings, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key()
    refusal = {"error": status, "message": f"no good: {key}", "repeat": True}
    write_agent(settings, "payer", permissions={"allow": ["Bash"]})
    caplog.set_level(logging.DEBUG)

    async with paid_with(settings, "anthropic_api_key", key, [refusal]) as (paid, api):
        seen = await watched_run(paid, Task(agent="payer", prompt="Pay."))

    assert api.requests[-1].header("x-api-key") == key
    assert seen.result is not None
    assert (seen.result.status, seen.result.reason) == ("failed", reason)
    if status == 400:  # whose text the CLI repeats
        assert "no good: [redacted]" in seen.result.message
    everything = seen.everything(caplog)
    assert [shape for shape in shapes(key) if shape.encode() in everything] == []


async def test_an_api_that_says_the_key_as_its_answer_does_not_get_it_into_the_record(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    key = new_key()
    write_agent(settings, "parrot")
    caplog.set_level(logging.DEBUG)

    script = [{"text": f"Your key is {key}."}]
    async with paid_with(settings, "anthropic_api_key", key, script) as (paid, _):
        seen = await watched_run(paid, Task(agent="parrot", prompt="Say it."))

    assert seen.result is not None
    assert seen.result.status == "completed"
    assert "Your key is [" in str(seen.result.result)
    everything = seen.everything(caplog)
    assert [shape for shape in shapes(key) if shape.encode() in everything] == []
