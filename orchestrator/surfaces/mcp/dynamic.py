"""The tool that makes an agent at call time, where the operator has said of which one."""

from __future__ import annotations

from typing import Annotated, Any

import mcp.types as t
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from pydantic import Field, ValidationError

from orchestrator.access import Wish
from orchestrator.errors import CallInvalid
from orchestrator.surfaces.mcp.answers import RunAnswer, errors_as_answers
from orchestrator.surfaces.mcp.arguments import (
    OptionalText,
    WhoCalls,
    asked_task,
    strict,
    wrong_arguments,
)
from orchestrator.surfaces.mcp.waiting import Waiting

MAX_STEPS = 30
"""Unless the caller says otherwise."""


def dynamic_tool(template: str, waiting: Waiting, who_calls: WhoCalls) -> Tool:
    """For agents that are the template, made smaller."""

    @errors_as_answers
    async def dynamic_subagent_task(
        description: Annotated[str, Field(description="The task in a few words")],
        instructions: Annotated[str, Field(description="All that it has to know to do it")],
        tools: Annotated[list[str], Field(description="What it may use, such as Read or Bash")],
        enable_sandbox: Annotated[
            bool, Field(description="false: each of its tool calls waits for your approval")
        ],
        ctx: Context[Any],
        context: Annotated[OptionalText, Field(description="What it should know besides")] = "",
        max_steps: Annotated[int | None, Field(description="30 unless given", ge=1)] = None,
    ) -> Annotated[t.CallToolResult, RunAnswer] | t.InputRequiredResult:
        """Make an agent for one task, and run it in a container of its own."""
        task = asked_task(who_calls(), template, description, context)
        try:
            wish = Wish(
                description=description,
                instructions=instructions,
                tools=tuple(tools),
                max_steps=max_steps or MAX_STEPS,
                sandboxed=enable_sandbox,
            )
        except ValidationError as exc:
            raise CallInvalid(wrong_arguments(exc)) from exc
        return await waiting.run(ctx, task, wish=wish)

    runs = t.ToolAnnotations(title="Make a subagent", destructive_hint=False, open_world_hint=True)
    return strict(Tool.from_function(dynamic_subagent_task, annotations=runs))
