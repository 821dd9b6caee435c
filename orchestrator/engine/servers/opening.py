"""ToolServer -> a server that answers: in a container of its own, or at a URL."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from errno import ENOENT
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from pydantic import SecretStr

from orchestrator.containers.runtime import Container, EngineLookup, Runtime
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.domain.audit import AuditAct, AuditEntry
from orchestrator.domain.container import EGRESS_PORT, ROUTES_PORT
from orchestrator.domain.tool_server import ToolServer
from orchestrator.errors import ServerFailed, SpawnFailed, WireLost
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.http.byte_stream import ByteStream
from orchestrator.gateway.reach import ways_out
from orchestrator.gateway.secrets.secret_store import SecretStore
from orchestrator.gateway.tools.pool import Loss, OnChanged, WantedServer
from orchestrator.gateway.tools.results import one_line
from orchestrator.plan import Place, plan_server
from orchestrator.redaction import Redactor
from orchestrator.store.audit import Audit, OnceEach

if TYPE_CHECKING:
    from orchestrator.gateway.tools.live_server import LiveServer

STDERR_BYTES = 4096
"""How much of the end of a server's stderr is kept."""

STDERR_BYTES_PER_SECOND = 1024 * 1024
"""A server that says more waits: to read it all would keep this process from its other work."""

LAST_LINE_CHARS = 300
"""And how much of it is told when the server ends by itself."""

FAILED_CHARS = 1000
"""And of why it could not be started, which it may say itself."""

MAX_SERVER_DECISIONS = 1000
"""Of one instance in the audit."""

SDK_MODULES = tuple(
    f"orchestrator.gateway.tools.{name}" for name in ("live_server", "lines", "remote", "tokens")
)
"""They import the SDK, which takes a second: when the first server starts, in a thread."""


class ServerOpener:
    """Starts servers as their server.yaml says."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        engine: EngineLookup,
        secret_store: SecretStore,
        dialer: Dialer,
        environ: Mapping[str, str],
        audit: Audit,
        tokens_dir: Path,
        project: str = "",
        ca_certificates: str = "",
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._secret_store = secret_store
        self._dialer = dialer
        self._environ = environ
        self._audit = audit
        self._tokens_dir = tokens_dir
        self._project = project
        self._ca_certificates = ca_certificates

    @asynccontextmanager
    async def open(self, wanted: WantedServer, on_changed: OnChanged) -> AsyncIterator[LiveServer]:
        """Start a server as it is started for runs; leaving the block leaves nothing of it."""
        server = wanted.server
        await anyio.to_thread.run_sync(load_sdk)
        from orchestrator.gateway.tools.live_server import open_live_server

        values = await self._secret_store.resolve(server)
        plain = tuple(value.get_secret_value() for value in values.values())
        tokens: Callable[[], tuple[str, ...]] = tuple
        loss = Loss()
        try:
            async with AsyncExitStack() as held:
                if server.url is None:
                    transport = await self._started(server, values, loss, held)
                else:
                    transport, tokens = await self._connected(server, values, held)
                opened = open_live_server(
                    transport,
                    server.name,
                    loss,
                    protocol="" if wanted.lock is None else wanted.lock.protocol,
                    elicit=wanted.elicit,
                    on_changed=on_changed,
                )
                upstream = await held.enter_async_context(opened)
                upstream.secrets = lambda: (*plain, *tokens())
                yield upstream
        except Exception as exc:
            failed = _failed(exc)
            if failed is None:
                raise
            clean = Redactor((*plain, *tokens())).text(str(failed))
            raise ServerFailed(one_line(clean, FAILED_CHARS)) from None

    async def _connected(
        self, server: ToolServer, values: dict[str, SecretStr], held: AsyncExitStack
    ) -> tuple[AbstractAsyncContextManager[Any], Callable[[], tuple[str, ...]]]:
        """Messages to and from a server at a URL, and the tokens that are sent with them."""
        from orchestrator.gateway.tools.remote import remote_client, remote_transport
        from orchestrator.gateway.tools.tokens import TokenAuth, TokenFile, auth_of

        held.enter_context(told_plainly(server))
        decided = ServerDecisions(self._audit, self._project, server.name).note
        auth = auth_of(server, values, TokenFile(self._tokens_dir, self._project, server))
        client = await held.enter_async_context(remote_client(server, self._dialer, decided, auth))
        tokens = (lambda: auth.secrets) if isinstance(auth, TokenAuth) else tuple
        return remote_transport(client, server.url or ""), tokens

    async def _started(
        self,
        server: ToolServer,
        values: Mapping[str, SecretStr],
        loss: Loss,
        held: AsyncExitStack,
    ) -> AbstractAsyncContextManager[Any]:
        """Messages on the stdin and stdout of a server's process, in a container of its own."""
        from orchestrator.gateway.tools.lines import line_transport

        place = Place(
            image=server.image or await self._engine.agent_image(DEFAULT_RUNNER),
            ca_certificates=self._ca_certificates,
            seccomp=await self._engine.seccomp_profile(),
        )
        plain = {name: value.get_secret_value() for name, value in values.items()}
        planned = plan_server(server, place, self._environ, plain)
        labels = {"orchestrator.server": server.name}
        container = await held.enter_async_context(
            self._runtime.open(planned.container, labels=labels)
        )
        await self._offer(server, values, container, held)
        try:
            process = await held.enter_async_context(container.spawn(planned.launch))
        except SpawnFailed as exc:
            raise ServerFailed(_cannot_run(server, exc)) from exc
        tasks = await held.enter_async_context(anyio.create_task_group())
        held.callback(tasks.cancel_scope.cancel)
        stderr = Stderr(Redactor(plain.values()))
        loss.last_words = stderr.last_line
        tasks.start_soon(stderr.read, process.stderr)
        return line_transport(process.stdout, loss.tell)

    async def _offer(
        self,
        server: ToolServer,
        values: Mapping[str, SecretStr],
        container: Container,
        held: AsyncExitStack,
    ) -> None:
        """What leads out of the server's container, as its server.yaml says."""
        decisions = ServerDecisions(self._audit, self._project, server.name)
        egress, routes = ways_out(
            server.network,
            server.secrets,
            values,
            self._dialer,
            on_egress=lambda _: None,
            on_route=lambda _: None,
            decided=decisions.note,
        )
        if egress is not None:
            held.callback(egress.revoke)
            await container.listen(EGRESS_PORT, "egress", egress.service)
        if routes is not None:
            held.callback(routes.revoke)
            await container.listen(ROUTES_PORT, "routes", routes.service)


