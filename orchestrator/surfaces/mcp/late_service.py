"""What runs agents, loaded and opened once its client has been greeted.

To load it takes a tenth of the time until a client has its tools, and no greeting needs it: these
are answered by the agents' files alone. Any other request waits until it is open. If it cannot be
opened, such a request is answered with the reason, and the next one has it tried again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.to_thread
import mcp.types as t
from mcp import MCPError

from orchestrator.errors import OperatorError, OrchestratorError
from orchestrator.settings import Settings
from orchestrator.state import open_agents
from orchestrator.surfaces.mcp.answers.answer import refused
from orchestrator.surfaces.mcp.callers import ANSWERED_TO_ALL
from orchestrator.surfaces.mcp.notices import McpRequest

if TYPE_CHECKING:
    from orchestrator.app import Watching
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.tasks import Tasks

log = logging.getLogger(__name__)

UNASKED_SECONDS = 1.0
"""After which it is opened though no request needs it: runs that waited for a word when their
orchestrator was killed are taken up, and spares are made."""

LISTED_SECONDS = 0.02
"""After which it is opened once the tools are listed: the answer is on its way by then."""


class LateService:
    """Opens a service and its tasks in a task of its own; use `held` to have it run."""

    def __init__(self, settings: Settings, watching: Watching | None = None) -> None:
        self._settings = settings
        self._watching = watching
        self._agents = open_agents(settings)
        self._opened: tuple[Service, Tasks] | None = None
        self._is_open = anyio.Event()
        self._attempt = _Attempt()
        self._closed = anyio.Event()
        self._leaving = ""
        self.service = cast("Service", _Later(lambda: self._parts[0], agents=self._agents))
        """The service. Before it is open it knows the agents, and nothing else."""
        self.tasks = cast("Tasks", _Later(lambda: self._parts[1]))

    @asynccontextmanager
    async def held(self) -> AsyncIterator[asyncio.Task[None]]:
        """In this block it is opened when it is wanted; at its end it is closed, if it was.

        The task ends before that if what it has opened breaks.
        """
        # A task of its own, which no request and no signal cancels: runs have an end to write down.
        holder = asyncio.create_task(self._hold())
        try:
            yield holder
        finally:
            self._closed.set()
            with anyio.CancelScope(shield=True):  # the end of each run is bounded
                await holder

    async def open(self) -> None:
        """Wait until it is open; OrchestratorError if that cannot be."""
        if self._opened is None:
            attempt = self._attempt
            attempt.wanted.set()
            await attempt.ended.wait()
            if attempt.error is not None:
                raise attempt.error

    async def until_open(self) -> None:
        """Wait until it is open, however often that fails."""
        await self._is_open.wait()

    def leave(self, why: str) -> None:
        """Say why all runs are about to be cancelled."""
        self._leaving = self._leaving or why
        if self._opened is not None:
            self.tasks.leave(why)

    async def before(self, ctx: McpRequest, call_next: Any) -> Any:
        """Middleware, the first: have requests wait that need it."""
        if ctx.method in ANSWERED_TO_ALL or ctx.method.startswith("notifications/"):
            result = await call_next(ctx)
            if ctx.method == "tools/list":
                asyncio.get_running_loop().call_later(LISTED_SECONDS, self._attempt.wanted.set)
            return result
        try:
            await self.open()
        except OrchestratorError as exc:
            if ctx.method == "tools/call":
                return refused(exc)
            raise MCPError(code=t.INTERNAL_ERROR, message=str(exc)) from exc
        return await call_next(ctx)

    @property
    def _parts(self) -> tuple[Service, Tasks]:
        assert self._opened is not None, "a request did not wait"  # noqa: S101 `before` sees to it
        return self._opened

    async def _hold(self) -> None:
        with anyio.move_on_after(UNASKED_SECONDS):
            await self._wanted()
        while not self._closed.is_set():
            try:
                await self._hold_once()
            except OrchestratorError as exc:
                if self._opened is not None:
                    raise
                log.error("no agent can be run: %s", exc)  # noqa: TRY400 a sentence, for people
                self._fail(exc)
            except Exception:
                if self._opened is not None:
                    raise
                log.exception("no agent can be run")
                self._fail(OperatorError("no agent can be run; the server's log says why"))
            await self._wanted()

    async def _hold_once(self) -> None:
        open_tasks = await anyio.to_thread.run_sync(_loaded)
        if self._closed.is_set():
            return
        opened = open_tasks(self._settings, self._agents, self._watching)
        async with opened as (service, tasks):
            self._opened = service, tasks
            tasks.serve()
            if self._leaving:
                tasks.leave(self._leaving)
            self._is_open.set()
            self._attempt.ended.set()
            await self._closed.wait()

    async def _wanted(self) -> None:
        """Until a request needs it, or all is over."""
        async with anyio.create_task_group() as tasks:

            async def until(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(until, self._attempt.wanted)
            tasks.start_soon(until, self._closed)

    def _fail(self, error: OrchestratorError) -> None:
        failed, self._attempt = self._attempt, _Attempt()
        failed.error = error
        failed.ended.set()


class _Attempt:
    """To open it, once."""

    def __init__(self) -> None:
        self.wanted, self.ended = anyio.Event(), anyio.Event()
        self.error: OrchestratorError | None = None


class _Later:
    """In the place of an object that is there later: its attributes are those of that one."""

    def __init__(self, get: Any, **known: object) -> None:
        self.__dict__.update(known)
        self._get = get

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get(), name)


def _loaded() -> Any:
    from orchestrator.app import open_tasks

    gc.freeze()  # what imports make stays: it need not be looked through for garbage
    return open_tasks
