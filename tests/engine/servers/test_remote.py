"""Servers at a URL: reached through vetted connections, with a secret or with tokens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import pytest
from pydantic import SecretStr

from orchestrator.domain.tool_server import ToolServer
from orchestrator.engine.servers.login import log_in
from orchestrator.engine.servers.opening import ServerDecisions, ServerOpener
from orchestrator.errors import ServerFailed
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.http.server import HttpResponse
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.gateway.tools.live_server import LiveServer
from orchestrator.gateway.tools.pool import CallFailed, ServerPool, Sharers, WantedServer
from orchestrator.gateway.tools.remote import ANSWER_BYTES
from orchestrator.store.audit import AuditQuery
from orchestrator.store.runs import Store
from tests.gateway.tools.remote_servers import RemoteServer, browse, remote_server

PATIENCE = 60
SECRET = "ntn-0123456789abcdef"


class Rig:
    """A pool that opens servers at URLs as an orchestrator does."""

    def __init__(self, folder: Path, store: Store, remote: RemoteServer) -> None:
        self.folder = folder
        self.store = store
        self.remote = remote
        self.secrets = {
            "ORCHESTRATOR_SECRET_KEY": SECRET,
            "ORCHESTRATOR_SECRET_PASSWORD": remote.client_secret,
        }
        self.pools: list[ServerPool] = []

    def server(self, **fields: Any) -> ToolServer:
        host = self.remote.url.removeprefix("http://")
        network = fields.pop("network", {"mode": "allow", "allow_private": (host,)})
        url = f"{self.remote.url}/mcp"
        return ToolServer.model_validate({"name": "it", "url": url, "network": network, **fields})

    def process(self, project: str = "p") -> ServerPool:
        """Another orchestrator with the same state directory."""
        nothing = cast("Any", None)
        opener = ServerOpener(
            runtime=nothing,
            engine=nothing,
            secret_store=SecretStore(self.folder / "secrets.yaml", self.secrets),
            dialer=Dialer(),
            environ={},
            audit=self.store.audit,
            tokens_dir=self.folder / "oauth",
            project=project,
        )
        self.pools.append(ServerPool(opener.open))
        return self.pools[-1]

    async def log_in(self, server: ToolServer, *, paste: bool = False, pastes: str = "") -> None:
        pages: list[str] = []

        async def pasted() -> str:
            while not pages:
                await anyio.sleep(0.01)
            if pastes:
                return pastes
            there = await browse(pages[0]) if not paste else await redirect(pages[0])
            return there if paste else await forever()

        values = {name: SecretStr(self.remote.client_secret) for name in server.secret_names}
        decided = ServerDecisions(self.store.audit, "", server.name).note
        await log_in(
            server,
            values,
            self.folder / "oauth",
            "p",
            Dialer(),
            decided,
            show=pages.append,
            pasted=pasted,
        )


async def forever() -> str:
    await anyio.sleep_forever()
    return ""


async def redirect(url: str) -> str:
    """The address that a browser elsewhere would end at."""
    async with httpx.AsyncClient() as http:
        return str((await http.get(url)).headers["location"])


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    store = Store(tmp_path / "runs.sqlite", "a test")
    with anyio.fail_after(PATIENCE):
        async with remote_server() as remote:
            made = Rig(tmp_path, store, remote)
            yield made
            for pool in made.pools:
                await pool.aclose()
    store.close()


def wanted(server: ToolServer) -> WantedServer:
    return WantedServer(server, None, Sharers("project", "p"))


async def called(live: LiveServer, **arguments: str) -> dict[str, Any]:
    answer = await live.call("echo", arguments)
    content: Any = answer["content"]
    told: dict[str, Any] = json.loads(content[0]["text"])
    return told


async def test_a_secret_goes_with_each_request_and_only_there(rig: Rig) -> None:
    rig.remote.wants = f"Bearer {SECRET}"
    server = rig.server(auth={"kind": "secret", "secret": "key"})
    async with rig.process().lease(wanted(server)) as live:
        assert (await called(live, text="hi"))["given"] == {"text": "hi"}
        assert live.protocol == "2025-06-18"
        assert SECRET in live.secrets()
        assert [tool.name for tool in (await live.listed()).tools] == ["echo"]
    assert set(rig.remote.heard) == {f"Bearer {SECRET}"}
    (row,) = await rig.store.audit.find(AuditQuery(who="server it"))
    assert (row.act, row.subject, row.allowed) == ("host", rig.remote.url[7:], True)


async def test_a_server_that_is_not_allowed_or_not_there_is_told_in_a_sentence(rig: Rig) -> None:
    host = rig.remote.url.removeprefix("http://")
    closed = {"mode": "allow", "allow_private": (host,), "deny": (host,)}
    private = rig.server(network=closed)
    with pytest.raises(ServerFailed, match=r"cannot be reached: 127\.0\.0\.1:\d+ blocked"):
        async with rig.process().lease(wanted(private)):
            pass
    nobody = ToolServer.model_validate(
        {
            "name": "it",
            "url": "http://127.0.0.1:1/mcp",
            "network": {"mode": "allow", "allow_private": ("127.0.0.1:1",)},
        }
    )
    with pytest.raises(ServerFailed, match="cannot connect to"):
        async with rig.process().lease(wanted(nobody)):
            pass
    assert rig.remote.heard == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (HttpResponse(200, (("content-type", "application/json"),), b"x" * (ANSWER_BYTES + 1)),
         "more than is taken"),
        (HttpResponse(200, (("content-type", "application/json"), ("content-encoding", "gzip"))),
         "compressed"),
        (HttpResponse(307, (("location", "http://169.254.169.254/"),)), "does not speak MCP"),
        (HttpResponse(200, (("content-type", "text/html"),), b"<h1>hello</h1>"), "does not speak"),
        (HttpResponse(200, (("content-type", "application/json"),), b"[" * 999), "does not speak"),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_bounded_and_told(
    rig: Rig, answer: HttpResponse, why: str
) -> None:
    rig.remote.answers_with = answer
    with pytest.raises(ServerFailed, match=why):
        async with rig.process().lease(wanted(rig.server())):
            pass


@pytest.mark.parametrize("paste", [False, True])
async def test_a_person_logs_in_once_and_other_processes_use_and_renew_the_tokens(
    rig: Rig, paste: bool
) -> None:
    rig.remote.wants, rig.remote.expires_in = "oauth", 3600
    server = rig.server(auth={"kind": "oauth"})
    with pytest.raises(ServerFailed, match="wants a login: orchestrator servers login it"):
        async with rig.process().lease(wanted(server)):
            pass
    await rig.log_in(server, paste=paste)
    assert rig.remote.scopes == ["tools:read"]  # of the challenge, and not all that there is
    assert rig.remote.grants == ["authorization_code"]
    (file,) = (rig.folder / "oauth").glob("*.json")
    assert file.stat().st_mode & 0o777 == 0o600

    async with rig.process().lease(wanted(server)) as live:
        assert (await called(live, text="x"))["as"].startswith("Bearer at-")
        assert rig.remote.grants == ["authorization_code"]
    with pytest.raises(ServerFailed, match="access_denied"):
        await rig.log_in(server, pastes="http://127.0.0.1/callback?error=access_denied")
    async with rig.process().lease(wanted(server)) as live:  # the login of before still counts
        assert (await called(live, text="x"))["as"].startswith("Bearer at-")
    rig.remote.tokens = dict.fromkeys(rig.remote.tokens, False)  # they are good for nothing now
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"expires_at": 1.0}))
    one, other = rig.process(), rig.process()
    async with one.lease(wanted(server)) as first, other.lease(wanted(server)) as second:
        async with anyio.create_task_group() as tasks:
            for live in (first, second, first, second):
                tasks.start_soon(called, live)
        assert second.secrets()[-2] in rig.remote.tokens
    assert rig.remote.grants == ["authorization_code", "refresh_token"]  # and nothing was lost


async def test_client_credentials_go_to_their_issuer_and_nowhere_else(rig: Rig) -> None:
    rig.remote.wants = "oauth"
    credentials = {"client_id": "me", "client_secret": "password", "issuer": rig.remote.url}
    auth = {"kind": "client_credentials", **credentials}
    async with rig.process().lease(wanted(rig.server(auth=auth))) as live:
        assert (await called(live, text="x"))["as"].startswith("Bearer at-")
    assert rig.remote.grants == ["client_credentials"]
    elsewhere = auth | {"issuer": "https://auth.example.org"}
    (rig.folder / "oauth" / next((rig.folder / "oauth").glob("*.json")).name).unlink()
    rig.remote.tokens.clear()
    with pytest.raises(ServerFailed, match="the login to it failed"):
        async with rig.process().lease(wanted(rig.server(auth=elsewhere))):
            pass
    assert rig.remote.grants == ["client_credentials"]


async def test_what_a_person_has_logged_in_to_is_for_that_server_of_that_project_alone(
    rig: Rig,
) -> None:
    rig.remote.wants = "oauth"
    logged_in = rig.server(auth={"kind": "oauth"})
    await rig.log_in(logged_in)
    (before,) = (rig.folder / "oauth").glob("*.json")
    kept = before.read_text()
    credentials = {"client_id": "me", "client_secret": "password", "issuer": rig.remote.url}
    program = rig.server(auth={"kind": "client_credentials", **credentials})
    async with rig.process().lease(wanted(program)) as live:
        await called(live, text="x")
    assert rig.remote.grants == ["authorization_code", "client_credentials"]
    assert before.read_text() == kept  # the person's tokens were neither used nor replaced
    others = {
        "another project": (rig.process("other"), logged_in),
        "another server": (rig.process(), logged_in.model_copy(update={"name": "other"})),
        "another client": (rig.process(), rig.server(auth={"kind": "oauth", "client_id": "c"})),
        "more scopes": (rig.process(), rig.server(auth={"kind": "oauth", "scopes": ("all",)})),
    }
    for who, (pool, server) in others.items():
        with pytest.raises(ServerFailed, match="wants a login"):
            async with pool.lease(wanted(server)):
                raise AssertionError(who)


async def test_a_server_that_goes_away_in_a_call_is_a_failed_call(rig: Rig) -> None:
    async with rig.process().lease(wanted(rig.server())) as live:
        rig.remote.answers_with = HttpResponse(500)
        with pytest.raises(CallFailed, match="error response"):
            await live.call("echo", {})
