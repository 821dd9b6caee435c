"""Whatever a tool answers to a client of any test fits what the tool declares, errors included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mcp.types as t
import pytest
from mcp import ClientSession

EMPTY: tuple[object, ...] = ("", None, [], {})

OWN_WORDS = ("result", "tasks", "tools", "available_servers")
"""Fields that may be empty: an answer, and a list of which there may be none."""

WHOLE = {
    "list_servers": {"result"},
    "get_server_tools": {"tools", "server", "total_available", "returned", "tokens_used"},
    "get_gateway_status": {
        *("reload_status", "policy_state", "available_servers", "config_paths", "message"),
    },
}
"""What the answers of tools that are not about runs have."""


@contextmanager
def checked_answers() -> Iterator[None]:
    """In this block every answer is checked where a client hears it.

    The SDK's client checks no error. Others do, and show their own error instead of ours.
    """
    call_tool = ClientSession.call_tool

    async def checked(self: ClientSession, name: str, *args: Any, **options: Any) -> Any:
        answer = await call_tool(self, name, *args, **options)
        if type(self) is not ClientSession:  # the broker's, to a server that is not ours
            return answer
        if isinstance(answer, t.CallToolResult) and answer.structured_content is not None:
            await self.validate_tool_result(name, answer)
            if self._tool_output_schemas.get(name) is not None:
                check_answer(name, answer)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientSession, "call_tool", checked)
        yield


def check_answer(name: str, answer: t.CallToolResult) -> None:
    """What a schema without alternatives cannot say: it is an error, or it is what it should be,
    and nothing in it is empty.
    """
    said = answer.structured_content
    assert isinstance(said, dict), f"{name}: {said}"
    if "error" in said:
        assert answer.is_error, f"{name}: {said}"
        assert set(said) == {"error"}, f"{name}: {said}"
        assert all(said["error"].get(key) for key in ("code", "message")), f"{name}: {said}"
        return
    needed = {"tasks", "agents", "files"} & set(said)
    assert needed or WHOLE.get(name, {"run_id", "status"}) <= set(said), f"{name}: {said}"
    for document in (said, *said.get("tasks", ())):
        empty = [key for key, value in document.items() if value in EMPTY]
        assert set(empty) <= {*OWN_WORDS, "agents", "events"}, f"{name}: {empty} in {document}"
