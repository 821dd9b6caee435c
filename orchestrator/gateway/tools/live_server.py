"""One session with a server of tools, by the SDK's own client. What the server says is bounded and
translated here; what it may be asked is decided elsewhere.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import mcp_types as t
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import BaseModel, JsonValue, ValidationError

from orchestrator import __version__
from orchestrator.domain.tool_lock import (
    PROMPT_FIELDS,
    RESOURCE_FIELDS,
    TOOL_FIELDS,
    JsonMap,
    Pinned,
    ToolLock,
)
from orchestrator.errors import ServerFailed
from orchestrator.gateway.tools.lines import Streams
from orchestrator.gateway.tools.pool import CallFailed, Drift, Elicit, Loss, OnProgress

for _name in ("client", "mcp.client"):
    # What a server does not do as the SDK expects is told by us, not with a traceback by the SDK.
    logging.getLogger(_name).setLevel(logging.CRITICAL)

MAX_PAGES = 50
MAX_OFFERED = 2000
"""Of a server's list: pages, and what is on them."""

MAX_ROUNDS = 10
"""How often a server may want to know something before it answers one call."""

MESSAGE_CHARS = 2000
"""Of an error of a server's."""

INFO = t.Implementation(name="subagent-orchestrator", version=__version__)


class _Session(ClientSession):
    """The SDK's, without its check of results against schemas of the server's own making: a
    regular expression in one could keep this process busy for ever.
    """

    async def validate_tool_result(self, name: str, result: t.CallToolResult) -> None:
        pass


class LiveServer:
    """A server that answers."""

    def __init__(self, session: ClientSession, name: str, loss: Loss) -> None:
        self._session = session
        self.name = name
        self.loss = loss
        self.drift = Drift()
        self.secrets: Callable[[], tuple[str, ...]] = tuple
        """What it knows at this moment that no agent may."""

    @property
    def protocol(self) -> str:
        return self._session.protocol_version or ""

    async def listed(self) -> ToolLock:
        """All that it offers now, as it would be pinned; ServerFailed if that cannot be shown."""
        capabilities = self._session.server_capabilities or t.ServerCapabilities()
        nothing: tuple[Pinned, ...] = ()
        tools = resources = templates = prompts = nothing
        if capabilities.tools is not None:
            tools = await self._all(self._session.list_tools, "tools", TOOL_FIELDS)
        if capabilities.resources is not None:
            resources = await self._all(self._session.list_resources, "resources", RESOURCE_FIELDS)
            listing = self._session.list_resource_templates
            templates = await self._all(listing, "resource_templates", RESOURCE_FIELDS)
        if capabilities.prompts is not None:
            prompts = await self._all(self._session.list_prompts, "prompts", PROMPT_FIELDS)
        info = self._session.server_info
        try:
            return ToolLock(
                server="" if info is None else f"{info.name} {info.version}"[:200],
                protocol=self.protocol,
                instructions=self._session.instructions or "",
                tools=tools,
                resources=resources,
                templates=templates,
                prompts=prompts,
            )
        except ValidationError as exc:
            said = exc.errors(include_url=False, include_input=False)[0]["msg"]
            raise ServerFailed(
                f"what the server {self.name} offers cannot be shown to a model: "
                f"{said.removeprefix('Value error, ')}"
            ) from None

    async def compare(self, lock: ToolLock) -> Drift:
        """See whether its tools are the pinned ones; what is not counts from now on."""
        tools = await self._all(self._session.list_tools, "tools", TOOL_FIELDS)
        now = {tool.name: tool.digest for tool in tools}
        pinned = {tool.name: tool.digest for tool in lock.tools}
        twice = {tool.name for tool in tools if now[tool.name] != tool.digest}
        changed = {name for name, was in pinned.items() if now.get(name) != was or name in twice}
        new = now.keys() - pinned.keys()
        self.drift = Drift(frozenset(changed), frozenset(new))
        return self.drift

    async def call(
        self, name: str, arguments: Mapping[str, JsonValue], on_progress: OnProgress | None = None
    ) -> JsonMap:
        """Call a tool; what it answered, whatever that is. CallFailed if there is no answer."""

        async def ask(answers: Any, state: str | None) -> BaseModel:
            return await self._session.call_tool(
                name,
                dict(arguments),
                progress_callback=on_progress,
                input_responses=answers,
                request_state=state,
                allow_input_required=True,
            )

        return await self._answered(ask)

    async def read(self, uri: str) -> JsonMap:
        """Read a resource."""

        async def ask(answers: Any, state: str | None) -> BaseModel:
            return await self._session.read_resource(
                uri, input_responses=answers, request_state=state, allow_input_required=True
            )

        return await self._answered(ask)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> JsonMap:
        """Get a prompt."""

        async def ask(answers: Any, state: str | None) -> BaseModel:
            return await self._session.get_prompt(
                name,
                dict(arguments),
                input_responses=answers,
                request_state=state,
                allow_input_required=True,
            )

        return await self._answered(ask)

    async def _answered(self, ask: Callable[[Any, str | None], Awaitable[BaseModel]]) -> JsonMap:
        answers: Any = None
        state: str | None = None
        try:
            for _ in range(MAX_ROUNDS):
                result = await ask(answers, state)
                if not isinstance(result, t.InputRequiredResult):
                    return result.model_dump(by_alias=True, mode="json", exclude_none=True)
                answers = await self._given(result)
                state = result.request_state
        except MCPError as exc:
            raise CallFailed(self.loss.why or str(exc.error.message)[:MESSAGE_CHARS]) from None
        except (ValidationError, RuntimeError):
            raise CallFailed("its answer is not one that MCP knows") from None
        raise CallFailed("it wants to know more and more, and does not answer")

    async def _given(self, wanted: t.InputRequiredResult) -> dict[str, Any]:
        """Answers to all that a server wants to know before it answers."""
        given = {}
        for key, request in (wanted.input_requests or {}).items():
            context = ClientRequestContext(session=self._session, request_id=key)
            answer = await self._session.dispatch_input_request(context, request)
            if isinstance(answer, t.ErrorData):
                raise MCPError.from_error_data(answer)
            given[key] = answer
        return given

    async def _all(
        self, listing: Callable[..., Awaitable[Any]], part: str, fields: tuple[str, ...]
    ) -> tuple[Pinned, ...]:
        found: list[Pinned] = []
        cursor: str | None = None
        try:
            for _ in range(MAX_PAGES):
                page = await listing(params=t.PaginatedRequestParams(cursor=cursor))
                for item in getattr(page, part):
                    given = item.model_dump(by_alias=True, mode="json", exclude_none=True)
                    found.append(Pinned.of(given, fields))
                cursor = page.next_cursor
                if cursor is None:
                    return tuple(found)
                if len(found) > MAX_OFFERED:
                    break
        except MCPError as exc:
            if part != "tools" and exc.error.code == t.METHOD_NOT_FOUND:
                return tuple(found)
            said = self.loss.why or _quoted(exc)
            raise ServerFailed(f"the server {self.name} does not list its {part}: {said}") from None
        except (ValidationError, RuntimeError, ValueError):
            raise ServerFailed(
                f"the server {self.name} lists its {part} in a way that is not MCP's"
            ) from None
        raise ServerFailed(f"the server {self.name} lists more than {MAX_OFFERED} {part}")


