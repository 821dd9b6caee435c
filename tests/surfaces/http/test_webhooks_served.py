"""Webhooks of `orchestrator serve`, which is killed between what happens and its message."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from orchestrator.store.runs import Store
from tests.engine.tasks.test_webhooks import SECRET, Receiver, a_run, end, receiver
from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, Stage, on_stage

__all__ = ["receiver"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


@asynccontextmanager
async def serving(stage: Stage, hooks: str) -> AsyncIterator[anyio.abc.Process]:
    """A server that ends by no word of ours."""
    env = {
        "ORCHESTRATOR_WEBHOOKS": hooks,
        "ORCHESTRATOR_WEBHOOK_SECRETS": f"ops={SECRET.get_secret_value()}",
    }
    async with await anyio.open_process(
        [COMMAND, "serve", "--http", "127.0.0.1:0"],
        env=stage.env | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_message_comes_after_its_server_was_killed(
    stage: Stage, receiver: Receiver
) -> None:
    hooks = json.dumps([receiver.hook.model_dump(mode="json")])
    store = Store(stage.settings.state_dir / "runs.sqlite", "a test")
    with anyio.fail_after(PATIENCE):
        async with serving(stage, hooks):
            while not await store.webhooks.list():  # it has announced what it was named
                await anyio.sleep(0.05)
        (row,) = await store.webhooks.list()
        task = await a_run(store, project=row.project)
        await end(store, task)
        (waiting,) = await store.webhooks.deliveries(9)
        assert (waiting.state, receiver.heard) == ("pending", [])
        async with serving(stage, hooks):
            while (await store.webhooks.deliveries(9))[0].state == "pending":
                await anyio.sleep(0.05)
    ((message_id, said),) = receiver.heard
    assert isinstance(said["data"], dict)
    assert (message_id, said["data"]["run_id"]) == (waiting.message_id, task.run_id)
    (told,) = await store.webhooks.deliveries(9)
    assert (told.state, told.answer) == ("delivered", "it answered 204")
    store.close()
