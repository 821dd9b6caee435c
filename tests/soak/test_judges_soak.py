"""The MCP inspector calls every tool: the answers and the errors fit what each declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.surfaces.mcp.mcp_stage import Stage
from tests.surfaces.mcp.test_answers import WRONG
from tests.surfaces.mcp.test_judges import judges, stage, takes_answers_and_errors

__all__ = ["judges", "stage"]  # fixtures

ANSWERS = ("list_agents", "get_all_tasks", "wait_for_tasks", "get_task_details", "get_logs")


@pytest.mark.anyio
async def test_the_inspector_takes_the_answers_and_the_errors_of_every_tool(
    stage: Stage,
    judges: Path,
) -> None:
    await takes_answers_and_errors(stage, judges, WRONG, (*ANSWERS, "cancel_task"))