@asynccontextmanager
async def open_live_server(
    transport: AbstractAsyncContextManager[Streams],
    name: str,
    loss: Loss,
    *,
    protocol: str = "",
    elicit: Elicit | None = None,
    on_changed: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[LiveServer]:
    """A session on a transport, in the protocol that was spoken when it was pinned, or whichever
    the server knows. ServerFailed if it does not answer as an MCP server does.
    """

    async def on_elicit(
        context: ClientRequestContext,  # noqa: ARG001 the SDK's words
        params: t.ElicitRequestParams,
    ) -> t.ElicitResult | t.ErrorData:
        if elicit is None or not isinstance(params, t.ElicitRequestFormParams):
            return t.ElicitResult(action="decline")
        given = await elicit(params.message, params.requested_schema)
        if given is None:
            return t.ElicitResult(action="decline")
        return t.ElicitResult.model_validate({"action": "accept", "content": given})

    async def on_message(message: object) -> None:
        if isinstance(message, t.ToolListChangedNotification) and on_changed is not None:
            await on_changed()

    async with transport as (read, write):
        session = _Session(
            read,
            write,
            elicitation_callback=on_elicit if elicit is not None else None,
            message_handler=on_message,
            client_info=INFO,
        )
        async with session:
            upstream = LiveServer(session, name, loss)
            await _greet(session, upstream, protocol)
            yield upstream


async def _greet(session: ClientSession, upstream: LiveServer, protocol: str) -> None:
    try:
        if protocol in HANDSHAKE_PROTOCOL_VERSIONS:
            await session.initialize()
        elif protocol:
            await _discover(session)
        else:
            await _find_out(session)
    except MCPError as exc:
        said = upstream.loss.why or _quoted(exc)
        raise ServerFailed(f"the server {upstream.name} does not speak MCP: {said}") from None
    except (RuntimeError, ValidationError, anyio.ClosedResourceError):
        raise ServerFailed(f"the server {upstream.name} does not speak MCP as we know it") from None


async def _find_out(session: ClientSession) -> None:
    """Greet a server of which it is not known what it speaks."""
    late = False
    try:
        await session.discover()
    except (RuntimeError, ValidationError):
        pass
    except MCPError as exc:
        late = exc.error.code == t.REQUEST_TIMEOUT
    else:
        return
    try:
        await session.initialize()  # a server of the years before
    except MCPError:
        if not late:
            raise
        await _discover(session)  # it had only been slow, and has heard the first greeting since


async def _discover(session: ClientSession) -> None:
    """Greet a server that is known to speak the newer protocol. The SDK waits for ten seconds, and
    a server may take as long to start as its server.yaml says; the caller of this keeps that time.
    """
    while True:
        try:
            await session.discover()
        except MCPError as exc:
            if exc.error.code != t.REQUEST_TIMEOUT:
                raise
        else:
            return


def _quoted(exc: MCPError) -> str:
    """What a server says of its error, so that it is not taken for our words."""
    return json.dumps(str(exc.error.message)[:MESSAGE_CHARS], ensure_ascii=False)
