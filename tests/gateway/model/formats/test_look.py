"""A request in each format -> what it asks for, what of it is sent on, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.gateway.model.formats.contract import Rules
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.price_table import TABLE
from tests.gateway.model.formats.dialects import (
    CHAT,
    DATA,
    DIALECTS,
    GEMINI,
    OTHERS,
    RESPONSES,
    Dialect,
)

PDF = "data:application/pdf;base64,JVBERi0="


def said(*parts: dict[str, Any]) -> dict[str, Any]:
    """A message of the user's, made of parts, for each of OpenAI's formats."""
    return {"role": "user", "content": list(parts)}


def contents(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": list(parts)}]}


FUNCTION = {"type": "function", "name": "Bash", "parameters": {"type": "object"}}
CHAT_FUNCTION = {"type": "function", "function": {"name": "Bash", "parameters": {}}}

GOOD: tuple[tuple[Dialect, dict[str, Any]], ...] = (
    (RESPONSES, {"input": "hi"}),
    (RESPONSES, {"tools": [FUNCTION, {"type": "custom", "name": "apply_patch"}]}),
    (RESPONSES, {"tools": [{"type": "namespace", "name": "mcp__x", "tools": [FUNCTION]}]}),
    (RESPONSES, {"tools": [{"type": "tool_search"}], "include": ["reasoning.encrypted_content"]}),
    (RESPONSES, {"input": [{"type": "tool_search_output", "tools": [FUNCTION]}]}),
    (RESPONSES, {"input": [said({"type": "input_image", "image_url": DATA})]}),
    (RESPONSES, {"input": [said({"type": "input_file", "file_data": "JVBERi0="})]}),
    (RESPONSES, {"input": [said({"type": "input_file", "file_data": PDF, "filename": "a"})]}),
    (
        RESPONSES,
        {
            "input": [
                {"type": "reasoning", "summary": [], "encrypted_content": "x"},
                {"type": "function_call", "call_id": "c", "name": "Bash", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "hi"},
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_image", "image_url": DATA}],
                },
            ]
        },
    ),
    (CHAT, {"tools": [CHAT_FUNCTION]}),
    (CHAT, {"messages": [said({"type": "image_url", "image_url": {"url": DATA}})]}),
    (CHAT, {"messages": [said({"type": "file", "file": {"file_data": PDF, "filename": "a"}})]}),
    (CHAT, {"messages": [{"role": "tool", "tool_call_id": "c", "content": "hi"}]}),
    (GEMINI, {"tools": [{"functionDeclarations": [{"name": "Bash", "parameters": {}}]}]}),
    (GEMINI, contents({"inlineData": {"mimeType": "image/png", "data": "iVBOR"}})),
    (
        GEMINI,
        contents(
            {"functionCall": {"name": "read", "args": {"file_uri": "a", "fileUri": "b"}}},
            {"functionResponse": {"name": "read", "response": {"a_b": 1, "aB": 2}}},
            {"text": "", "thought": True, "thoughtSignature": "x"},
        ),
    ),
)


@pytest.mark.parametrize(("dialect", "more"), GOOD, ids=lambda x: getattr(x, "name", str(x)[:60]))
def test_what_a_cli_sends_is_sent_on_as_it_is(dialect: Dialect, more: dict[str, Any]) -> None:
    refused, asked = dialect.look({**dialect.plain, **more})
    assert (refused, asked.sent, asked.left_out) == ("", None, ())
    assert (asked.model, asked.plain_model, asked.stream) == (dialect.model, True, True)


REFUSED: tuple[tuple[Dialect, dict[str, Any], str], ...] = (
    *(
        (RESPONSES, {"tools": [{"type": kind}]}, f"the tool {kind!r}")
        for kind in (
            *("web_search", "web_search_preview", "image_generation", "code_interpreter", "mcp"),
            *("file_search", "computer_use_preview", "computer", "shell", "functions", ""),
        )
    ),
    (
        RESPONSES,
        {"tools": [{"type": "namespace", "name": "x", "tools": [FUNCTION, {"type": "mcp"}]}]},
        "the tool 'namespace'",
    ),
    (RESPONSES, {"tools": {"type": "mcp"}}, "a list of tools"),
    (RESPONSES, {"tools": ["mcp"]}, "the tool '?'"),
    (RESPONSES, {"store": True}, "store"),
    (RESPONSES, {"store": "true"}, "store"),
    (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, {"conversation": {"id": "conv_1"}}, "conversation"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "prompt"),
    *(
        (RESPONSES, {"input": [{"type": kind, "id": "x"}]}, f"an item of the type {kind!r}")
        for kind in (
            *("item_reference", "mcp_call", "mcp_list_tools", "mcp_approval_response"),
            *("code_interpreter_call", "file_search_call", "image_generation_call", "shell_call"),
        )
    ),
    (RESPONSES, {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "reasoning that"),
    (RESPONSES, {"input": {"type": "item_reference"}}, "an input that is no list"),
    (RESPONSES, {"input": ["x"]}, "an item that is no object"),
    (RESPONSES, {"input": [{"type": 7}]}, "an item of the type '7'"),
    (
        RESPONSES,
        {"input": [said({"type": "input_image", "image_url": "https://evil.example/?secret"})]},
        "a picture by its address",
    ),
    (RESPONSES, {"input": [said({"type": "input_image", "file_id": "file-1"})]}, "a file of the"),
    (RESPONSES, {"input": [said({"type": "input_file", "file_url": "http://x"})]}, "a file of the"),
    (RESPONSES, {"input": [said({"type": "input_audio"})]}, "a part of the type 'input_audio'"),
    (
        RESPONSES,
        {
            "input": [
                {
                    "type": "function_call_output",
                    "output": [{"type": "input_image", "image_url": "http://x"}],
                }
            ]
        },
        "a picture by its address",
    ),
    (
        RESPONSES,
        {"input": [{"type": "tool_search_output", "tools": [FUNCTION, {"type": "mcp"}]}]},
        "the tool 'mcp'",
    ),
    (
        RESPONSES,
        {"input": [said({"type": "input_file", "file_data": "https://evil.example/a.pdf"})]},
        "a file of the",
    ),
    (RESPONSES, {"input": [said({"type": "input_file", "file_data": {"a": 1}})]}, "a file of the"),
    (
        CHAT,
        {"messages": [said({"type": "file", "file": {"file_data": "https://evil.example"}})]},
        "a file of the",
    ),
    (CHAT, {"tools": [{"type": "web_search"}]}, "the tool 'web_search'"),
    (CHAT, {"tools": [{"function": {"name": "x"}}]}, "the tool 'None'"),
    (CHAT, {"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
    (CHAT, {"web_search_options": {}}, "web_search_options"),
    (CHAT, {"store": True}, "store"),
    (
        CHAT,
        {"messages": [said({"type": "image_url", "image_url": {"url": "https://evil.example"}})]},
        "a picture by its address",
    ),
    (
        CHAT,
        {"messages": [said({"type": "image_url", "image_url": "https://evil.example"})]},
        "a picture by its address",
    ),
    (CHAT, {"messages": [said({"type": "file", "file": {"file_id": "f"}})]}, "a file of the"),
    (CHAT, {"messages": [said({"type": "input_audio"})]}, "a part of the type 'input_audio'"),
    (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "a1"}}]}, "an answer that the"),
    (CHAT, {"messages": {"role": "user"}}, "messages that are no list"),
    (CHAT, {"messages": ["x"]}, "a message that is no object"),
    *(
        (GEMINI, {"tools": [{name: {}}]}, f"the tool {shown!r}")
        for name, shown in (
            ("googleSearch", "googleSearch"),
            ("google_search", "googleSearch"),
            ("googleSearchRetrieval", "googleSearchRetrieval"),
            ("urlContext", "urlContext"),
            ("url_context", "urlContext"),
            ("codeExecution", "codeExecution"),
            ("googleMaps", "googleMaps"),
            ("fileSearch", "fileSearch"),
            ("mcpServers", "mcpServers"),
            ("computerUse", "computerUse"),
            ("retrieval", "retrieval"),
        )
    ),
    (GEMINI, {"tools": {"googleSearch": {}}}, "a list of tools"),
    (GEMINI, {"tools": ["googleSearch"]}, "a tool that is no object"),
    (GEMINI, {"cachedContent": "cachedContents/x"}, "cachedContent"),
    (GEMINI, {"cached_content": "cachedContents/x"}, "cachedContent"),
    (GEMINI, contents({"fileData": {"fileUri": "https://evil.example"}}), "a part with 'fileData'"),
    (GEMINI, contents({"file_data": {"file_uri": "files/x"}}), "a part with 'fileData'"),
    (
        GEMINI,
        contents({"functionResponse": {"name": "x", "parts": [{"file_data": {}}]}}),
        "a part with 'fileData'",
    ),
    (
        GEMINI,
        {"system_instruction": {"parts": {"file_data": {}}}},
        "a part with 'fileData'",
    ),
    (GEMINI, {"contents": {"parts": {"fileData": {}}}}, "a part with 'fileData'"),
    (
        GEMINI,
        contents({"inlineData": {"mimeType": "audio/mpeg", "data": "x"}}),
        "a part of the type 'audio/mpeg'",
    ),
    (GEMINI, contents({"inlineData": {"data": "x"}}), "a part of the type ''"),
    (GEMINI, {"contents": [{"parts": ["x"]}]}, "a part that is no object"),
    (GEMINI, {"cachedContent": "", "cached_content": "x"}, "a body that can be read in two ways"),
    (
        GEMINI,
        contents({"inlineData": {"mimeType": "image/png"}, "inline_data": {}}),
        "a body that can be read in two ways",
    ),
)


@pytest.mark.parametrize(
    ("dialect", "more", "what"), REFUSED, ids=lambda x: getattr(x, "name", str(x)[:60])
)
def test_what_is_done_or_kept_elsewhere_is_refused(
    dialect: Dialect, more: dict[str, Any], what: str
) -> None:
    assert dialect.look({**dialect.plain, **more}).refused.startswith(what)


def test_a_search_by_the_api_passes_where_agent_md_lets_it() -> None:
    searches = Rules(frozenset({"web_search"}))
    told = {**RESPONSES.plain, "tools": [{"type": "web_search"}]}
    assert (RESPONSES.look(told, searches).refused, RESPONSES.look(told).refused) == (
        "",
        "the tool 'web_search'",
    )
    told = {**GEMINI.plain, "tools": [{"googleSearch": {}}]}
    refused, asked = GEMINI.look(told, searches)
    assert (refused, asked.server_tools) == ("", True)
    assert GEMINI.look({**told, "tools": [{"urlContext": {}}]}, searches).refused


def sent(dialect: Dialect, more: dict[str, Any], rules: Rules = Rules()) -> Any:  # noqa: B008 a tuple
    looked = dialect.look({**dialect.plain, **more}, rules)
    assert looked.refused == ""
    return json.loads(looked.asked.sent or b"null"), looked.asked.left_out


def test_an_answer_is_not_kept_though_the_request_does_not_say_so() -> None:
    body = {key: value for key, value in RESPONSES.plain.items() if key != "store"}
    assert json.loads(RESPONSES.look(body).asked.sent or b"") == RESPONSES.plain
    assert json.loads(RESPONSES.look({**body, "store": None}).asked.sent or b"")["store"] is False


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, 7])
def test_a_stream_tells_its_usage_though_the_request_does_not_want_it(options: object) -> None:
    assert sent(CHAT, {"stream_options": options})[0]["stream_options"] == {"include_usage": True}
    whole, _ = sent(CHAT, {"stream": False, "n": 2})
    assert whole["stream_options"] == {"include_usage": True}  # as it came


LEFT_OUT: tuple[tuple[Dialect, dict[str, Any], tuple[str, ...]], ...] = (
    (RESPONSES, {"metadata": {"a": "b"}, "api_base": "http://x"}, ("metadata", "api_base")),
    (RESPONSES, {"service_tier": "priority"}, ("service_tier",)),
    (CHAT, {"n": 5, "modalities": ["audio"], "prediction": {}}, ("n", "modalities", "prediction")),
    (CHAT, {"service_tier": "priority", "extra_body": {}}, ("extra_body", "service_tier")),
    (GEMINI, {"model": "models/gemini-4-argon", "labels": {}}, ("model", "labels")),
    (
        GEMINI,
        {"generation_config": {"candidate_count": 8, "responseModalities": ["IMAGE"], "topP": 1}},
        ("generationConfig.candidateCount", "generationConfig.responseModalities"),
    ),
)


@pytest.mark.parametrize(
    ("dialect", "more", "names"), LEFT_OUT, ids=lambda x: getattr(x, "name", str(x)[:60])
)
def test_parts_that_no_agent_is_given_are_left_out_and_named(
    dialect: Dialect, more: dict[str, Any], names: tuple[str, ...]
) -> None:
    body, left_out = sent(dialect, more)
    assert left_out == names
    assert not set(names) & set(body)
    assert all("candidateCount" not in str(value) for value in body.values())


def test_what_codex_tells_of_itself_is_left_out_without_a_word() -> None:
    body, left_out = sent(RESPONSES, {"client_metadata": {"x-codex-installation-id": "i"}})
    assert (body, left_out) == (RESPONSES.plain, ())


def test_the_model_is_not_told_of_tools_that_the_agent_may_not_call() -> None:
    rules = Rules(is_offered=lambda name: "drop" not in name)
    inner = [{**FUNCTION, "name": "drop"}, {**FUNCTION, "name": "list"}]
    spaces = [{"type": "namespace", "name": "mcp__db", "tools": inner}]
    body, _ = sent(RESPONSES, {"tools": [*spaces, {**FUNCTION, "name": "drop"}]}, rules)
    assert body["tools"] == [{**spaces[0], "tools": [inner[1]]}]
    found = {"type": "tool_search_output", "call_id": "c", "tools": spaces}
    body, _ = sent(RESPONSES, {"input": [found]}, rules)
    assert body["input"][0]["tools"] == [{**spaces[0], "tools": [inner[1]]}]
    drop = {"type": "function", "function": {"name": "drop"}}
    assert sent(CHAT, {"tools": [drop, CHAT_FUNCTION]}, rules)[0]["tools"] == [CHAT_FUNCTION]
    functions = {"function_declarations": [{"name": "drop"}, {"name": "list"}]}
    body, _ = sent(GEMINI, {"tools": [functions]}, rules)
    assert body["tools"] == [{"functionDeclarations": [{"name": "list"}]}]


@pytest.mark.parametrize("dialect", OTHERS, ids=lambda each: each.name)
def test_an_answer_has_as_many_tokens_as_the_request_wants_or_the_model_can(
    dialect: Dialect,
) -> None:
    able = TABLE[FORMATS[dialect.name].provider][dialect.model].output_tokens

    def most(wanted: object) -> int:
        more: dict[str, dict[str, Any]] = {
            "responses": {"max_output_tokens": wanted},
            "chat": {"max_completion_tokens": wanted, "max_tokens": 5},
            "gemini": {"generationConfig": {"maxOutputTokens": wanted}},
        }
        return dialect.look({**dialect.plain, **more[dialect.name]}).asked.max_tokens

    assert most(1000) == 1000
    unsaid = 5 if dialect is CHAT else able
    assert [most(wanted) for wanted in (None, -1, True, "9")] == [unsaid] * 4
    assert most(10**30) == able


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_pictures_and_documents_are_counted_wherever_they_are(dialect: Dialect) -> None:
    pictures: dict[str, dict[str, Any]] = {
        "anthropic": {"type": "image", "source": {"type": "base64", "data": "x"}},
        "responses": {"type": "input_image", "image_url": DATA},
        "chat": {"type": "image_url", "image_url": {"url": DATA}},
        "gemini": {"inlineData": {"mimeType": "image/png", "data": "x"}},
    }
    papers: dict[str, dict[str, Any]] = {
        "anthropic": {"type": "document", "source": {"type": "base64", "data": "x"}},
        "responses": {"type": "input_file", "file_data": PDF},
        "chat": {"type": "file", "file": {"file_data": PDF}},
        "gemini": {"inline_data": {"mime_type": "application/PDF", "data": "x"}},
    }
    picture, paper = pictures[dialect.name], papers[dialect.name]

    def asked(*parts: dict[str, Any]) -> tuple[str, int, bool]:
        key = {"responses": "input", "gemini": "contents"}.get(dialect.name, "messages")
        told = contents(*parts)[key] if dialect is GEMINI else [said(*parts)]
        refused, found = dialect.look({**dialect.plain, key: told})
        return refused, found.pictures, found.documents

    assert asked(picture, picture) == ("", 2, False)
    assert asked(paper) == ("", 0, True)
