"""The MCP surface: tools for a main agent. It translates, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from weakref import WeakSet

import anyio
import mcp.types as t
from mcp.server import MCPServer, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged
from pydantic import Field, ValidationError

from orchestrator import __version__
from orchestrator.catalog import prompt_section
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.errors import MountRefused, OrchestratorError

HEARTBEAT_SECONDS = 10.0
"""Between two words to a client that waits; clients give up on silent servers."""

LOOK_SECONDS = 1.0
"""How often agents/ is looked at for changes."""

MAX_RESULT_CHARS = 500_000
"""What Claude Code takes from one result without putting it aside in a file."""

INSTRUCTIONS = (
    "Hand tasks to specialised agents with run_subagent. Each runs in a locked container of its "
    "own and returns its answer with an envelope: status, reason, cost, what it was denied."
)

CallerOf = Callable[[Context[Any]], str]
"""Who is calling: known from the server's entry or the token, never from an argument."""


def build_server(
    service: Service, caller_of: CallerOf, **auth: Any
) -> tuple[MCPServer[Any], ChangeNotices]:
    """The server, and what tells its clients that the agents have changed."""
    notices = ChangeNotices(service)
    server: MCPServer[Any] = MCPServer(
        "subagent-orchestrator",
        version=__version__,
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=notices.bus,
        middleware=[notices.remember, _describe_agents(service)],
        **auth,
    )
    runs = t.ToolAnnotations(title="Run a subagent", destructive_hint=False, open_world_hint=True)

    @server.tool(annotations=t.ToolAnnotations(title="List agents", read_only_hint=True))
    async def list_agents(ctx: Context[Any]) -> dict[str, list[dict[str, str]]]:
        """List the agents that can be run, with what they are for."""
        caller = caller_of(ctx)
        agents = service.agents.current().agents.values()
        return {
            "agents": [
                {"name": agent.name, "description": agent.description}
                for agent in agents
                if caller in agent.allowed_callers
            ]
        }

    @server.tool(annotations=runs, meta={"anthropic/maxResultSizeChars": MAX_RESULT_CHARS})
    async def run_subagent(
        agent_name: Annotated[str, Field(description="The agent to run")],
        prompt: Annotated[str, Field(description="The task, complete: it knows nothing else")],
        ctx: Context[Any],
        context: Annotated[str, Field(description="What it should know besides")] = "",
        workspace: Annotated[
            str, Field(description="An absolute path of a directory to show it; optional")
        ] = "",
    ) -> t.CallToolResult:
        """Run an agent in a container of its own and wait for its answer."""
        path = Path(workspace) if workspace else None
        return await _run(service, ctx, caller_of(ctx), agent_name, prompt, context, path)

    @server.tool(annotations=runs, meta={"anthropic/maxResultSizeChars": MAX_RESULT_CHARS})
    async def delegate_task(
        agent: Annotated[str, Field(description="The agent to run")],
        task: Annotated[str, Field(description="The task, complete: it knows nothing else")],
        working_directory: Annotated[str, Field(description="An absolute path of a directory")],
        ctx: Context[Any],
    ) -> t.CallToolResult:
        """Run an agent on a directory and wait for its answer."""
        if not working_directory:
            raise ToolError("working_directory is empty; give the absolute path of a directory")
        return await _run(service, ctx, caller_of(ctx), agent, task, "", Path(working_directory))

    @server.prompt(name="subagents", title="Available subagents")
    def subagents() -> str:
        """What to tell a main agent about the subagents it can use."""
        return prompt_section(service.agents.current().agents.values())

    return server, notices


async def _run(
    service: Service,
    ctx: Context[Any],
    caller: str,
    agent: str,
    prompt: str,
    context: str,
    workspace: Path | None,
) -> t.CallToolResult:
    try:
        if workspace is not None and not workspace.is_absolute():
            raise MountRefused(f"{workspace} is not an absolute path; give one from / on")
        task = Task(agent=agent, prompt=prompt, context=context, workspace=workspace, caller=caller)
        return _answer(await _with_progress(service, ctx, task))
    except OrchestratorError as exc:
        return _refusal(exc)
    except ValidationError as exc:
        raise ToolError("; ".join(str(error["msg"]) for error in exc.errors())) from exc


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
                line = f"{event.kind}: {event.text}"[:200]
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
        return t.CallToolResult(content=[_text(text)], structured_content=envelope)
    # Clients show a model only the text of an error: all that can help goes into it.
    lines = [f"{result.agent} {result.status} ({result.reason}): {result.message}"]
    if result.schema_errors:
        lines.append("schema errors: " + "; ".join(result.schema_errors))
    if result.partial_text:
        lines.append(f"what it had said last:\n{result.partial_text}")
    lines.append(f"run_id {result.run_id}, cost ${result.cost_usd:.4f}")
    content = [_text("\n".join(lines))]
    return t.CallToolResult(content=content, structured_content=envelope, is_error=True)


def _refusal(exc: OrchestratorError) -> t.CallToolResult:
    error = {"error": {"code": exc.code, "message": str(exc)}}
    return t.CallToolResult(content=[_text(str(exc))], structured_content=error, is_error=True)


def _text(text: str) -> t.TextContent:
    return t.TextContent(type="text", text=text)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _describe_agents(service: Service) -> Any:
    """The tools' descriptions list the agents of this moment: nobody maintains a list by hand."""

    async def describe(ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        result = await call_next(ctx)
        if ctx.method != "tools/list":
            return result
        agents = service.agents.current().agents.values()
        lines = [f"- {agent.name}: {agent.description}" for agent in agents]
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
        self._sessions: WeakSet[ServerSession] = WeakSet()

    async def remember(self, ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        """Middleware: know whom to tell."""
        if ctx.protocol_version < "2026":
            self._sessions.add(ctx.session)
        return await call_next(ctx)

    async def watch(self) -> None:
        """Look at agents/ for ever."""
        self._agents.current()
        seen = self._agents.version
        while True:
            await anyio.sleep(LOOK_SECONDS)
            self._agents.current()
            if self._agents.version == seen:
                continue
            seen = self._agents.version
            await self.bus.publish(ToolsListChanged())
            for session in list(self._sessions):
                try:
                    await session.send_tool_list_changed()
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    self._sessions.discard(session)
