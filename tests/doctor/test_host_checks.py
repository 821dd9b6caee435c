"""What the doctor says of this machine: records, room, key, model API."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orchestrator.doctor.examination import Check
from orchestrator.doctor.host_checks import GIB, api_check, disk_check, examine_host
from orchestrator.gateway.model.free_request import FreeAnswer
from orchestrator.settings import read_settings

KEY = "sk-a-value-to-look-for"


@contextmanager
def model_api(status: int, body: bytes) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """An API on loopback that always says the same; its address, and what it was asked."""
    asked: list[tuple[str, str]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = ("x-api-key", "authorization", "x-goog-api-key")
            shown = [self.headers[name] for name in headers if name in self.headers]
            asked.append((f"GET {self.path}", " ".join(shown)))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            asked.append((f"POST {self.path}", ""))

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


async def checks(tmp_path: Path, **variables: str) -> dict[str, Check]:
    settings = read_settings(
        {
            "HOME": str(tmp_path),
            "DOCKER_HOST": "unix:///nonexistent",
            "ORCHESTRATOR_STATE_DIR": str(tmp_path / "state"),
            **variables,
        },
        tmp_path,
    )
    return {check.name: check async for check in examine_host(settings)}


async def test_one_free_request_shows_whether_the_api_takes_the_key(tmp_path: Path) -> None:
    with model_api(200, b'{"data": []}') as (address, asked):
        found = await checks(tmp_path, ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=address)
    assert asked == [("GET /v1/models?limit=1", KEY)]
    assert (found["key"].ok, found["key"].detail) == (True, "ANTHROPIC_API_KEY is set")
    assert found["model API"] == Check(
        name="model API",
        promise="the model API answers, and takes the credential",
        ok=True,
        detail=f"{address} answers to ANTHROPIC_API_KEY",
        advice="",
    )
    assert found["state"].ok
    assert (found["socket"].ok, list(found)[-1]) == (False, "socket")


async def test_each_provider_that_is_set_up_is_asked_in_its_own_way(tmp_path: Path) -> None:
    with model_api(200, b"{}") as (address, asked):
        found = await checks(
            tmp_path,
            OPENAI_API_KEY=KEY,
            OPENAI_BASE_URL=f"{address}/v1",
            GOOGLE_API_KEY=KEY,
            GOOGLE_GEMINI_BASE_URL=address,
        )
    assert asked == [("GET /v1/models", f"Bearer {KEY}"), ("GET /v1beta/models?pageSize=1", KEY)]
    assert found["key"].detail == "OPENAI_API_KEY is set; GOOGLE_API_KEY is set"
    assert found["OpenAI API"].detail == f"{address}/v1 answers to OPENAI_API_KEY"
    assert found["Google API"].detail == f"{address} answers to GOOGLE_API_KEY"
    assert "model API" not in found
    with model_api(401, b'{"error": {"message": "no"}}') as (address, _):
        found = await checks(tmp_path, GOOGLE_GEMINI_BASE_URL=address)
    assert found["Google API"].advice == "set GEMINI_API_KEY or GOOGLE_API_KEY to one that it takes"
    assert found["key"].detail == f"none is set for Google, and {address} may want none"


async def test_a_key_that_is_refused_is_named_and_never_shown(tmp_path: Path) -> None:
    refused = f'{{"error": {{"message": "invalid x-api-key {KEY}"}}}}'.encode()
    with model_api(401, refused) as (address, _):
        found = await checks(tmp_path, ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=address)
    api = found["model API"]
    assert not api.ok
    assert api.detail == f"{address} refuses it: 401 invalid x-api-key [redacted]"
    assert api.advice == "set ANTHROPIC_API_KEY to one that it takes"


async def test_without_a_key_nothing_is_asked_and_it_is_a_warning(tmp_path: Path) -> None:
    found = await checks(tmp_path)
    for name in ("key", "model API"):
        assert (found[name].ok, found[name].warning) == (True, True)
    scripted = await checks(tmp_path, ORCHESTRATOR_SCRIPTED="1")
    assert not scripted["key"].warning
    odd = await checks(tmp_path, ANTHROPIC_API_KEY="a b")
    assert not odd["key"].ok
    assert not odd["model API"].ok


async def test_a_state_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = await checks(tmp_path, ORCHESTRATOR_STATE_DIR=str(tmp_path / "file"))
    assert not found["state"].ok
    assert "it is not a directory" in found["state"].detail


@pytest.mark.parametrize(
    ("answer", "ok", "warning", "said"),
    [
        (FreeAnswer(0, "connect error at http://x"), False, False, "http://x: connect error"),
        (FreeAnswer(403, "not yours"), False, False, "http://x refuses it: 403 not yours"),
        (FreeAnswer(404), True, True, "whether it takes the key is not known"),
        (FreeAnswer(307), False, False, "http://x redirects"),
        (FreeAnswer(529, "busy"), True, True, "http://x answers 529 busy"),
        (FreeAnswer(200), True, False, "http://x answers"),
    ],
)
def test_what_the_api_answers_is_judged(
    answer: FreeAnswer, ok: bool, warning: bool, said: str
) -> None:
    found = api_check("http://x", "", answer)
    assert (found.ok, found.warning) == (ok, warning)
    assert said in found.detail


@pytest.mark.parametrize(
    ("free", "ok", "warning"),
    [(50 * GIB, True, False), (GIB, True, True), (GIB // 10, False, False)],
)
def test_room_is_judged_where_there_is_least_of_it(free: int, ok: bool, warning: bool) -> None:
    found = disk_check({Path("/a"): 100 * GIB, Path("/b"): free})
    assert (found.ok, found.warning) == (ok, warning)
