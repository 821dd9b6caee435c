"""Tools under the names of older subagent servers, for prompts and programs that use those.

Thin aliases, off unless ORCHESTRATOR_COMPATIBILITY is set: each takes the arguments and gives the
answer that its name promises elsewhere, and does what ours do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import mcp.types as t
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from orchestrator.domain.exchange import Question
from orchestrator.domain.result import RunStatus
from orchestrator.engine.service import Service
from orchestrator.engine.tasks import Tasks, TaskView
from orchestrator.errors import RunRefused
from orchestrator.surfaces.event_lines import event_line, visible
from orchestrator.surfaces.mcp_answers import next_step, plain, told
from orchestrator.surfaces.mcp_arguments import (
    OptionalText,
    WhoCalls,
    agents_for,
    asked_task,
    check_known,
    strict,
)
from orchestrator.surfaces.mcp_notices import Request

RUN_PREFIX = "run_subagent_"

RUN_AS = "run_subagent_"
"""What calls of run_subagent_NAME become; not listed under this name."""

LOG_EVENTS = 1000

STATUS: dict[RunStatus, str] = {
    "paused": "running",
    "completed": "success",
    "failed": "error",
    "cancelled": "error",
    "timed_out": "error",
}
"""What our states are called there; the others have the same names."""

RunId = Annotated[str, Field(description="The run ID")]
