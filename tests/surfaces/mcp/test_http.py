"""`orchestrator serve --http`: many clients at one server, each known by its token."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from orchestrator.domain.words import CANCELLED, CONNECTION_CLOSED
from orchestrator.surfaces.cli.main import main
from tests.surfaces.mcp.mcp_stage import (
    ERAS,
    FOR_EVER,
    PATIENCE,
    Notices,
    Stage,
    call,
    descriptions,
    http_server,
    on_stage,
    run_until_ready,
    text,
)

pytestmark = pytest.mark.anyio

TOKENS = {"main": "a-token-for-main-0123", "other": "a-token-for-other-4567"}

TOKEN_ENV = {"ORCHESTRATOR_HTTP_TOKENS": ",".join(f"{who}={t}" for who, t in TOKENS.items())}


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


@pytest.fixture(scope="module")
async def shared_stage(
    tmp_path_factory: pytest.TempPathFactory, image: str
) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path_factory.mktemp("stage"), image) as stage:
        stage.add_agent("ours", {"text": "for main: {last_user_text}"})
        stage.add_agent("slow", FOR_EVER)
        stage.add_agent("theirs", {"text": "for other"}, allowed_callers=["other"])
        yield stage


@pytest.fixture(scope="module")
async def url(shared_stage: Stage) -> AsyncIterator[str]:
    """One server for all tests that leave it as it was."""
    async with http_server(shared_stage, **TOKEN_ENV) as (_, url):
        yield url


@asynccontextmanager
async def connected(
    url: str, era: str, caller: str = "main", **options: Any
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKENS[caller]}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
        Client(streamable_http_client(url, http_client=http), mode=era, **options) as client,
    ):
        yield client


# Who may come in


async def test_a_token_is_asked_for_everywhere_but_at_health(url: str) -> None:
    async with httpx.AsyncClient() as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
            answer = await http.post(url, json={}, headers=headers)
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"].startswith("Bearer")
        health = await http.get(url.replace("/mcp", "/health"))
        assert (health.status_code, health.json()) == (200, {"ok": True})


async def test_a_page_that_came_by_another_name_is_refused(url: str) -> None:
    known = {"Authorization": f"Bearer {TOKENS['main']}", "Accept": "application/json"}
    async with httpx.AsyncClient(headers=known) as http:
        host = await http.post(url, json={}, headers={"Host": "evil.example:80"})
        assert host.status_code == 421
        origin = await http.post(url, json={}, headers={"Origin": "http://evil.example"})
        assert origin.status_code == 403
        ours = await http.post(url, json={}, headers={"Origin": "http://localhost:1234"})
        assert ours.status_code not in (401, 403, 421)


@pytest.mark.parametrize("era", ERAS)
async def test_the_token_says_who_calls(url: str, era: str) -> None:
    async with connected(url, era) as main_, connected(url, era, "other") as other:
        listed = (await call(main_, "list_agents")).structured_content
        assert listed is not None
        assert [agent["name"] for agent in listed["agents"]] == ["ours", "slow"]
        assert (await descriptions(other))["run_subagent"].endswith(
            "\nAgents:\n- theirs: What theirs does"
        )
        assert "**ours**" in str(await main_.get_prompt("subagents"))
        assert "**ours**" not in str(await other.get_prompt("subagents"))

        refused = await call(other, "run_subagent", agent_name="ours", prompt="hi")
        assert refused.is_error
        assert "agent 'ours' does not allow caller 'other'" in text(refused)
        welcome = await call(other, "run_subagent", agent_name="theirs", prompt="hi")
        assert welcome.structured_content is not None
        assert welcome.structured_content["caller"] == "other"
        assert text(welcome) == "for other"


async def test_clients_of_both_eras_at_once_each_get_their_own_answer(url: str) -> None:
    answers: dict[str, str] = {}

    async def ask(era: str, prompt: str) -> None:
        async with connected(url, era) as client:
            result = await call(client, "run_subagent", agent_name="ours", prompt=prompt)
            answers[prompt] = text(result)

    async with anyio.create_task_group() as tasks:
        for number, era in enumerate((*ERAS, *ERAS)):
            tasks.start_soon(ask, era, f"question {number}")

    assert answers == {f"question {n}": f"for main: question {n}" for n in range(4)}


# Changes and endings


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_hears_of_a_new_agent(url: str, shared_stage: Stage, era: str) -> None:
    notices = Notices()
    async with (
        connected(url, era, "other", message_handler=notices.handler) as client,
        notices.listening(client, era) as changed,
    ):
        name = f"new-{era}"
        assert name not in (await descriptions(client))["run_subagent"]
        shared_stage.add_agent(name, {"text": "hi"}, allowed_callers=["other"])
        await changed()
        while name not in (await descriptions(client))["run_subagent"]:
            await changed()  # the first was still of the test before
        (shared_stage.agents / name / "agent.md").unlink()
        await changed()
        assert name not in (await descriptions(client))["run_subagent"]


def audited(stage: Stage) -> list[tuple[str, str]]:
    """Acts and reasons, the oldest first."""
    db = sqlite3.connect(stage.state / "runs.sqlite")
    try:
        return db.execute("SELECT act, why FROM audit ORDER BY number").fetchall()
    finally:
        db.close()


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_is_cancelled_by_a_client_who_leaves_ends_the_run(
    url: str, shared_stage: Stage, era: str
) -> None:
    before = shared_stage.runs() if (shared_stage.state / "runs.sqlite").exists() else []
    ready = anyio.Event()
    with anyio.fail_after(PATIENCE):
        async with connected(url, era) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(run_until_ready, client, "slow", ready)
            await ready.wait()
            assert len(await shared_stage.containers()) == 1
            tasks.cancel_scope.cancel()

    await shared_stage.has_containers(0)
    await shared_stage.has_runs(*before, ("slow", "cancelled", "cancelled"))
    # Where a client cancels by hanging up, nothing tells that from a connection that broke.
    said = {"legacy": CANCELLED, "auto": CONNECTION_CLOSED}[era]
    assert shared_stage.messages()[-1] == said
    (row,) = [row for row in audited(shared_stage) if row[0] == "cancel"][-1:]
    assert row[1] == ("" if era == "legacy" else said)


async def test_a_server_that_is_told_to_stop_ends_its_runs_first(stage: Stage) -> None:
    stage.add_agent("slow", FOR_EVER)
    async with (
        http_server(stage, **TOKEN_ENV) as (process, url),
        anyio.create_task_group() as tasks,
    ):
        with anyio.fail_after(PATIENCE):
            for era in ERAS:
                ready = anyio.Event()
                tasks.start_soon(_run_till_the_server_stops, url, era, ready)
                await ready.wait()
            assert len(await stage.containers()) == 2
            process.terminate()
            assert await process.wait() == 0

    assert await stage.containers() == []
    assert stage.runs() == [("slow", "cancelled", "cancelled")] * 2
    assert stage.stderr.read_text().splitlines()[1:] == []


async def _run_till_the_server_stops(url: str, era: str, ready: anyio.Event) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 how a client finds out is its own matter
        async with connected(url, era) as client:
            await run_until_ready(client, "slow", ready)


# Where it listens


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0:8900", "0.0.0.0 can be reached from other machines, so callers need tokens"),
        ("[::]:8900", "[::] can be reached from other machines"),
        ("example.org:8900", "example.org can be reached from other machines"),
        ("8900", "--http 8900 is not HOST:PORT"),
        (":8900", "--http :8900 is not HOST:PORT"),
        ("127.0.0.1:99999", "is not HOST:PORT"),
    ],
)
def test_an_address_that_would_be_a_mistake_is_refused(
    address: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "--http", address])
    assert exit_.value.code == 4
    assert why in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as exit_:
            main(["serve", "--http", f"127.0.0.1:{port}"])
    assert exit_.value.code == 4
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in (
        capsys.readouterr().err
    )
