"""The MCP surface: tools for a main agent. It translates, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import new_class
from typing import Annotated, Any
from weakref import WeakSet

import anyio
import mcp.types as t
from mcp.server import MCPServer, ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged
from pydantic import BeforeValidator, Field, ValidationError

from orchestrator import __version__
from orchestrator.catalog import prompt_section
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.errors import MountRefused, OrchestratorError
from orchestrator.surfaces.event_lines import quoted
from orchestrator.workspace.apply import Applied

HEARTBEAT_SECONDS = 10.0
"""Between two words to a client that waits; clients give up on silent servers."""

LINE_CHARS = 200
"""Of one event, in a progress notification or in what is told of a failure."""

LOOK_SECONDS = 1.0
"""How often agents/ is looked at for changes."""

TELL_SECONDS = 5.0
"""For one client to take the notice of a change; who does not read misses it."""

NAMED_FILES = 20
"""Of what an agent changed, in the text of its result."""

MAX_RESULT_CHARS = 500_000
"""What Claude Code takes from one result without putting it aside in a file."""

INSTRUCTIONS = (
    "Hand tasks to specialised agents with run_subagent. Each runs in a locked container of its "
    "own and returns its answer with an envelope: status, reason, cost, what it was denied."
)

HANDSHAKE_ERA = "2026"
"""Versions below have sessions, and take notices on them; later ones subscribe."""

OptionalText = Annotated[str, BeforeValidator(lambda given: "" if given is None else given)]
"""Many a model writes null for what it leaves out."""

WhoCalls = Callable[[], str]
"""Who is calling: known from the server's entry or the token, never from an argument."""


def build_server(
    service: Service, who_calls: WhoCalls, **auth: Any
) -> tuple[MCPServer[Any], ChangeNotices]:
    """The server, and what tells its clients that the agents have changed."""
    notices = ChangeNotices(service)
    server: MCPServer[Any] = MCPServer(
        "subagent-orchestrator",
        version=__version__,
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        tools=_tools(service, who_calls),
        subscriptions=notices.bus,
        middleware=[notices.remember, _describe_agents(service, who_calls)],
        **auth,
    )

    @server.prompt(name="subagents", title="Available subagents")
    async def subagents() -> str:
        """What to tell a main agent about the subagents it can use."""
        return prompt_section(_agents_for(service, who_calls()))

    return server, notices


def _tools(service: Service, who_calls: WhoCalls) -> list[Tool]:
    async def list_agents() -> dict[str, list[dict[str, str]]]:
        """List the agents that can be run, with what they are for."""
        agents = _agents_for(service, who_calls())
        return {"agents": [{"name": a.name, "description": a.description} for a in agents]}

    async def run_subagent(
        agent_name: Annotated[str, Field(description="The agent to run")],
        prompt: Annotated[str, Field(description="The task, complete: it knows nothing else")],
        ctx: Context[Any],
        context: Annotated[OptionalText, Field(description="What it should know besides")] = "",
        workspace: Annotated[
            OptionalText, Field(description="An absolute path of a directory to show it; optional")
        ] = "",
        session: Annotated[
            OptionalText,
            Field(description='For an agent that remembers: a session\'s name, or "new"; optional'),
        ] = "",
    ) -> Annotated[t.CallToolResult, RunResult]:
        """Run an agent in a container of its own and wait for its answer."""
        task = _asked(who_calls(), agent_name, prompt, context, workspace, session)
        return await _run(service, ctx, task)

    async def apply_changes(
        run_id: Annotated[str, Field(description="The run whose changes are to be applied")],
        dry_run: Annotated[bool, Field(description="Only say what would be done")] = False,
    ) -> Annotated[t.CallToolResult, Applied]:
        """Apply to the workspace what an agent changed in its copy; all of it, or nothing."""
        return await _apply(service, who_calls(), run_id, dry_run)

    async def delegate_task(
        agent: Annotated[str, Field(description="The agent to run")],
        task: Annotated[str, Field(description="The task, complete: it knows nothing else")],
        working_directory: Annotated[str, Field(description="An absolute path of a directory")],
        ctx: Context[Any],
    ) -> Annotated[t.CallToolResult, RunResult]:
        """Run an agent on a directory and wait for its answer."""
        if not working_directory:
            error = "working_directory is empty; give the absolute path of a directory"
            return _refusal(MountRefused(error))
        asked = _asked(who_calls(), agent, task, "", working_directory, "")
        return await _run(service, ctx, asked)

    looks = t.ToolAnnotations(title="List agents", read_only_hint=True)
    runs = t.ToolAnnotations(title="Run a subagent", destructive_hint=False, open_world_hint=True)
    applies = t.ToolAnnotations(title="Apply an agent's changes", destructive_hint=True)
    meta = {"anthropic/maxResultSizeChars": MAX_RESULT_CHARS}
    return [
        Tool.from_function(list_agents, annotations=looks),  # some clients must send something
        _strict(Tool.from_function(run_subagent, annotations=runs, meta=meta)),
        _strict(Tool.from_function(delegate_task, annotations=runs, meta=meta)),
        _strict(Tool.from_function(apply_changes, annotations=applies)),
    ]


