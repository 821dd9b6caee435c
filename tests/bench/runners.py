"""Runs of each agent CLI but claude, against `docker run` of the same CLI, as a user types it."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import pytest
from pydantic import SecretStr

from orchestrator import app
from orchestrator.containers.images.agent_image import build_agent_image
from orchestrator.engine.service import Service
from orchestrator.runners.known import RUNNERS
from orchestrator.settings import Settings, read_settings
from orchestrator.store.session_rows import SessionKey
from tests.bench.row import Row, ratio_at_most
from tests.bench.runs import PROMPT, Model, Times, call_row, on_bridge, open_model
from tests.bench.spares import call, calm
from tests.bench.stage import COMMAND_SECONDS, Stage
from tests.engine.spares.watched_pool import WatchedPool

KEY = "sk-for-the-loopback-only"

AGENT = """\
---
name: bench
description: For a measurement.
runner: {runner}
model: {model}
{more}---
"""

TARGETS = {
    "cold": ratio_at_most(1.0),
    "warm": ratio_at_most(0.15),
    "next turn": ratio_at_most(0.15),
}

SETTLE_SECONDS = 0.5
"""Before each call: the engine still removes the container of the one before."""


class PlainCli(NamedTuple):
    """A CLI without us: what a user would type, with the key inside."""

    model: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """{url} is where the model is."""


_OPENCODE = {
    "enabled_providers": ["gw"],
    "model": "gw/claude-sonnet-5-5",
    "small_model": "gw/claude-sonnet-5-5",
    "provider": {
        "gw": {
            "npm": "@ai-sdk/anthropic",
            "options": {"baseURL": "{url}/v1", "apiKey": KEY},
            "models": {"claude-sonnet-5-5": {}},
        }
    },
}

_GEMINI = (
    "mkdir -p ~/.gemini; echo '"
    '{"security":{"auth":{"selectedType":"gemini-api-key"}},'
    '"privacy":{"usageStatisticsEnabled":false}}'
    '\' > ~/.gemini/settings.json; exec gemini "$@"'
)
"""With an address of its own it takes a key only if its settings say so."""

CLIS = {
    "codex": PlainCli(
        "gpt-5.5",
        (
            *("codex", "exec", "--skip-git-repo-check", "--model", "gpt-5.5"),
            *("-c", "model_provider=gw", "-c"),
            'model_providers.gw={name="gw",base_url="{url}/v1",env_key="KEY",wire_api="responses"}',
            PROMPT,
        ),
        {"KEY": KEY},
    ),
    "copilot": PlainCli(
        "claude-sonnet-5-5",
        ("copilot", "-p", PROMPT, "--allow-all-tools", "--no-auto-update"),
        {
            "COPILOT_OFFLINE": "true",
            "COPILOT_MODEL": "claude-sonnet-5-5",
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_PROVIDER_BASE_URL": "{url}",
            "COPILOT_PROVIDER_API_KEY": KEY,
        },
    ),
    "gemini": PlainCli(
        "gemini-2.5-pro",
        ("sh", "-c", _GEMINI, "gemini", "-p", PROMPT, "-m", "gemini-2.5-pro"),
        {
            "GEMINI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": "{url}",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
    ),
    "opencode": PlainCli(
        "claude-sonnet-5-5",
        ("opencode", "run", PROMPT),
        {"OPENCODE_CONFIG_CONTENT": json.dumps(_OPENCODE)},
    ),
}


async def runners(stage: Stage) -> tuple[Row, ...]:
    """Each CLI cold, warm and in a session, in turn with `docker run`, to its first request."""
    rows: list[Row] = []
    for name, plain in CLIS.items():
        if name not in RUNNERS:
            continue
        taken = await _measured(stage, name, plain)
        against = f"docker run --rm, {name}"
        rows += (
            call_row(f"{name}, {what}", "asked", taken[what], taken["plain"], against, target)
            for what, target in TARGETS.items()
        )
    return tuple(rows)


async def _measured(stage: Stage, name: str, plain: PlainCli) -> dict[str, list[Times]]:
    build = partial(build_agent_image, stage.runtime.engine, read_settings(), name, print)
    image = await anyio.to_thread.run_sync(build)
    taken: dict[str, list[Times]] = defaultdict(list)
    async with open_model() as model, on_bridge(stage, model.url) as url:
        command = _docker_run(stage, image, plain, url)
        async with (
            _open(model, name, plain.model) as cold,
            _open(model, name, plain.model, "warm: 1\n") as warm,
            _open(model, name, plain.model, "session: true\n") as kept,
        ):
            await call(kept, model, session="s")
            for round_number in range(1 + stage.times(10, 3)):
                await calm(warm, 1)
                await anyio.sleep(SETTLE_SECONDS)
                measured = {
                    "cold": await call(cold, model),
                    "warm": await call(warm, model),
                    "next turn": await call(kept, model, session="s"),
                    "plain": await _plain(command, model),
                }
                if round_number:  # the first one only warms up
                    for what, times in measured.items():
                        taken[what].append(times)
            key = SessionKey(project=kept.project, agent="bench", caller="main", name="s")
            await kept.sessions.remove(key)
    return taken


@asynccontextmanager
async def _open(model: Model, runner: str, name: str, more: str = "") -> AsyncIterator[Service]:
    """An orchestrator with one agent of a runner and a state of its own."""
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as folder:
        agent = Path(folder) / "agents" / "bench"
        agent.mkdir(parents=True)
        (agent / "agent.md").write_text(AGENT.format(runner=runner, model=name, more=more))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app, "Pool", WatchedPool)
            opened = app.open_orchestrator(_settings(Path(folder), model.url), {})
            async with opened as service, anyio.create_task_group() as tasks:
                tasks.start_soon(service.keep_warm)
                yield service
                tasks.cancel_scope.cancel()


def _settings(folder: Path, url: str) -> Settings:
    key = SecretStr(KEY)
    update = {
        "state_dir": folder / "state",
        "agents_dir": folder / "agents",
        "trusted": (folder,),
        "anthropic_base_url": url,
        "anthropic_api_key": key,
        "openai_base_url": f"{url}/v1",
        "openai_api_key": key,
        "google_gemini_base_url": url,
        "gemini_api_key": key,
        "scripted": False,
    }
    return read_settings().model_copy(update=update)


def _docker_run(stage: Stage, image: str, plain: PlainCli, url: str) -> list[str]:
    command = [stage.docker, "run", "--rm"]
    for name, value in plain.env.items():
        command += ["--env", f"{name}={value.replace('{url}', url)}"]
    return [*command, image, *(word.replace("{url}", url) for word in plain.argv)]


async def _plain(command: list[str], model: Model) -> Times:
    run = partial(
        subprocess.run,
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    began = time.perf_counter()
    finished = await anyio.to_thread.run_sync(run)
    done = time.perf_counter()
    assert finished.returncode == 0, finished.stderr
    return Times(model.first_asked() - began, done - began)
