"""Who may ask what: tokens, the page's cookie, hosts and origins; and no caller sees another's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from orchestrator.domain.task import Task
from orchestrator.store.threads import Thread
from orchestrator.surfaces.http.api import API_ENDPOINTS
from tests.surfaces.http.api_stage import PATIENCE, ApiStage, on_api_stage

pytestmark = pytest.mark.anyio

MARK = "only-main-may-read-this"

BODIES: dict[str, dict[str, Any]] = {
    "/v1/runs": {"agent": "for-main", "prompt": "go"},
    "/v1/runs/{run_id}/input": {"text": "hear me"},
    "/v1/runs/{run_id}/questions/{message_id}": {"answer": "yes"},
    "/v1/runs/{run_id}/approvals": {"decisions": {"c1": {"action": "approve"}}},
    "/v1/login": {"code": "guessed"},
    "/v1/sessions": {"title": "x"},
    "/v1/sessions/{session_id}": {"title": "x"},
    "/v1/sessions/{session_id}/messages": {
        "message": {"role": "user", "content": "hear me"},
        "type": "steering",
    },
    "/v1/sessions/{session_id}/tools/decisions": {"decisions": {"c1": {"action": "accept"}}},
    "/v1/sessions/{session_id}/tools/resolve": {"decisions": {"c1": {"action": "accept"}}},
    "/v1/sessions/{session_id}/tools/{tool_call_id}/decision": {"action": "accept"},
    "/v1/sessions/{session_id}/model": {"model": "haiku"},
}

OPEN_TO_ALL = {"/v1/health", "/v1/login"}


async def test_a_token_is_asked_for_everywhere_but_where_all_may_ask(stage: ApiStage) -> None:
    async with stage.client(None) as stranger:
        for each in API_ENDPOINTS:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Cookie": "orchestrator_page_80=x", "X-Orchestrator": "x"},
            ):
                path = re.sub(r"\{\w+\}", "x", each.path)
                answer = await stranger.request(each.method, path, headers=headers)
                if each.path in OPEN_TO_ALL:
                    assert answer.status_code in (200, 400), each.path
                    continue
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
                assert answer.headers["www-authenticate"] == "Bearer"
        assert (await stranger.get("/v1/openapi.json")).status_code == 200
    assert ("127.0.0.1", "no token, or one that is not known") in stage.strangers


async def test_other_hosts_and_pages_are_refused(stage: ApiStage) -> None:
    async with stage.client() as main:
        host = await main.get("/v1/runs", headers={"Host": "evil.example"})
        assert (host.status_code, host.json()["code"]) == (421, "wrong_host")
        origin = await main.get("/v1/runs", headers={"Origin": "http://evil.example"})
        assert (origin.status_code, origin.json()["code"]) == (403, "forbidden_origin")
        ours = await main.get("/v1/runs", headers={"Origin": stage.url})
        assert ours.status_code == 200


async def test_without_tokens_the_caller_is_the_default_one(tmp_path: Path) -> None:
    async with on_api_stage(tmp_path, tokens={}) as stage, stage.client(None) as client:
        me = (await client.get("/v1/me")).json()
        assert (me["caller"], me["person"], me["project"]) == ("default", False, "")
        assert (await client.get("/v1/agents")).json()["items"] == []


async def test_a_link_works_once_and_makes_a_person(stage: ApiStage) -> None:
    code = await stage.logins.new_code()
    async with httpx.AsyncClient(base_url=stage.url) as page:
        answer = await page.post("/v1/login", json={"code": code})
        assert answer.status_code == 200
        ours = {"X-Orchestrator": answer.json()["key"]}
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        me = (await page.get("/v1/me", headers=ours)).json()
        assert (me["person"], me["caller"], me["project"]) == (True, "main", stage.settings.project)
        for wrong in ({}, {"X-Orchestrator": "page"}):  # a cookie alone is worth nothing
            forged = await page.post("/v1/logout", headers=wrong)
            assert (forged.status_code, forged.json()["code"]) == (401, "unauthorized")
        elsewhere = await page.post("/v1/logout", headers=ours | {"Sec-Fetch-Site": "cross-site"})
        assert (elsewhere.status_code, elsewhere.json()["code"]) == (403, "forbidden_origin")
        name, _, value = cookie.partition(";")[0].partition("=")
        assert (await page.post("/v1/logout", headers=ours)).status_code == 204
        page.cookies.clear()
        page.cookies.set(name, value)
        assert (await page.get("/v1/me", headers=ours)).status_code == 401
    async with httpx.AsyncClient(base_url=stage.url) as late:
        assert (await late.post("/v1/login", json={"code": code})).status_code == 401
    row = await stage.store.database.select("SELECT * FROM page_logins")
    assert code not in str([tuple(each) for each in row])


async def test_what_only_a_person_may_is_refused_to_callers(stage: ApiStage) -> None:
    async with stage.client() as main:
        for each in API_ENDPOINTS:
            if each.person:
                answer = await main.request(each.method, each.path)
                assert (answer.status_code, answer.json()["code"]) == (403, "person_needed")


async def _waiting(stage: ApiStage, client: httpx.AsyncClient) -> tuple[str, str]:
    """A run with all that can be known of one: a question, a tool call, events, words of its own.
    Its id, and that of the question.
    """
    run_id = await stage.begin(client, prompt=MARK, context=MARK)
    desk = stage.service.live[run_id].desk
    await stage.note(run_id, MARK)

    async def ask() -> None:
        await desk.ask(MARK)

    async def approve() -> None:
        await desk.approve("c1", "Bash", {"command": MARK})

    stage.service.do(run_id, ask)
    stage.service.do(run_id, approve)
    with anyio.fail_after(PATIENCE):
        while True:
            run = (await client.get(f"/v1/runs/{run_id}")).json()
            if run["questions"] and run["pending_tool_calls"]:
                return run_id, run["questions"][0]["message_id"]
            await anyio.sleep(0.01)


async def test_a_caller_never_sees_or_touches_anothers_on_any_route(stage: ApiStage) -> None:
    async with stage.client() as main, stage.client("other") as other:
        run_id, message_id = await _waiting(stage, main)
        await stage.store.database.write(
            "INSERT INTO sessions (project, agent, caller, name, kept, state, owner, conversation, "
            "runs, created, used, expires) "
            "VALUES (?, ?, 'main', ?, 'k', 'stopped', '', ?, 1, 1, 1, 1)",
            *(stage.service.project, MARK, MARK, MARK),
        )
        tar = await main.post(
            "/v1/workspaces", content=b"\0" * 10240, headers={"Content-Type": "application/x-tar"}
        )
        assert tar.status_code == 201, tar.text
        project = stage.service.project
        mine = Thread(thread_id="", project=project, caller="main", title=MARK, cwd=f"/{MARK}")
        thread = await stage.store.threads.add(mine)
        await stage.store.database.write(
            "UPDATE runs SET task = json_set(task, '$.thread', ?) WHERE run_id = ?",
            *(thread.thread_id, run_id),
        )
        known = {
            "session_id": thread.thread_id,
            "tool_call_id": "c1",
            "run_id": run_id,
            "message_id": message_id,
            "name": "for-main",
            "agent": MARK,
            "workspace": tar.json()["workspace"],
        }
        queries = [
            {},
            {"parent": run_id},
            {"run": run_id},
            {"caller": "main"},
            {"agent": "for-main"},
            {"search": MARK},
        ]
        before = (await main.get(f"/v1/runs/{run_id}")).json()
        for each in API_ENDPOINTS:
            path = each.path.format(**known)
            if each.path.startswith("/v1/agent-sessions/"):
                path = path.replace("for-main", MARK)
            named = "{" in each.path
            body = BODIES.get(each.path)
            if each.body is not None and "run_id" in each.body.model_fields:
                body = {**(body or {}), "run_id": run_id}
            for query in queries:
                params = {k: v for k, v in query.items() if k in each.query.model_fields}
                answer = await other.request(each.method, path, params=params, json=body)
                text = answer.text.replace(f'"instance":"{path}"', "")
                assert MARK not in text, (each.method, path, params)
                assert run_id not in text, (each.method, path, params)
                if named and each.path not in OPEN_TO_ALL:
                    assert answer.status_code in (403, 404), (each.method, path, answer.text)
        after = (await main.get(f"/v1/runs/{run_id}")).json()
        for fleeting in ("newest_event_id", "log_tail"):
            before.pop(fleeting), after.pop(fleeting)
        assert after == before
        seen = [(await main.get(path)).text for path in ("/v1/runs", "/v1/inbox", "/v1/events")]
        assert all(MARK in text for text in seen)
        assert (await main.get(f"/v1/workspaces/{known['workspace']}")).status_code == 200
        await stage.ended(run_id)


async def test_another_projects_runs_are_nobodys_here(stage: ApiStage) -> None:
    task = Task(agent="for-main", prompt=MARK, caller="main", project="/elsewhere")
    await stage.store.add_run(task)
    async with stage.client() as main, stage.person() as person:
        for client in (main, person):
            for each in API_ENDPOINTS:
                if each.path in ("/v1/doctor", "/v1/logout", "/v1/machine", "/v1/login"):
                    continue
                path = each.path.replace("{run_id}", task.run_id)
                path = re.sub(r"\{\w+\}", "x", path)
                body = BODIES.get(each.path)
                answer = await client.request(each.method, path, json=body)
                text = answer.text.replace(json.dumps(path), "")
                assert task.run_id not in text, (each.method, path)
                if "{run_id}" in each.path:
                    assert answer.status_code == 404, (each.method, path, answer.text)


async def test_a_person_decides_what_callers_may_not(stage: ApiStage) -> None:
    async with stage.client() as main, stage.person() as person:
        run_id, message_id = await _waiting(stage, main)
        await stage.store.database.write(
            "UPDATE approvals SET approval_by = 'user' WHERE run_id = ?", run_id
        )
        path = f"/v1/runs/{run_id}/approvals"
        approve = {"decisions": {"c1": {"action": "approve", "input": {"command": "true"}}}}
        (item,) = [
            each
            for each in (await main.get("/v1/inbox")).json()["items"]
            if (each["run_id"], each["kind"]) == (run_id, "approval")
        ]
        assert item["may_decide"] is False
        refused = await main.post(path, json=approve)
        assert (refused.status_code, refused.json()["code"]) == (409, "run_refused")
        unknown = {"decisions": approve["decisions"] | {"c9": {"action": "approve"}}}
        assert (await person.post(path, json=unknown)).status_code == 409
        inbox = (await person.get("/v1/inbox")).json()["items"]
        assert [each["may_decide"] for each in inbox if each["run_id"] == run_id] == [True, True]
        assert (await person.post(path, json=approve)).status_code == 200
        assert (await person.post(path, json=approve)).status_code == 409
        answered = await person.post(
            f"/v1/runs/{run_id}/questions/{message_id}", json={"answer": "yes"}
        )
        assert answered.status_code == 200
        with anyio.fail_after(PATIENCE):
            while not (run := (await main.get(f"/v1/runs/{run_id}")).json())["asked_before"]:
                await anyio.sleep(0.01)
        assert run["asked_before"][0]["answer"] == "yes"
        assert run["asked_before"][0]["whom"] == "operator, page"
        cancelled = await main.post(f"/v1/runs/{run_id}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
