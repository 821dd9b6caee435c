"""The API behind a URL."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.errors import OperatorError
from orchestrator.gateway.http.byte_stream import TURN_EVENTS
from orchestrator.gateway.model.upstream import HttpUpstream, UpstreamRequest
from tests.gateway.model.model_stage import http_upstream
from tests.gateway.near import turns_during
from tests.gateway.origin import listening


@pytest.mark.parametrize(
    "url", ["ftp://host", "host", "https://me:pw@host", "https://host/?a=b", "https://host:x"]
)
def test_a_base_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(OperatorError, match="ANTHROPIC_BASE_URL") as refused:
        HttpUpstream(url)
    assert "pw" not in str(refused.value).replace("password", "")


@pytest.mark.anyio
async def test_others_get_their_turn_while_an_answer_comes_in_crumbs() -> None:
    pieces, got = 20_000, []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n" * pieces + b"0\r\n\r\n")

    async with listening(talk) as port, http_upstream(f"http://127.0.0.1:{port}") as upstream:

        async def read() -> None:
            async with upstream.send(UpstreamRequest("POST", "/", ())) as answer:
                got.extend([piece async for piece in answer.body])

        turns = await turns_during(read)
    assert b"".join(got) == b"x" * pieces
    assert turns >= pieces // TURN_EVENTS
