"""What we promise of servers of tools, tried out with one in a container beside the agent's."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from orchestrator.containers.runtime import Container
from orchestrator.doctor.container_promises import Probes
from orchestrator.doctor.promise import Finding, Promise, ask
from orchestrator.domain.agent import Secret
from orchestrator.domain.exchange import Approval
from orchestrator.domain.tool_lock import Brokered
from orchestrator.domain.tool_server import ToolServer
from orchestrator.domain.tool_use import ServerUse
from orchestrator.gateway.tools.access import RunTools, ToolAccess, ToolSeen
from orchestrator.gateway.tools.front import ToolFront
from orchestrator.gateway.tools.pool import Loss, OnChanged, ServerPool, Sharers, WantedServer
from orchestrator.plan import Place, plan_server
from orchestrator.redaction import Redactor

if TYPE_CHECKING:
    from orchestrator.gateway.tools.live_server import LiveServer

SERVER_SCRIPT = """
import json, os, sys
def tool(name):
    return {"name": name, "inputSchema": {"type": "object"}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, params = asked["method"], asked.get("params") or {}
    reply = {"jsonrpc": "2.0", "id": asked["id"]}
    if method == "initialize":
        reply["result"] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "doctor", "version": "1"}}
    elif method == "tools/list":
        reply["result"] = {"tools": [tool("allowed"), tool("denied")]}
    elif method == "tools/call":
        text = "heard " + params["name"] + " " + os.environ["DOCTOR"]
        reply["result"] = {"content": [{"type": "text", "text": text}]}
    else:
        reply["error"] = {"code": -32601, "message": "no"}
    print(json.dumps(reply), flush=True)
"""

SHARERS = Sharers("run", "doctor")


class _Servers:
    """A run's side of the broker, for a run that is none."""

    def __init__(self, probes: Probes, secret: str) -> None:
        self._probes = probes
        self._secret = secret
        self.other: Container | None = None
        """The server's container."""

    @asynccontextmanager
    async def open(self, wanted: WantedServer, on_changed: OnChanged) -> AsyncIterator[LiveServer]:
        from orchestrator.gateway.tools.lines import line_transport
        from orchestrator.gateway.tools.live_server import open_live_server

        place = Place(image=self._probes.spec.image, seccomp=self._probes.spec.seccomp)
        planned = plan_server(wanted.server, place, {}, {"doctor": self._secret})
        loss = Loss()
        async with (
            self._probes.open(planned.container) as self.other,
            self.other.spawn(planned.launch) as process,
            open_live_server(
                line_transport(process.stdout, loss.tell),
                wanted.server.name,
                loss,
                on_changed=on_changed,
            ) as live,
        ):
            live.secrets = lambda: (self._secret,)
            yield live

    def tools(self, pool: ServerPool) -> RunTools:
        async def approve(call_id: str, tool: str, given: dict[str, object]) -> Approval:
            return Approval(call_id=call_id, run_id="", tool=tool, input=given)

        async def cleaned(value: object) -> object:
            clean: object = json.loads(Redactor((self._secret,)).text(json.dumps(value)))
            return clean

        async def spill(path: str, data: bytes) -> str:
            return f"{path}: {len(data)} bytes, more than it may send"

        return RunTools(
            run_id="doctor",
            pool=pool,
            scopes={"doctor": SHARERS},
            on_tools=self,
            approve=approve,
            ask=None,
            cleaned=cleaned,
            spill=spill,
            know=lambda _: None,
        )

    def called(self, seen: ToolSeen) -> None:
        """Nothing is kept of it."""

    def drifted(self, server: str, changed: Sequence[str], new: Sequence[str]) -> None:
        """The same."""


async def _servers(probes: Probes) -> Finding:
    secret = secrets.token_hex(20)
    rig = _Servers(probes, secret)
    pool = ServerPool(rig.open)
    server = ToolServer(
        name="doctor",
        command=("python3", "-I", "-c", SERVER_SCRIPT),
        secrets=(Secret(name="doctor", expose="env"),),
    )
    await anyio.to_thread.run_sync(_load_sdk)
    try:
        async with (
            probes.open() as agent,
            pool.lease(WantedServer(server, None, SHARERS)) as live,
        ):
            lock = await live.listed()
            used = ServerUse(use="doctor", allow=("*",), deny=("den*",))
            access = ToolAccess((Brokered(use=used, server=server, lock=lock),))
            access.bind(rig.tools(pool))
            port = await agent.listen(0, "doctor-tools", ToolFront(access).service)
            bodies = [_call("allowed"), _call("denied")]
            seen = await ask(agent, "post", str(port), "/doctor", *bodies)
            places = [t.target for t in agent.spec.tmpfs]
            found = (await ask(agent, "search", *places, data=secret[::-1].encode()))["found"]
            assert rig.other is not None  # noqa: S101 the lease has opened it
            network = await ask(rig.other, "network")
    finally:
        await pool.aclose()
    return _verdict(seen, bodies, found, network, secret)


def _verdict(
    seen: dict[str, Any], bodies: list[str], found: list[str], network: dict[str, Any], secret: str
) -> Finding:
    allowed, denied = (seen[body]["body"] for body in bodies)
    if found or secret in str(seen):
        return False, f"the server's secret is inside: {', '.join(found) or 'in an answer'}"
    if "heard allowed" not in allowed:
        return False, f"a tool that is allowed does not answer: {allowed}"
    if "heard" in denied or "DENIED_BY_POLICY" not in denied:
        return False, f"a tool that is denied was called: {denied}"
    if not set(network["interfaces"]) <= {"lo"}:
        return False, f"the server's container has {', '.join(network['interfaces'])}"
    return True, "an allowed tool answers, a denied one is refused; its secret is nowhere inside"


def _call(name: str) -> str:
    call = {"name": name, "arguments": {}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})


def _load_sdk() -> None:
    pass


SERVERS_OF_TOOLS: tuple[Promise[Probes], ...] = (
    Promise(
        "servers of tools",
        "a server runs in another container, and its secret and other tools stay there",
        _servers,
        "this is the orchestrator's own doing, not the engine's: report it, and do not run agents "
        "that use servers until it is mended",
    ),
)
