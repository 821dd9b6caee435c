"""The shipped GitHub agent on local stand-ins: many calls, one checkout, a token kept outside."""

from __future__ import annotations

import json
import logging
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import HOME, ROUTES_URL, Launch
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.store.session_rows import SessionKey
from tests.engine.harness import Harness, Steps
from tests.engine.shipped import place_shipped, shipped_fields
from tests.engine.test_git_with_a_brokered_token import stored
from tests.engine.test_secrets import search, shapes
from tests.gateway.secrets.git_server import Exchange, GitServer, git_server, https_server

PATIENCE = 170


DOES_WHAT_IT_IS_TOLD: Steps = [
    {"tool": "Bash", "input": {"command": "{last_user_text}"}},
    {"text": "{last_tool_result}\n| {user_texts}"},
]


@dataclass
class Hub:
    """GitHub, as far as the agent sees it: git on one host, the API on another."""

    git: GitServer
    port: int = 0
    """Of the API."""
    pulls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def api_address(self) -> str:
        """Where the agent asks for the API: the gateway, which has the token."""
        return f"{ROUTES_URL}/other.test:{self.port}"

    def answer(self, exchange: Exchange) -> None:
        if exchange.headers.get("authorization") != f"Bearer {self.git.token}":
            _say(exchange, 401, {"message": "Bad credentials"})
            return
        body = b"".join(exchange.body())
        match exchange.command, exchange.path:
            case "GET", "/repos/acme/widget":
                _say(exchange, 200, {"full_name": "acme/widget", "default_branch": "main"})
            case "GET", "/repos/acme/widget/issues?per_page=30":
                _say(exchange, 200, [{"number": 7, "title": "README has no ending"}])
            case "POST", "/repos/acme/widget/pulls":
                asked = json.loads(body)
                log = self.git.log("acme/widget.git", asked["head"])
                self.pulls.append(asked | {"log": log})
                _say(
                    exchange, 201, {"number": 8, "html_url": "https://git.test/acme/widget/pull/8"}
                )
            case _:
                _say(exchange, 404, {"message": "Not Found"})


def _say(exchange: Exchange, status: int, document: object) -> None:
    headers = {"content-type": "application/json"}
    exchange.say(status, headers, json.dumps(document).encode())


@asynccontextmanager
async def hub(folder: Path, token: str) -> AsyncIterator[Hub]:
    async with git_server(folder / "git", token, "acme/widget.git", "acme/other.git") as git:
        there = Hub(git)
        with https_server(folder / "api", there.answer) as api:
            there.port = api.port
            yield there


def dialer(folder: Path) -> Dialer:
    context = ssl.create_default_context()
    for name in ("git/certificate", "api"):
        context.load_verify_locations(folder / name / "certificate.pem")

    async def resolve(_host: str, _port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)

    return Dialer(resolve=resolve, ssl_context=context)


def local_fields(hub: Hub) -> dict[str, object]:
    """Of agent.md: the hosts and the repository, and nothing else."""
    hosts = {
        "api.github.com": f"other.test:{hub.port}",
        "github.com": hub.git.https.host,
    }
    shipped = shipped_fields("github")
    for secret in shipped["secrets"]:
        secret["hosts"] = [hosts[host] for host in secret["hosts"]]
        own = [path.replace("OWNER", "acme").replace("REPO", "widget") for path in secret["paths"]]
        secret["paths"] = own
    return {"secrets": shipped["secrets"], "network": {"allow_private": list(hosts.values())}}


@asynccontextmanager
async def orchestrator(
    runtime: DockerRuntime, image: str, folder: Path, hub: Hub
) -> AsyncIterator[Harness]:
    """One orchestrator process, as it were: a store, sessions, the shipped agent."""
    harness = Harness(runtime, image, folder)
    harness.dialer = dialer(folder / "servers")
    harness.secrets = {
        "ORCHESTRATOR_SECRET_GITHUB_TOKEN": hub.git.token,
        "ORCHESTRATOR_SECRET_GITHUB_TOKEN_FOR_GIT": hub.git.token,
    }
    with closing(harness.store):
        async with harness.sessions:
            yield harness


REMEMBERS: Steps = [
    {"tool": "Read", "input": {"file_path": f"{HOME}/memory.md"}},
    {"tool": "Write", "input": {"file_path": f"{HOME}/memory.md", "content": "{last_user_text}"}},
    {"text": "done"},
]


