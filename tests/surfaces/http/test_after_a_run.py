"""What is left of a real run, over HTTP: its changes, its session, the machine that it ran on."""

from __future__ import annotations

import io
import logging
import tarfile

import anyio
import httpx
import pytest
from pydantic import SecretStr

from orchestrator.app import open_orchestrator, open_watching
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.store.page_logins import PageLogins
from orchestrator.surfaces.http.api import Behind
from orchestrator.telemetry.run_log import RUNS_LOGGER
from tests.surfaces.http.api_stage import PATIENCE, TOKENS, serving_api
from tests.surfaces.mcp.mcp_stage import Stage
from tests.surfaces.task_stage import bash

pytestmark = pytest.mark.anyio


def headers(caller: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[caller]}"}


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_changes_a_session_and_the_machine(
    task_stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    task_stage.add_agent(
        "keeper",
        bash("echo hello > new.txt"),
        {"text": "done"},
        permissions={"allow": ["Bash"]},
        session=True,
        workspace="copy",
    )
    project = task_stage.work / "project"
    project.mkdir()
    (project / "old.txt").write_text("old\n")
    tokens = {caller: SecretStr(token) for caller, token in TOKENS.items()}
    settings = task_stage.settings.model_copy(update={"http_tokens": tokens})

    async def at_once() -> None:
        pass

    caplog.set_level(logging.INFO, RUNS_LOGGER)
    async with (
        open_watching(settings, logs=True) as watching,
        open_orchestrator(settings, watching=watching) as service,
        Tasks(service) as tasks,
    ):
        behind = Behind(settings, service, tasks, at_once, service.note_stranger)
        async with (
            serving_api(behind) as (_, url),
            httpx.AsyncClient(base_url=url, headers=headers("main"), timeout=PATIENCE) as main,
            httpx.AsyncClient(base_url=url, headers=headers("other"), timeout=PATIENCE) as other,
            httpx.AsyncClient(base_url=url, timeout=PATIENCE) as person,
        ):
            login = {"code": await PageLogins(service.store.database, service.project).new_code()}
            key = (await person.post("/v1/login", json=login)).json()["key"]
            person.headers["X-Orchestrator"] = key

            wish = {"agent": "keeper", "prompt": "go", "workspace": str(project)}
            asked = {"Prefer": "wait=60", "X-Request-Id": "req-1"}
            answer = await main.post("/v1/runs", json=wish, headers=asked)
            run = answer.json()
            assert answer.status_code == 200, run
            assert (run["status"], run["session"]) == ("completed", "default"), run
            path = f"/v1/runs/{run['run_id']}"
            logged = [vars(line).get("fields", {}) for line in caplog.records]
            (queued,) = [line for line in logged if line.get("event") == "queued"]
            assert (queued["run_id"], queued["request_id"]) == (run["run_id"], "req-1")

            machine = await person.get("/v1/machine")
            said = machine.json()
            assert (machine.status_code, said["engine_error"]) == (200, "")
            assert said["engine"]["version"]
            (box,) = [each for each in said["containers"] if each["agent"] == "keeper"]
            assert (box["kind"], box["session"]) == ("kept", "keeper/main/default")
            assert not box["spare"]
            assert said["queue"]["under_way"] == 0
            assert said["disk"]["path"] == str(settings.state_dir)
            assert said["disk"]["used_bytes"] > 0

            patch = await main.get(f"{path}/patch")
            assert (patch.status_code, patch.headers["content-type"].split(";")[0]) == (
                *(200, "text/x-diff"),
            )
            assert "+hello" in patch.text
            changes = await main.get(f"{path}/changes")
            assert changes.status_code == 200
            with tarfile.open(fileobj=io.BytesIO(changes.content)) as tar:
                files = [tar.extractfile(each) for each in tar if each.isfile()]
                assert b"hello\n" in [file.read() for file in files if file is not None]
            for method, what in (("GET", "patch"), ("GET", "changes"), ("POST", "apply")):
                refused = await other.request(method, f"{path}/{what}")
                assert code(refused) == (404, "run_not_found")

            tried = await main.post(f"{path}/apply", json={"dry_run": True})
            assert (tried.status_code, tried.json()["dry_run"]) == (200, True)
            assert not (project / "new.txt").exists()
            applied = await main.post(f"{path}/apply", json={})
            assert [each["path"] for each in applied.json()["files"]] == ["new.txt"]
            assert (project / "new.txt").read_text() == "hello\n"

            session = "/v1/agent-sessions/keeper/default"
            assert code(await other.post(f"{session}/stop")) == (404, "not_found")
            assert code(await other.delete(session)) == (404, "not_found")
            for stopped in (True, False):
                answer = await main.post(f"{session}/stop")
                assert (answer.status_code, answer.json()) == (200, {"stopped": stopped})
            kept = (await main.get("/v1/agent-sessions")).json()["items"]
            assert [(each["agent"], each["state"]) for each in kept] == [("keeper", "stopped")]
            with anyio.fail_after(PATIENCE):
                assert (await main.delete(session)).status_code == 204
            assert (await main.get("/v1/agent-sessions")).json()["items"] == []
            assert code(await main.delete(session)) == (404, "not_found")
