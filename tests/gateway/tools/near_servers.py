"""Servers of tools as plain processes, behind the broker on loopback: no engine is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.abc import Process
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from orchestrator.domain.audit import AuditAct
from orchestrator.domain.exchange import Approval
from orchestrator.domain.tool_lock import Brokered, ToolLock
from orchestrator.domain.tool_server import ToolServer
from orchestrator.domain.tool_use import ServerUse
from orchestrator.gateway.elsewhere import end_idle_workers
from orchestrator.gateway.http.loopback import listen_on_loopback
from orchestrator.gateway.tools.access import RunTools, ToolAccess, ToolSeen
from orchestrator.gateway.tools.front import ToolFront
from orchestrator.gateway.tools.lines import line_transport
from orchestrator.gateway.tools.live_server import LiveServer, open_live_server
from orchestrator.gateway.tools.pool import Loss, OnChanged, ServerPool, Sharers, WantedServer
from orchestrator.redaction import Redactor

MISCHIEF = Path(__file__).with_name("mischief.py")
PATIENCE = 60
TOKEN = "tok-2f1c9a7be04d4f6e8a55"


class ProcessStream:
    """A ByteStream on the pipes of a process."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    async def read(self, max_bytes: int = 65536, /) -> bytes:
        try:
            return await self._stdout.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            raise ConnectionResetError from exc

    async def write(self, data: bytes, /) -> None:
        try:
            await self._stdin.send(data)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            raise ConnectionResetError from exc

    def end(self) -> None: ...
    def reset(self) -> None: ...


class Rig:
    """A pool of near servers, and what a run would have been told and asked."""

    def __init__(self) -> None:
        self.pool = ServerPool(self.open)
        self.started: list[str] = []
        self.front: ToolFront | None = None
        self.seen: list[ToolSeen] = []
        self.drifts: list[tuple[list[str], list[str]]] = []
        self.audit: list[tuple[AuditAct, str, bool]] = []
        self.asked: list[str] = []
        self.answer: str = "Ada"
        self.approvals: list[tuple[str, dict[str, object]]] = []
        self.decision: dict[str, Any] = {"decision": "approved"}
        self.spilled: dict[str, bytes] = {}
        self.secrets: set[str] = set()

    @asynccontextmanager
    async def open(self, wanted: WantedServer, on_changed: OnChanged) -> AsyncIterator[LiveServer]:
        server, loss = wanted.server, Loss()
        self.started.append(server.name)
        with anyio.CancelScope(shield=True):  # cancelled in there, it would leave a process behind
            process = await anyio.open_process(
                [sys.executable, "-I", *server.command],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(server.env),
            )
        async with AsyncExitStack() as held:
            held.push_async_callback(_ended, process)
            opened = open_live_server(
                line_transport(ProcessStream(process), loss.tell),
                server.name,
                loss,
                protocol="" if wanted.lock is None else wanted.lock.protocol,
                elicit=wanted.elicit,
                on_changed=on_changed,
            )
            upstream = await held.enter_async_context(opened)
            upstream.secrets = lambda: (TOKEN,)
            yield upstream

    async def aclose(self) -> None:
        """End all that was started; the loop may go on, with other tests."""
        await self.pool.aclose()
        await end_idle_workers()
        assert self.pool.running == 0

    async def lock(self, server: ToolServer) -> ToolLock:
        """What a server is pinned with, in its best behaviour."""
        good = server.model_copy(
            update={
                "env": {**server.env, "MODE": server.env.get("LOCK", "")},
                "start_seconds": float(PATIENCE),
            }
        )
        sharers = Sharers("run", "pin")
        async with self.pool.lease(WantedServer(good, None, sharers)) as upstream:
            lock = await upstream.listed()
        await self.pool.end(sharers)
        self.started.clear()
        return lock

    def run_tools(
        self, run_id: str = "r1", *, may_ask: bool = False, kind: str = "run"
    ) -> RunTools:
        return RunTools(
            run_id=run_id,
            pool=self.pool,
            scopes={"it": Sharers(kind, run_id if kind == "run" else "all")},
            on_tools=self,
            approve=self._approve,
            ask=self._ask if may_ask else None,
            cleaned=self._cleaned,
            spill=self._spill,
            know=self.secrets.update,
            decided=self._decided,
        )

    def called(self, seen: ToolSeen) -> None:
        self.seen.append(seen)

    def drifted(self, server: str, changed: Sequence[str], new: Sequence[str]) -> None:
        self.drifts.append((list(changed), list(new)))

    async def _decided(self, act: AuditAct, subject: str, *, allowed: bool, why: str = "") -> None:
        del why
        self.audit.append((act, subject, allowed))

    async def _ask(self, question: str, default: str | None) -> str:
        self.asked.append(question)
        return self.answer or default or ""

    async def _approve(self, call_id: str, tool: str, given: dict[str, object]) -> Approval:
        self.approvals.append((tool, given))
        return Approval(call_id=call_id, run_id="r1", tool=tool, **self.decision)

    async def _cleaned(self, value: object) -> object:
        redactor = Redactor(self.secrets)

        def clean(part: object) -> object:
            if isinstance(part, str):
                return redactor.text(part)
            if isinstance(part, dict):
                return {key: clean(item) for key, item in part.items()}
            return [clean(item) for item in part] if isinstance(part, list) else part

        return clean(value)

    async def _spill(self, path: str, data: bytes) -> str:
        self.spilled[path] = data
        return ""


async def _ended(process: Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
        await process.aclose()


def near_server(mode: str = "", lock_mode: str = "", **fields: Any) -> ToolServer:
    """The server of mischief.py; `mode` is what it does, `lock_mode` what it did when pinned."""
    env = {"MODE": mode, "LOCK": lock_mode, "TOKEN": TOKEN}
    return ToolServer(name="it", command=(str(MISCHIEF),), env=env, **fields)


def use_of(*allow: str, **fields: Any) -> ServerUse:
    return ServerUse.model_validate({"use": "it", "allow": tuple(allow) or ("*",), **fields})


@asynccontextmanager
async def served(
    rig: Rig, server: ToolServer, use: ServerUse, tools: RunTools | None = None
) -> AsyncIterator[tuple[ToolAccess, str]]:
    """The broker for one container, on loopback, and the URL of its one server."""
    lock = await rig.lock(server)
    access = ToolAccess((Brokered(use=use, server=server, lock=lock),))
    front = rig.front = ToolFront(access)
    access.bind(tools or rig.run_tools())
    async with listen_on_loopback(front.service) as url:
        try:
            yield access, f"{url}/it"
        finally:
            access.revoke()
            await rig.aclose()


@asynccontextmanager
async def client_of(url: str, mode: str, **options: Any) -> AsyncIterator[Client]:
    async with Client(streamable_http_client(url), mode=mode, **options) as client:
        yield client


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if hasattr(block, "text"))
