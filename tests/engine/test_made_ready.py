"""Which image a server has made before the first call wants it."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from orchestrator.catalog import Catalog
from orchestrator.containers.images.fetching import Progress
from orchestrator.domain.agent import AgentSpec
from orchestrator.engine.staging import Planner
from orchestrator.runners.choice import choose
from orchestrator.runners.known import RUNNERS

pytestmark = pytest.mark.anyio


def agent(name: str, **fields: object) -> AgentSpec:
    given = {"name": name, "description": "d", "prompt": "p", **fields}
    return AgentSpec.model_validate(given)


@pytest.mark.parametrize(
    ("agents", "runner"),
    [
        ((), "claude"),
        ((agent("a"), agent("b", model="gpt-5.5"), agent("c", runner=("codex",))), "codex"),
        ((agent("a"), agent("b", model="gpt-5.5", image="mine"), agent("c")), "claude"),
    ],
)
async def test_it_is_that_of_the_runner_that_most_agents_have(
    agents: tuple[AgentSpec, ...], runner: str
) -> None:
    wanted: list[str] = []

    class Engine:
        async def agent_image(self, runner: str, progress: Progress = lambda _: None) -> str:
            wanted.append(runner)
            return "image"

    rest: dict[str, Any] = dict.fromkeys(("check_trust", "copies", "secret_store", "memory"))
    planner = Planner(
        catalog=lambda: Catalog(agents={each.name: each for each in agents}),
        engine=cast("Any", Engine()),
        environ={},
        choose=partial(choose, runners=RUNNERS, lacks=lambda _: ""),
        **rest,
    )
    await planner.have_image()
    assert wanted == [runner]
