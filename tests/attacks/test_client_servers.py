"""Servers that a client of ours should not have asked: what they answer is data."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from orchestrator.client import OrchestratorClient, connection, open_client
from orchestrator.client import api as client_api
from orchestrator.errors import ApplyRefused, OperatorError, OrchestratorError, ServerAway
from tests.attacks.mark import attack

pytestmark = pytest.mark.anyio

PATIENCE = 60
TOKEN = "a-token-that-stays-here"
RUN = "r0123456789"

Ask = Callable[[OrchestratorClient], Awaitable[object]]


class Liar:
    """A server that answers everything with the same bytes."""

    def __init__(self) -> None:
        self.url = ""
        self.answer = b""
        self.heard = b""

    def says(self, body: bytes, *headers: str, status: str = "200 OK") -> None:
        lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close")
        self.answer = "\r\n".join((*lines, *headers, "", "")).encode() + body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        writer.close()


@pytest.fixture
async def liar() -> AsyncIterator[Liar]:
    liar = Liar()
    server = await asyncio.start_server(liar.serve, "127.0.0.1", 0)
    liar.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield liar


async def refused(liar: Liar, ask: Ask) -> OrchestratorError:
    """What a client says of an answer."""
    async with open_client(liar.url, TOKEN) as client:
        with anyio.fail_after(PATIENCE), pytest.raises(OrchestratorError) as caught:
            await ask(client)
    assert TOKEN not in str(caught.value)
    assert not isinstance(caught.value, ServerAway)
    return caught.value


async def followed(client: OrchestratorClient) -> None:
    async for _ in client.events(RUN):
        pass


async def changes(client: OrchestratorClient) -> None:
    async with client.changes(RUN):
        pass


def tar(name: str, data: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


@attack(
    "callers over HTTP",
    "as a server, answer a client with JSON that is another kind, endless in depth, or none",
    "an error in a sentence, without the token; the client goes on",
)
@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"null", b'{"items": 5}', b"[" * 100_000, b"\xff", b"9" * 10_000]
)
async def test_answers_of_another_kind(liar: Liar, body: bytes) -> None:
    liar.says(body, "Content-Type: application/json")
    for ask in (OrchestratorClient.runs, OrchestratorClient.inbox, OrchestratorClient.agents):
        await refused(liar, ask)


@attack(
    "callers over HTTP",
    "as a server, send a client lists that never end, or the word that it is away",
    "the list ends where it does not go on; the word is an error like others",
)
async def test_answers_without_an_end(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_api, "PAGE_EVENTS", 1)
    event = {"id": 1, "run_id": RUN, "seq": 1, "at": 0, "kind": "text", "text": "", "data": {}}
    async with open_client(liar.url) as client:
        with anyio.fail_after(PATIENCE):
            liar.says(json.dumps({"items": [event]}).encode())
            assert len(await client.past_events(RUN)) == 2
            liar.says(b'{"items": [], "next_cursor": "again"}')
            assert await client.runs() == []
    liar.says(b'{"code": "server_away", "detail": "x"}', status="409 Conflict")
    await refused(liar, OrchestratorClient.me)


@attack(
    "callers over HTTP",
    "as a server, send a client a stream of events that are no JSON",
    "an error in a sentence",
)
async def test_events_that_are_none(liar: Liar) -> None:
    liar.says(b"event: text\ndata: {nope\n\n", "Content-Type: text/event-stream")
    await refused(liar, followed)


@attack(
    "callers over HTTP",
    "as a server, send a client a bomb: packed, or more than any answer or any run has",
    "refused before it is unpacked, or as soon as it is too much",
)
async def test_answers_that_are_too_much(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    liar.says(gzip.compress(b"{}"), "Content-Encoding: gzip")
    assert "packed" in str(await refused(liar, OrchestratorClient.me))
    monkeypatch.setattr(connection, "WHOLE_ANSWER_BYTES", 1000)
    monkeypatch.setattr(client_api, "ARCHIVE_BYTES", 1000)
    liar.says(b"0" * 2000)
    assert isinstance(await refused(liar, lambda client: client.patch(RUN)), OperatorError)
    assert "more changes" in str(await refused(liar, changes))


@attack(
    "callers over HTTP",
    "as a server, send a client changes whose list is no text, or that name other places",
    "refused; nothing is written but in a folder of its own, which is gone",
)
@pytest.mark.parametrize(
    ("name", "data"),
    [("manifest.json", b"\xff"), ("../x", b"x"), ("objects/../../x", b"x"), ("/etc/x", b"x")],
)
async def test_changes_that_lead_elsewhere(
    liar: Liar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    liar.says(tar(name, data))
    assert isinstance(await refused(liar, changes), ApplyRefused)
    assert list(tmp_path.iterdir()) == []


@attack(
    "callers over HTTP",
    "as a server, redirect a client, to have its token sent to another one",
    "no redirect is followed; the other hears nothing",
)
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_a_token_follows_no_redirect(liar: Liar, status: str) -> None:
    other = Liar()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        liar.says(b"", f"Location: http://127.0.0.1:{port}/v1/me", status=status)
        await refused(liar, OrchestratorClient.me)
        await refused(liar, lambda client: client.tell(RUN, "x"))
        await refused(liar, followed)
    assert TOKEN.encode() in liar.heard
    assert other.heard == b""