async def told(harness: Harness, command: str, steps: Steps = DOES_WHAT_IT_IS_TOLD) -> RunResult:
    """Have the agent do it; of its answer, what is before the bar is what the command printed."""
    service = harness.service(steps, each_task=True)
    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="github", prompt=command), harness.events.append)
    assert (result.status, result.denied_tools) == ("completed", ()), result
    return result


def printed(result: RunResult) -> str:
    return str(result.result).partition("\n| ")[0]


async def test_one_checkout_serves_many_calls_and_ends_in_a_pull_request(
    runtime: DockerRuntime, image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = f"ghp_{secrets.token_hex(18)}"
    async with hub(tmp_path / "servers", token) as there:
        place_shipped(tmp_path / "agents", "github", **local_fields(there))
        memory = tmp_path / "agents/github/memory.md"
        url = f"https://{there.git.https.host}/acme/widget.git"
        api = f"{there.api_address}/repos/acme/widget"

        async with orchestrator(runtime, image, tmp_path, there) as harness:
            clone = f"git clone -q {url} widget && git -C widget log --format=%s"
            first = await told(harness, clone)
            assert printed(first) == "first"
            second = await told(harness, f"curl -sS '{api}/issues?per_page=30' | jq -r '.[].title'")
            assert printed(second) == "README has no ending"
            assert str(second.result).endswith(
                f"| {clone}; curl -sS '{api}/issues?per_page=30' | jq -r '.[].title'"
            )
            events = harness.events

        async with orchestrator(runtime, image, tmp_path, there) as harness:
            third = await told(
                harness,
                "git -C widget mv README README.md && git -C widget commit -qm 'Give it an ending' "
                "&& git -C widget push -q origin HEAD:refs/heads/ending "
                "&& git -C widget log --format='%s, by %an' origin/ending",
            )
            assert printed(third) == "Give it an ending, by github agent\nfirst, by T"
            assert (third.session_id, third.session_note) == (first.session_id, "")
            assert clone in str(third.result), "it knows what was said before"

            pull = json.dumps({"title": "An ending", "head": "ending", "base": "main"})
            fourth = await told(harness, f"curl -sS -d '{pull}' {api}/pulls | jq .number")
            assert printed(fourth) == "8"
            refused = await told(
                harness, f"git ls-remote {url.replace('widget', 'other')} 2>&1; true"
            )
            assert "agent.md does not allow GET of /acme/other.git/info/refs" in printed(refused)
            events += harness.events
            found = await searched(harness, token)

        async with orchestrator(runtime, image, tmp_path, there) as harness:
            await told(harness, "acme/widget: the ending is pull request 8", REMEMBERS)
            (row,) = await harness.sessions.list()
            assert row.key == key_of(harness)
            assert await harness.sessions.remove(row.key)

    assert memory.read_text() == "acme/widget: the ending is pull request 8"
    assert there.pulls == [
        {
            "title": "An ending",
            "head": "ending",
            "base": "main",
            "log": ["Give it an ending", "first"],
        }
    ]
    assert there.git.log("acme/widget.git") == ["first"], "the default branch is as it was"
    assert not [line for line in there.git.reached if "other.git" in line]
    assert found == [f"{HOME}/canary"], "the search works, and finds nothing else"
    used = {event.data["secret"] for event in events if event.kind == "secret_used"}
    assert used == {"github-token", "github-token-for-git"}
    kept = stored(tmp_path)
    everything = kept + repr((first, second, third, fourth, refused, events)).encode()
    everything += caplog.text.encode()
    assert b"github-token-for-git" in kept
    assert [shape for shape in shapes(token) if shape.encode() in everything] == []


def key_of(harness: Harness) -> SessionKey:
    return harness.key.model_copy(update={"agent": "github"})


async def searched(harness: Harness, token: str) -> list[str]:
    """Where in the session's container the token is, and where a canary is that was left there."""
    place = harness.sessions._live[key_of(harness)].place
    assert place is not None
    canary = f"canary-{secrets.token_hex(8)}"
    script = f"printf %s {canary[:6]}$REST > canary; " + search(*shapes(token), canary)
    launch = Launch(
        argv=("sh", "-c", script),
        env={"PATH": "/usr/bin:/bin", "REST": canary[6:]},
        cwd=HOME,
    )
    with anyio.fail_after(PATIENCE):
        done = await place.container.run(launch)
    *found, code, _uid = done.stdout.decode().splitlines()
    assert code in ("code 0", "code 2"), "124 is a search that was not finished"
    return found