def _strict(tool: Tool) -> Tool:
    """A misspelt argument is an error to correct; the SDK would drop it without a word."""
    loose = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = new_class(loose.__name__, (loose,), {"extra": "forbid"})
    tool.parameters["additionalProperties"] = False
    return tool


def _agents_for(service: Service, caller: str) -> list[AgentSpec]:
    """Those that this caller may run; of the others it need not know."""
    agents = service.agents.current().agents.values()
    return [agent for agent in agents if caller in agent.allowed_callers]


Asked = Callable[[], Task]
"""A task that is still to be read; what is wrong with it is told when it is called."""


def _asked(
    caller: str, agent: str, prompt: str, context: str, workspace: str, session: str
) -> Asked:
    return lambda: Task(
        agent=agent,
        prompt=prompt,
        context=context,
        workspace=_absolute(workspace) if workspace else None,
        session=session,
        caller=caller,
    )


async def _run(service: Service, ctx: Context[Any], asked: Asked) -> t.CallToolResult:
    try:
        task = asked()
        catalog = service.agents.current()
        if (
            task.agent not in catalog.agents
        ):  # an error that names the agents, but only the caller's
            mine = {agent.name: agent for agent in _agents_for(service, task.caller)}
            catalog.model_copy(update={"agents": mine}).agent(task.agent)
        return _answer(await _with_progress(service, ctx, task))
    except OrchestratorError as exc:
        return _refusal(exc)
    except ValidationError as exc:
        said = [(error["loc"][0], error["msg"]) for error in exc.errors()]
        wrong = [f"{name}: {text.removeprefix('Value error, ')}" for name, text in said]
        raise ToolError("; ".join(wrong)) from exc


async def _apply(service: Service, caller: str, run_id: str, dry_run: bool) -> t.CallToolResult:
    try:
        applied = await service.apply(run_id, caller, dry_run=dry_run)
    except OrchestratorError as exc:
        return _refusal(exc)
    done = "can be applied" if dry_run else "are applied"
    said = f"{len(applied.files)} changed files, which {done}:"
    lines = [said, *(f"{file.change} {quoted(file.path)}" for file in applied.files)]
    if applied.already:
        lines = ["Nothing to do: the workspace is like that already."]
    document = applied.model_dump(mode="json")
    return t.CallToolResult(content=[_text("\n".join(lines))], structured_content=document)


