"""Idempotency-Key: the same request is done once, whoever sends it how often."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio
import httpx
import pytest

from orchestrator.domain.task import Once, Task
from orchestrator.errors import AskedBefore, KeyReused
from orchestrator.store import request_keys
from orchestrator.store.runs import Store
from tests.surfaces.http.api_stage import ApiStage

pytestmark = pytest.mark.anyio

BODY = {"agent": "for-main", "prompt": "once"}


async def test_a_hundred_equal_posts_at_once_are_one_run(stage: ApiStage) -> None:
    answers: list[httpx.Response] = []
    async with stage.client(**{"Idempotency-Key": "hundred"}) as main:

        async def post() -> None:
            answers.append(await main.post("/v1/runs", json=BODY))

        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(post)
        answers.append(await main.post("/v1/runs", json=BODY))
        made = [each for each in answers if each.status_code == 202]
        refused = [each for each in answers if each.status_code != 202]
        assert len({each.json()["run_id"] for each in made}) == 1
        assert Counter("idempotency-replayed" in each.headers for each in made)[False] == 1
        assert {(e.status_code, e.json()["code"]) for e in refused} <= {
            (409, "idempotency_key_in_use")
        }
        assert all(each.headers["retry-after"] == "1" for each in refused)
        page = (await main.get("/v1/runs", params={"limit": 200})).json()
        assert [row["prompt"] for row in page["items"]].count("once") == 1


async def test_a_key_belongs_to_one_request_of_one_caller(stage: ApiStage) -> None:
    key = {"Idempotency-Key": "mine"}
    async with stage.client(**key) as main, stage.client("other", **key) as other:
        first = (await main.post("/v1/runs", json=BODY)).json()["run_id"]
        changed = await main.post("/v1/runs", json={**BODY, "prompt": "something else"})
        assert (changed.status_code, changed.json()["code"]) == (409, "idempotency_key_reused")
        theirs = await other.post("/v1/runs", json={**BODY, "agent": "for-other"})
        assert theirs.status_code == 202
        assert theirs.json()["run_id"] != first
        for bad in ("", "a" * 256):
            refused = await main.post("/v1/runs", json=BODY, headers={"Idempotency-Key": bad})
            assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")


async def test_words_and_cancellations_are_not_repeated_either(stage: ApiStage) -> None:
    key = {"Idempotency-Key": "words"}
    async with stage.client() as main:
        run_id = await stage.begin(main)
        path = f"/v1/runs/{run_id}/input"
        first = await main.post(path, json={"text": "hurry"}, headers=key)
        again = await main.post(path, json={"text": "hurry"}, headers=key)
        assert (first.status_code, again.status_code) == (202, 202)
        assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
        assert again.headers["location"] == f"/v1/runs/{run_id}"
        await stage.ended(run_id)
        heard = stage.service.heard[run_id].heard
        orders = await stage.store.database.select(
            "SELECT text FROM orders WHERE run_id = ?", run_id
        )
        assert len(orders) == 1, heard


async def test_two_processes_that_are_asked_at_once_make_one_run(tmp_path: Path) -> None:
    stores = [Store(tmp_path / "runs.sqlite", f"process {n}") for n in range(2)]
    once = Once(asker="main", method="POST", path="/v1/runs", key="k", sha256="0" * 64)
    outcomes: list[str] = []

    async def add(store: Store, task: Task) -> None:
        try:
            await store.add_run(task)
            outcomes.append(task.run_id)
        except AskedBefore as exc:
            outcomes.append(exc.run_id)

    try:
        async with anyio.create_task_group() as group:
            for n in range(20):
                task = Task(agent="a", prompt="p", once=once)
                group.start_soon(add, stores[n % 2], task)
        (made,) = await stores[0].find_runs()
        assert set(outcomes) == {made.run_id}
        other = once.model_copy(update={"sha256": "1" * 64})
        with pytest.raises(KeyReused):
            await stores[1].add_run(Task(agent="a", prompt="p", once=other))
        assert len(await stores[1].find_runs()) == 1
    finally:
        for store in stores:
            store.close()


async def test_a_key_is_forgotten_after_a_day_and_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "runs.sqlite")
    once = Once(asker="main", method="POST", path="/v1/runs", key="k", sha256="0" * 64)
    try:
        task = Task(agent="a", prompt="p", once=once)
        await store.add_run(task)
        found = await store.request_keys.find("", once)
        assert found is not None
        assert found.run_id == task.run_id
        await store.remove([task.run_id])
        assert await store.request_keys.find("", once) is None
        await store.add_run(task)
        monkeypatch.setattr(request_keys, "KEY_SECONDS", -1)
        assert await store.request_keys.find("", once) is None
    finally:
        store.close()
