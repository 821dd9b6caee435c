"""What a caller writes in a call -> values. Strict: a misspelt argument is an error to correct."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import new_class
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import BeforeValidator, ValidationError

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.errors import CallInvalid, MountRefused
from orchestrator.surfaces.mcp.answers import refusal
from orchestrator.surfaces.text import named

OptionalText = Annotated[str, BeforeValidator(lambda given: "" if given is None else given)]
"""Many a model writes null for what it leaves out."""

OptionalFlag = Annotated[bool, BeforeValidator(lambda given: False if given is None else given)]
"""The same for a flag."""

MAX_IDS = 100
"""Of the tasks that one call may name."""

WhoCalls = Callable[[], str]
"""Who is calling: known from the server's entry or the token, never from an argument."""


NAMED_MISTAKES = 5
"""Of what is wrong with the arguments of one call."""

ERROR_SCHEMA = {"type": "object", "required": ["code", "message"]}
"""What any tool may answer instead of what it is for, under `error`."""


class CheckedTool(Tool):
    """A tool that answers wrong arguments as it answers any other error: a sentence and a code."""

    async def run(
        self, arguments: dict[str, Any], context: Any, convert_result: bool = False
    ) -> Any:
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as exc:
            if not isinstance(exc.__cause__, ValidationError) or type(exc) is not ToolError:
                raise
            return refusal(CallInvalid(self._mistakes(exc.__cause__)))

    def _mistakes(self, exc: ValidationError) -> str:
        found = list(dict.fromkeys(map(_mistake, exc.errors(include_url=False))))
        more = f"; and {len(found) - NAMED_MISTAKES} more" if len(found) > NAMED_MISTAKES else ""
        return f"{self.name}: {'; '.join(found[:NAMED_MISTAKES])}{more}. It takes {self._takes()}"

    def _takes(self) -> str:
        properties, needed = self.parameters["properties"], self.parameters.get("required", ())
        optional = [name for name in properties if name not in needed]
        said = ", ".join(name for name in properties if name in needed)
        return f"{said} [{', '.join(optional)}]".strip() if optional else said or "no arguments"


def _mistake(error: Any) -> str:
    """One of pydantic's, in a few words; what was given is not repeated."""
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        return f"{named(where)} is missing"
    if error["type"] == "extra_forbidden":
        return f"there is no argument {named(where)}"
    return f"{named(where)}: {error['msg'].removeprefix('Value error, ')}"


def strict(tool: Tool, *, extra: bool = False) -> Tool:
    """Refuse arguments that the tool does not have, which the SDK would drop without a word, unless
    `extra` ones may come.

    What models read of every tool in every conversation is made short, too. What the tool declares
    to answer holds for its errors as well: strict clients refuse what it does not declare.
    """
    loose = tool.fn_metadata.arg_model
    tool.parameters = _terse(tool.parameters, {"title"})
    if not extra:
        tool.fn_metadata.arg_model = new_class(loose.__name__, (loose,), {"extra": "forbid"})
        tool.parameters["additionalProperties"] = False
    if tool.fn_metadata.output_schema is not None:
        said = _terse(tool.fn_metadata.output_schema, {"title", "description", "default"})
        said["properties"] = {**said.get("properties", {}), "error": ERROR_SCHEMA}
        said.pop("required", None)
        tool.fn_metadata.output_schema = said
    return CheckedTool.model_construct(**dict(tool))


def _terse(schema: Any, left_out: set[str]) -> Any:
    """The schema without words that only repeat its names."""
    if isinstance(schema, list):
        return [_terse(each, left_out) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _terse(each, left_out) for name, each in value.items()}
        if key in ("properties", "$defs")
        else _terse(value, left_out)
        for key, value in schema.items()
        if key not in left_out and (key, value) != ("additionalProperties", True)
    }


def asked_task(
    caller: str,
    agent: str,
    prompt: str,
    context: str = "",
    workspace: str = "",
    session: str = "",
    after: tuple[str, ...] = (),
) -> Task:
    """A task as the caller asked for it; CallInvalid for what is wrong with it."""
    try:
        return Task(
            agent=agent,
            prompt=prompt,
            context=context,
            workspace=absolute(workspace) if workspace else None,
            session=session,
            caller=caller,
            after=after,
        )
    except ValidationError as exc:
        said = [(error["loc"][0], error["msg"]) for error in exc.errors()]
        wrong = [f"{name}: {text.removeprefix('Value error, ')}" for name, text in said]
        raise CallInvalid("; ".join(wrong)) from exc


def absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise MountRefused(f"{text!r} is not an absolute path; give one from / on")
    return path


def agents_for(service: Service, caller: str) -> list[AgentSpec]:
    """Those that this caller may run; of the others it need not know."""
    agents = service.agents.current().agents.values()
    return [agent for agent in agents if caller in agent.allowed_callers]


def check_known(service: Service, task: Task) -> None:
    """AgentNotFound, with the names that this caller may know."""
    catalog = service.agents.current()
    if task.agent not in catalog.agents:
        mine = {agent.name: agent for agent in agents_for(service, task.caller)}
        catalog.model_copy(update={"agents": mine}).agent(task.agent)


def named_tasks(given: list[str] | str) -> list[str]:
    """A list, or a text with blanks or commas between the ids -> the ids, each once."""
    parts = given.replace(",", " ").split() if isinstance(given, str) else given
    ids = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not ids:
        raise CallInvalid("task_ids is empty; give the ids of tasks, such as get_all_tasks lists")
    if len(ids) > MAX_IDS:
        raise CallInvalid(f"{len(ids)} tasks are too many for one call; give {MAX_IDS} at most")
    return ids