def _absolute(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute() or "\0" in text:
        raise MountRefused(f"{text!r} is not an absolute path; give one from / on")
    return path


async def _with_progress(service: Service, ctx: Context[Any], task: Task) -> RunResult:
    """Run it, and say something to the client at least every few seconds."""
    news, reader = anyio.create_memory_object_stream[Event](1000)

    def tell(event: Event) -> None:
        with suppress(anyio.WouldBlock):  # who does not keep up misses some lines, not the answer
            news.send_nowait(event)

    async def report() -> None:
        count, line = 0, ""
        while True:
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                event = await reader.receive()
                line = f"{event.kind}: {event.text}"[:LINE_CHARS]
            count += 1
            await ctx.report_progress(count, None, line)

    outcome: RunResult | OrchestratorError
    with news, reader:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(report)
            try:
                outcome = await service.run(task, tell)
            except OrchestratorError as exc:  # raised in here, it would arrive in a group
                outcome = exc
            tasks.cancel_scope.cancel()
    if isinstance(outcome, OrchestratorError):
        raise outcome
    return outcome


def _answer(result: RunResult) -> t.CallToolResult:
    """The envelope as structured content; the text is for clients that show only that."""
    envelope = result.model_dump(mode="json")
    if result.status == "completed":
        text = result.result if isinstance(result.result, str) else _json(result.result)
        notes = [_text(note) for note in _notes(result)]
        return t.CallToolResult(content=[_text(text), *notes], structured_content=envelope)
    # Clients show a model only the text of an error: all that can help goes into it.
    lines = [f"{result.agent} {result.status} ({result.reason}): {result.message}"]
    if result.schema_errors:
        lines.append("schema errors: " + "; ".join(result.schema_errors))
    if result.denied_tools:
        lines.append("tools it was denied: " + ", ".join(result.denied_tools))
    if result.denied_hosts:
        lines.append("hosts it was denied: " + ", ".join(result.denied_hosts))
    if result.changed_files:
        lines.append(_of_changes(result))
    if result.failed_mcp_servers:
        lines.append("MCP servers that were not there: " + ", ".join(result.failed_mcp_servers))
    if result.partial_text:
        lines.append(f"what it had said last:\n{result.partial_text}")
    if result.log_tail:
        lines.append("what happened last:")
        lines += [f"  {line[:LINE_CHARS]}" for line in result.log_tail]
    lines.append(f"run_id {result.run_id}, cost ${result.cost_usd:.4f}")
    content = [_text("\n".join(lines))]
    return t.CallToolResult(content=content, structured_content=envelope, is_error=True)


def _notes(result: RunResult) -> Iterator[str]:
    """What whoever asked should know besides the answer."""
    if result.changed_files:
        yield _of_changes(result)
    if result.denied_hosts:
        yield f"It was not let to: {', '.join(result.denied_hosts)}."
    if result.session:
        yield f"Session {result.session}. {result.session_note}".strip()


def _of_changes(result: RunResult) -> str:
    changed = ", ".join(quoted(file.path) for file in result.changed_files[:NAMED_FILES])
    more = len(result.changed_files) - NAMED_FILES
    return (
        f"The agent worked on a copy and changed {changed}{f' and {more} more' * (more > 0)}. "
        f"Nothing is applied yet: call apply_changes with run_id {result.run_id}."
    )


def _refusal(exc: OrchestratorError) -> t.CallToolResult:
    error = {"error": {"code": exc.code, "message": str(exc)}}
    return t.CallToolResult(content=[_text(str(exc))], structured_content=error, is_error=True)


def _text(text: str) -> t.TextContent:
    return t.TextContent(type="text", text=text)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _describe_agents(service: Service, who_calls: WhoCalls) -> Any:
    """The tools' descriptions list the agents of this moment: nobody maintains a list by hand."""

    async def describe(ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        result = await call_next(ctx)
        if ctx.method != "tools/list":
            return result
        agents = _agents_for(service, who_calls())
        lines = [f"- {agent.name}: {' '.join(agent.description.split())}" for agent in agents]
        listed = "\nAgents:\n" + ("\n".join(lines) or "(none yet)")
        return {
            **result,
            "tools": [
                {**tool, "description": tool["description"] + listed}
                if tool["name"] in ("run_subagent", "delegate_task")
                else tool
                for tool in result["tools"]
            ],
        }

    return describe


class ChangeNotices:
    """Tells clients of both protocol eras when agents came, went or changed."""

    def __init__(self, service: Service) -> None:
        self._agents = service.agents
        self.bus = InMemorySubscriptionBus()
        self._connections: WeakSet[Connection] = WeakSet()

    async def remember(self, ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        """Middleware: know whom to tell, and promise it in the handshake."""
        if ctx.protocol_version < HANDSHAKE_ERA:
            # ctx.session is made for each request and gone after it; the connection stays.
            self._connections.add(ctx.session._connection)  # noqa: SLF001 there is no public way
        result = await call_next(ctx)
        if ctx.method == "initialize":
            capabilities = {**result["capabilities"], "tools": {"listChanged": True}}
            return {**result, "capabilities": capabilities}
        return result

    async def watch(self) -> None:
        """Look at agents/ for ever."""
        self._agents.current()
        seen = self._agents.version
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(LOOK_SECONDS)
                self._agents.current()
                if self._agents.version == seen:
                    continue
                seen = self._agents.version
                await self.bus.publish(ToolsListChanged())
                for connection in list(self._connections):
                    if connection.initialized.is_set():
                        tasks.start_soon(_tell, connection)


async def _tell(connection: Connection) -> None:
    with anyio.move_on_after(TELL_SECONDS):
        await connection.send_tool_list_changed()
