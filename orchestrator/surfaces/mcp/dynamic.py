"""The tool that makes an agent at call time, where the operator has said of which one."""

from __future__ import annotations

from typing import Annotated, Any

import mcp.types as t
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from pydantic import Field, ValidationError

from orchestrator.domain.task import Wish
from orchestrator.errors import CallInvalid
from orchestrator.surfaces.mcp.answers.answer import RunAnswer, errors_as_answers, plain
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
            bool,
            Field(description="false: tool calls that change something wait for your approval"),
        ],
        ctx: Context[Any],
        context: Annotated[OptionalText, Field(description="What it should know besides")] = "",
        max_steps: Annotated[int | None, Field(description="30 unless given", ge=1)] = None,
        working_directory: Annotated[
            OptionalText, Field(description="An absolute path of a directory to work on; optional")
        ] = "",
    ) -> Annotated[t.CallToolResult, RunAnswer]:
        """Make an agent for one task and start it; answers its task id at once."""
        if not instructions.strip():
            raise CallInvalid("instructions is empty: say all that the agent has to know")
        wish = _wish(
            description=description,
            tools=tuple(tools),
            max_steps=max_steps or MAX_STEPS,
            sandboxed=enable_sandbox,
        )
        task = asked_task(who_calls(), template, instructions, context, working_directory)
        task = task.model_copy(update={"wish": wish})
        reply = await waiting.run(ctx, task, background=True)
        begun = reply.structured_content if isinstance(reply, t.CallToolResult) else None
        begun = begun or {"run_id": task.run_id, "status": "pending"}
        run_id = begun.get("run_id", task.run_id)
        return plain(
            f"Dynamic Subagent Created\n\nTask ID: {run_id}\nDescription: {description}\n\n"
            f'Use wait_for_tasks with task_ids ["{run_id}"] for its result, get_task_details '
            "for how it stands, resume_subagent_task to decide its tool calls or to go on with it.",
            {**begun, "task_id": run_id},
        )

    return strict(Tool.from_function(dynamic_subagent_task))


def _wish(**fields: object) -> Wish:
    try:
        return Wish.model_validate(fields)
    except ValidationError as exc:
        raise CallInvalid(wrong_arguments(exc)) from exc