@contextmanager
def told_plainly(server: ToolServer) -> Iterator[None]:
    """What goes wrong with a server at a URL, as a sentence."""
    from orchestrator.gateway.tools.remote import transport_problem
    from orchestrator.gateway.tools.tokens import login_problem

    try:
        yield
    except Exception as exc:
        told = _failed(exc) or login_problem(exc, server.name)
        if told is not None:
            raise told from None
        problem = transport_problem(exc)
        if problem:
            # Not its whole URL, which may hold a key: an agent reads this.
            said = f"the server {server.name} at {server.address[0]} cannot be reached: {problem}"
            raise ServerFailed(said) from exc
        raise


def _cannot_run(server: ToolServer, exc: SpawnFailed) -> str:
    if exc.errno != ENOENT:
        why = os.strerror(exc.errno) if exc.errno else str(exc)
        return f"the server {server.name} cannot be started: {server.command[0]}: {why}"
    return (
        f"the server {server.name} cannot be started: {server.image or 'our image'} has no program "
        f"{server.command[0]!r}; put it into an image that is built on ours, and name that as "
        "`image` in server.yaml"
    )


def _failed(exc: BaseException) -> ServerFailed | None:
    """That a server failed, of errors that task groups have put together."""
    if isinstance(exc, BaseExceptionGroup):
        return next((found for each in exc.exceptions if (found := _failed(each))), None)
    return exc if isinstance(exc, ServerFailed) else None


def load_sdk() -> None:
    """Import the SDK. Blocks, for a second."""
    for name in SDK_MODULES:
        import_module(name)


class ServerDecisions:
    """Writes down where a server was let or not let, once for each place."""

    def __init__(self, audit: Audit, project: str, server: str) -> None:
        self._decisions = OnceEach(audit, MAX_SERVER_DECISIONS)
        self._project = project
        self._who = f"server {server}"

    async def note(self, act: AuditAct, subject: str, *, allowed: bool, why: str = "") -> None:
        entry = AuditEntry(
            project=self._project,
            who=self._who,
            act=act,
            subject=subject,
            allowed=allowed,
            why=why,
        )
        await self._decisions.note(entry)


class Stderr:
    """What a server complains of: read, so that it does not wait for a reader, but no faster than
    anybody complains; the last line is told when the server ends by itself.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._tail = b""

    async def read(self, stream: ByteStream) -> None:
        try:
            while data := await stream.read():
                self._tail = (self._tail + data)[-STDERR_BYTES:]
                if len(data) > STDERR_BYTES:
                    await anyio.sleep(len(data) / STDERR_BYTES_PER_SECOND)
        except (OSError, WireLost):
            return

    def last_line(self) -> str:
        lines = self._tail.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return one_line(self._redactor.text(last), LAST_LINE_CHARS)
