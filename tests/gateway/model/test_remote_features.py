"""What a request would have the API do elsewhere, and what only looks like it."""

from __future__ import annotations

import json

import pytest

from orchestrator.gateway.model.access import look_through
from orchestrator.gateway.model.formats.contract import Rules

SEARCHES = Rules(frozenset({"web_search"}))

LINK = {"type": "url", "url": "https://example.org/"}


def asked(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [], **fields}).encode()


def told(*content: object) -> bytes:
    return asked(messages=[{"role": "user", "content": [*content]}])


@pytest.mark.parametrize(
    "body",
    [
        told({"type": "text", "text": "hello"}),
        asked(messages=[{"role": "user", "content": "hello"}], system="be brief"),
        told({"type": "image", "source": {"type": "base64", "data": "eA=="}}),
        told({"type": "document", "source": {"type": "text", "data": "x"}}),
        told({"type": "search_result", "source": "https://example.org/", "content": []}),
        told({"type": "tool_use", "id": "x", "name": "fetch", "input": {"source": LINK}}),
        told({"type": "tool_result", "tool_use_id": "x", "content": "https://example.org/"}),
        asked(tools=[{"name": "Bash", "input_schema": {"properties": {"file_id": {}}}}]),
        asked(tools=[{"type": "web_search_20250305", "name": "web_search"}], mcp_servers=[]),
        asked(tools=[{"type": "bash_20250124"}, {"type": "text_editor_20250728"}]),
        asked(tools=[{"type": "tool_search_tool_regex_20251119"}, {"type": "custom"}]),
    ],
)
def test_what_stays_here_is_passed_on(body: bytes) -> None:
    assert look_through(body, SEARCHES)[0] == ""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (told({"type": "image", "source": LINK}), "a picture or document by 'url'"),
        (told({"type": "image", "source": {"url": "x"}}), "a picture or document by 'None'"),
        (asked(system=[{"type": "document", "source": LINK}]), "a picture or document by 'url'"),
        (told({"type": "container_upload", "file_id": "x"}), "a file of the account"),
        (asked(tools=[{"type": "web_fetch_20250910"}]), "the tool 'web_fetch_20250910'"),
        (asked(mcp_servers=[LINK]), "mcp_servers"),
        (told({"type": "image_url", "image_url": {"url": "x"}}), "a picture by its address"),
        (b'{"tools": [1], "tools": []}', "a body that can be read in two ways"),
        (b"[]", "a body that is not an object"),
    ],
)
def test_what_would_happen_elsewhere_has_a_name(body: bytes, what: str) -> None:
    assert look_through(body)[0].startswith(what)


@pytest.mark.parametrize(
    "kind",
    [
        *("bash_", "bash_code_execution_20250825", "bash_20250124x", "bash_20250124\n", "bash"),
        *("text_editor_code_execution_20250825", "memory_sync_20250818", "customs", "custom\n"),
        *("computer_remote_20250124", "tool_search_tool_web_20251119", "web_search_20250305\n"),
        *(
            "web_search_2025030",
            "web_search_20250305_20250305",
            "Web_search",
            "",
            7,
            True,
            ["custom"],
        ),
    ],
)
def test_a_tool_is_known_by_its_whole_name(kind: object) -> None:
    body = asked(tools=[{"type": kind, "name": "x"}])
    assert look_through(body, SEARCHES)[0].startswith("the tool ")
