"""Tasks on stage: a server in this process, an MCP client, agents of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import anyio
from mcp import Client

from orchestrator.app import open_orchestrator
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.surfaces.mcp.server import Watch, build_server
from tests.surfaces.mcp.mcp_stage import PATIENCE, Stage, call, text

Document = dict[str, Any]

ASKS = (
    {"tool": "mcp__parent__ask_parent", "input": {"question": "Which colour?"}},
    {"text": "it is {last_tool_result}"},
)


def bash(command: str) -> dict[str, object]:
    return {"tool": "Bash", "input": {"command": command}}


class Server:
    """A server in this process, and a way to agents that this test alone may run."""

    def __init__(
        self, stage: Stage, client: Client, caller: str, watch: Watch = anyio.sleep_forever
    ) -> None:
        self.watch = watch
        self.stage = stage
        self.client = client
        self.caller = caller

    def agent(self, name: str, *steps: object, **fields: object) -> str:
        """Its name, which is this test's own."""
        name = f"{name}-{self.caller}"
        self.stage.add_agent(name, *steps, allowed_callers=[self.caller], **fields)
        return name

    async def call(self, tool: str, **arguments: object) -> Document:
        """What a call answers that is no error."""
        result = await call(self.client, tool, **arguments)
        assert not result.is_error, text(result)
        document: Document | None = result.structured_content
        assert document is not None
        return document

    async def refused(self, tool: str, **arguments: object) -> tuple[str, str]:
        """The code and the sentence of a call that is one."""
        result = await call(self.client, tool, **arguments)
        assert result.is_error, result
        assert result.structured_content is not None
        error = result.structured_content["error"]
        assert text(result) == error["message"]
        return error["code"], error["message"]

    async def ended(self, *runs: str) -> list[Document]:
        """Wait, as often as it takes."""
        with anyio.fail_after(PATIENCE):
            while True:
                found = await self.call("wait_for_tasks", task_ids=list(runs))
                if "next" not in found:
                    tasks: list[Document] = found["tasks"]
                    return tasks


class Serve(Protocol):
    """What the fixture `serve` is."""

    def __call__(
        self,
        era: str = "auto",
        window: float | None = None,
        compat: bool = False,
        template: str = "",
        **options: Any,
    ) -> AbstractAsyncContextManager[Server]: ...


def serving(stage: Stage, caller: str) -> Serve:
    """Servers for one caller, who sees no runs but its own."""

    @asynccontextmanager
    async def serve(
        era: str = "auto",
        window: float | None = None,
        compat: bool = False,
        template: str = "",
        **options: Any,
    ) -> AsyncIterator[Server]:
        update = {"window_seconds": window, "compatibility": compat, "dynamic_template": template}
        settings = stage.settings.model_copy(update=update)
        async with open_orchestrator(settings) as service, Tasks(service) as tasks:
            server, watch = build_server(service, tasks, lambda: caller, settings)
            async with Client(server, mode=era, **options) as client:
                yield Server(stage, client, caller, watch)

    return serve
