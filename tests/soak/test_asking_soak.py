"""A question that is answered after 90 seconds, by every agent CLI at once.

Their own limits for a call of a server over HTTP are shorter: gemini and opencode would give up
after a minute (both are launched with a day), the others after longer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.result import RunResult
from tests.engine.harness import Harness, Steps
from tests.runners.contract_suite.clis import CLIS, ScriptedCli
from tests.runners.contract_suite.play import played

ANSWER_AFTER_SECONDS = 90


async def test_every_cli_waits_for_an_answer_that_takes_90_seconds(
    runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path
) -> None:
    ended: dict[str, RunResult] = {}
    waited: dict[str, float] = {}
    heard: dict[str, str] = {}

    async def ask(cli: ScriptedCli) -> None:
        folder = tmp_path / cli.runner
        folder.mkdir()
        harness = Harness(runtime, runner_image, folder)
        question = cli.server("parent", "ask_parent", {"question": "Which colour?"})
        steps: Steps = [question, {"text": "Thanks."}]
        async with played(harness, cli, ask="parent") as play:
            run_id = await play.start(steps)
            (asked,) = (await play.until(run_id, lambda view: view.questions)).questions
            began = anyio.current_time()
            await anyio.sleep(ANSWER_AFTER_SECONDS)
            waited[cli.runner] = anyio.current_time() - began
            await play.tasks.book.reply(run_id, asked.message_id, "Green.", "main")
            ended[cli.runner] = await play.end(run_id)
            heard[cli.runner] = play.model.bodies[-1]
        harness.store.close()

    async with anyio.create_task_group() as tasks:
        for cli in CLIS.values():
            tasks.start_soon(ask, cli)

    print({name: f"{seconds:.1f} s" for name, seconds in waited.items()})
    assert {
        name: (result.status, result.result) for name, result in ended.items()
    } == dict.fromkeys(CLIS, ("completed", "Thanks."))
    assert all("Green." in said for said in heard.values())
    assert all(result.usage.requests == 2 for result in ended.values())
