"""Runs over HTTP: begin, list, look, answer, decide, cancel."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from orchestrator.domain.task import Task
from orchestrator.engine.live import LiveRun
from orchestrator.store.runs import Store
from orchestrator.surfaces.http.bodies import ApplyWish
from orchestrator.surfaces.http.routes import runs
from tests.surfaces.http.api_stage import PATIENCE, ApiStage, on_api_stage

pytestmark = pytest.mark.anyio


async def test_a_run_is_begun_looked_at_and_listed(stage: ApiStage) -> None:
    async with stage.client() as main:
        answer = await main.post("/v1/runs", json={"agent": "for-main", "prompt": "go"})
        run_id = answer.json()["run_id"]
        assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/runs/{run_id}")
        assert answer.json()["caller"] == "main"
        with anyio.fail_after(PATIENCE):
            while run_id not in stage.service.live:
                await anyio.sleep(0.005)
        await stage.ended(run_id, "an answer")
        run = (await main.get(f"/v1/runs/{run_id}")).json()
        assert (run["status"], run["result"], run["reason"]) == ("completed", "an answer", "ok")
        page = (await main.get("/v1/runs", params={"status": "completed"})).json()
        assert run_id in [row["run_id"] for row in page["items"]]


async def test_who_waits_gets_the_answer_in_the_same_request(stage: ApiStage) -> None:
    async with stage.client() as main, anyio.create_task_group() as group:

        async def complete() -> None:
            with anyio.fail_after(PATIENCE):
                while not (new := set(stage.service.live) - known):
                    await anyio.sleep(0.005)
            stage.service.complete(new.pop(), "soon")

        known = set(stage.service.live)
        group.start_soon(complete)
        body = {"agent": "for-main", "prompt": "go"}
        answer = await main.post("/v1/runs", json=body, headers={"Prefer": "wait=60"})
        assert (answer.status_code, answer.json()["result"]) == (200, "soon")
        assert answer.headers["preference-applied"] == "wait=60"


async def test_a_plan_names_to_a_caller_no_place_but_its_own(
    stage: ApiStage,
) -> None:
    real, link = (stage.folder / "project" / name for name in ("real", "link"))
    real.mkdir()
    link.symlink_to(real)
    path = "/v1/agents/for-main/plan"
    async with stage.client() as main, stage.person() as person:
        for client, place, told in (
            (main, real, str(real)),
            (main, link, "a place of the server's"),
            (person, link, str(real)),
        ):
            params = {"workspace": str(place), "rows": "all"}
            answer = await client.get(path, params=params)
            assert answer.status_code == 200, answer.text
            (mount,) = answer.json()["mounts"]
            assert mount == {"source": told, "target": "/workspace", "access": "ro"}
            assert (str(real) in answer.text) == (told == str(real))


async def test_a_doctor_says_what_is_wrong(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = {"engine_candidates": ("unix:///nowhere/engine.sock",)}
    settings = stage.settings.model_copy(update=nowhere)
    async with stage.person() as person:
        parts = stage.api._parts
        assert parts is not None
        monkeypatch.setattr(stage.api, "_parts", replace(parts, settings=settings))
        answer = await person.post("/v1/doctor")
    said = answer.json()
    assert (answer.status_code, said["ok"]) == (200, False)
    assert "unix:///nowhere/engine.sock" in said["error"]
    checks = {check["name"]: check for check in said["checks"]}
    assert checks["state"]["detail"] == str(stage.settings.state_dir)
    assert (checks["socket"]["ok"], bool(checks["socket"]["advice"])) == (False, True)


async def test_what_a_request_has_begun_ends_before_the_store_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "ACCEPT_SECONDS", 0.01)
    applied: list[str] = []
    async with on_api_stage(tmp_path) as stage, stage.client() as client:
        leaving, accept = stage.tasks._looking, stage.service.accept

        async def until_the_end() -> None:
            while not leaving.cancel_called:
                await anyio.sleep(0.005)
            await anyio.sleep(0.005)

        async def slow(task: Task, *listeners: Any, **more: Any) -> LiveRun:
            await until_the_end()
            return await accept(task, *listeners, **more)

        async def apply(run_id: str, *_: object, **__: object) -> None:
            applied.append("begun")
            await until_the_end()
            applied.append(run_id)

        async def seen(_: str) -> None:
            pass

        monkeypatch.setattr(stage.service, "accept", slow)
        monkeypatch.setattr(stage.service, "apply", apply)
        answer = await client.post("/v1/runs", json={"agent": "for-main", "prompt": "go"})
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        parts = SimpleNamespace(service=stage.service, tasks=stage.tasks)
        asker = SimpleNamespace(sees_as="main")
        wish = ApplyWish()
        call = SimpleNamespace(body=wish, check_seen=seen, run_id="r", asker=asker, parts=parts)
        request = asyncio.create_task(runs.apply(cast("Any", call)))
        with anyio.fail_after(PATIENCE):
            while not applied:
                await anyio.sleep(0.005)
        request.cancel()  # as a web server does that is to end
        with pytest.raises(asyncio.CancelledError):
            await request
    assert applied == ["begun", "r"]
    store = Store(tmp_path / "state" / "runs.sqlite", "another")
    (run,) = await store.find_runs(limit=-1)
    assert run.status == "cancelled"
    store.close()
