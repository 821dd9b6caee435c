"""What a caller writes in a call -> values. Strict: a misspelt argument is an error to correct."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import new_class
from typing import TYPE_CHECKING, Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from pydantic import BeforeValidator, ValidationError

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Task
from orchestrator.domain.words import requirement
from orchestrator.errors import CallerMissing, CallInvalid, MountRefused
from orchestrator.surfaces.mcp.annotations import HINTS
from orchestrator.surfaces.mcp.answers.answer import refusal
from orchestrator.surfaces.text import named
from orchestrator.workspace.archives.uploads import UPLOAD_ID

if TYPE_CHECKING:
    from orchestrator.engine.service import Service

OptionalText = Annotated[str, BeforeValidator(lambda given: "" if given is None else given)]
"""Many a model writes null for what it leaves out."""

OptionalFlag = Annotated[bool, BeforeValidator(lambda given: False if given is None else given)]
"""The same for a flag."""

MAX_IDS = 100
"""Of the tasks that one call may name."""

MAX_WRONG = 5
"""Of what is wrong with a call, told at once."""

WhoCalls = Callable[[], str]
"""Who is calling: known from the server's entry or the token, never from an argument."""


ERROR_SCHEMA = {"type": "object", "required": ["code", "message"]}
"""What any tool may answer instead of what it is for, under `error`."""


class CheckedTool(Tool):
    """A tool that answers wrong arguments as it answers any other error: a sentence and a code."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any], convert_result: bool = False
    ) -> Any:
        wrong = _half_characters(arguments)
        try:
            if not wrong:
                self.fn_metadata.validate_arguments(arguments)
        except ValidationError as exc:
            wrong = wrong_arguments(exc)
        if not wrong:
            return await super().run(arguments, context, convert_result)
        answer = refusal(CallInvalid(f"{self.name}: {wrong}. It takes {self._takes()}"))
        return self.fn_metadata.convert_result(answer) if convert_result else answer

    def _takes(self) -> str:
        properties, needed = self.parameters["properties"], self.parameters.get("required", ())
        optional = [name for name in properties if name not in needed]
        said = ", ".join(name for name in properties if name in needed)
        return f"{said} [{', '.join(optional)}]".strip() if optional else said or "no arguments"


def strict(tool: Tool, *, extra: bool = False) -> Tool:
    """Refuse arguments that the tool does not have, which the SDK would drop without a word, unless
    `extra` ones may come.

    The tool gets its hints here, and what models read of it in every conversation is made short.
    What it declares to answer holds for its errors as well: strict clients refuse what it does not
    declare.
    """
    loose = tool.fn_metadata.arg_model
    tool.annotations = HINTS[tool.name]
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
            workspace=directory(workspace) if workspace else None,
            session=session,
            caller=caller,
            after=after,
        )
    except ValidationError as exc:
        raise CallInvalid(wrong_arguments(exc)) from exc


def wrong_arguments(exc: ValidationError) -> str:
    """What is wrong with which argument, for the caller to correct."""
    errors = exc.errors(include_url=False, include_context=False, include_input=False)
    said = dict.fromkeys(
        _wrong(named(".".join(map(str, each["loc"]))), each["type"], each["msg"]) for each in errors
    )
    more = len(said) - MAX_WRONG
    return "; ".join([*list(said)[:MAX_WRONG], *([f"and {more} more"] * (more > 0))])


def _wrong(where: str, kind: str, text: str) -> str:
    if kind == "missing":
        return f"{where} is missing"
    if kind == "extra_forbidden":
        return f"there is no argument {where}"
    said = requirement(kind, text)
    return f"{where}: {said}" if kind == "value_error" else f"{where} {said}"


def _half_characters(value: object, where: str = "") -> str:
    """Of a text that no store and no program takes: JSON can write half of a pair by its number."""
    if isinstance(value, str):
        whole = value.isascii() or value == value.encode(errors="replace").decode()
        return "" if whole else f"{named(where)}: holds half a character, and texts have whole ones"
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        parts = ((f"{where}.{key}".strip("."), part) for key, part in value.items())
        if any(map(_half_characters, value)):
            return f"{named(where)}: has a name that holds half a character"
    elif isinstance(value, list):
        parts = ((where, part) for part in value)
    return next(filter(None, (_half_characters(part, name) for name, part in parts)), "")


def directory(text: str) -> Path:
    """A directory as a caller names it: its absolute path, or the id of an upload, which the
    service knows by its caller.
    """
    return Path(text) if UPLOAD_ID.fullmatch(text) else absolute(text)


def absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise MountRefused(f"{text!r} is not an absolute path; give one from / on")
    return path


def agents_for(service: Service, caller: str) -> list[AgentSpec]:
    """Those that this caller may run; of the others it need not know."""
    agents = service.agents.current().agents.values()
    return [agent for agent in agents if caller in agent.allowed_callers]


def listed_agents(service: Service, who_calls: WhoCalls) -> list[AgentSpec]:
    """The same for a list; none for who has no name and must have one: calls tell that."""
    try:
        return agents_for(service, who_calls())
    except CallerMissing:
        return []


def named_tasks(given: list[str] | str) -> list[str]:
    """A list, or a text with blanks or commas between the ids -> the ids, each once."""
    parts = given.replace(",", " ").split() if isinstance(given, str) else given
    ids = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not ids:
        raise CallInvalid("task_ids is empty; give the ids of tasks, such as get_all_tasks lists")
    if len(ids) > MAX_IDS:
        raise CallInvalid(f"{len(ids)} tasks are too many for one call; give {MAX_IDS} at most")
    return ids
