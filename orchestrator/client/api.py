"""The verbs of `/v1`, typed. What may be asked twice is asked again while the server restarts."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
import httpx2
from pydantic import BaseModel, ValidationError

from orchestrator.client.connection import ServerConnection, sse
from orchestrator.client.documents import (
    RemoteAgent,
    RemoteEvent,
    RemoteRow,
    RemoteRun,
    RemoteUpload,
    WaitingWord,
    WhoAmI,
)
from orchestrator.client.packing import PackedTree
from orchestrator.errors import (
    ApplyRefused,
    AskedBefore,
    NotReady,
    OperatorError,
    RunNotFound,
    RunRefused,
    ServerAway,
    WorkspaceNotFound,
)
from orchestrator.workspace.archives.kept_changes import ARCHIVE_BYTES, take_changes
from orchestrator.workspace.changes.collected import Changes
from orchestrator.workspace.kept import RUN_ID

WAIT_SECONDS = 25
"""That one request waits for a run: less than what lies between may."""

PAGE_RUNS = 200
PAGE_EVENTS = 1000

SENT_BYTES = 256 * 1024
"""Of an upload at once."""

UPLOAD_ANSWER_SECONDS = 600.0
"""For the server to unpack it."""

DONE_SECONDS = 1800.0
"""For what was asked for to be done: an image may have to be built first."""

RESUME_SECONDS = 0.5
"""Before a stream of events that has ended is asked for again."""

STREAM_SECONDS = 45.0
"""Without a word on a stream of events: the server says something every 15 s."""

M = TypeVar("M", bound=BaseModel)

Say = Callable[[str], Awaitable[None]]


@asynccontextmanager
async def open_client(url: str, token: str = "") -> AsyncIterator[OrchestratorClient]:
    """A client of the orchestrator at this address."""
    connection = ServerConnection(url, token)
    try:
        yield OrchestratorClient(connection)
    finally:
        await connection.aclose()


class OrchestratorClient:
    """One caller's view of an orchestrator elsewhere."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection

    @property
    def url(self) -> str:
        return self.connection.url

    # Runs

    async def start(
        self,
        agent: str,
        prompt: str,
        *,
        context: str = "",
        workspace: str = "",
        session: str = "",
        timeout_seconds: float | None = None,
        key: str = "",
        say: Say | None = None,
    ) -> RemoteRun:
        """Begin a run. `workspace` is the id of an upload, or a path on the server's machine. The
        same `key` again is the same run; without one, each call is a run of its own. `say` is told
        if it takes a while.
        """
        body = {
            "agent": agent,
            "prompt": prompt,
            "context": context,
            "workspace": workspace,
            "session": session,
            "timeout_ms": None if timeout_seconds is None else int(timeout_seconds * 1000),
        }
        return await self._post("/v1/runs", body, RemoteRun, key, say)

    async def run(self, agent: str, prompt: str, **wishes: Any) -> RemoteRun:
        """Begin a run and wait until it has ended, or asks something."""
        begun = await self.start(agent, prompt, **wishes)
        return await self.wait(begun.run_id)

    async def get(self, run_id: str, *, wait_seconds: int = 0) -> RemoteRun:
        headers = {"Prefer": f"wait={wait_seconds}"} if wait_seconds else {}
        return await self._get(f"/v1/runs/{_part(run_id)}", RemoteRun, headers=headers)

    async def wait(self, run_id: str, seconds: float = inf) -> RemoteRun:
        """A run when it has ended, or asks something, or when the time is over."""
        deadline = anyio.current_time() + seconds
        while True:
            left = max(0.0, min(deadline - anyio.current_time(), WAIT_SECONDS))
            run = await self.get(run_id, wait_seconds=int(left))
            if run.has_ended or run.asks or anyio.current_time() + 1 > deadline:
                return run
            if left < 1:
                await anyio.sleep(left)

    async def runs(
        self,
        *,
        status: Sequence[str] = (),
        agent: str = "",
        parent: str = "",
        roots: bool = False,
        limit: int = 50,
    ) -> list[RemoteRow]:
        """The newest first."""
        wanted: dict[str, Any] = {"status": list(status), "agent": agent, "parent": parent}
        wanted["roots"] = "true" if roots else ""
        params = {name: value for name, value in wanted.items() if value}
        found: list[RemoteRow] = []
        while len(found) < limit:
            params["limit"] = min(limit - len(found), PAGE_RUNS)
            page = await self._json("/v1/runs", params=params)
            items = _items(page)
            found += [_read(RemoteRow, each) for each in items]
            if not (items and page.get("next_cursor")):
                break
            params["cursor"] = page["next_cursor"]
        return found

    async def cancel(self, run_id: str, seconds: float = inf) -> RemoteRun:
        """End a run; as it is when it has ended, or when the time is over."""
        path = f"/v1/runs/{_part(run_id)}/cancel"
        run = await self._post(path, None, RemoteRun)
        deadline = anyio.current_time() + seconds
        while not run.has_ended and anyio.current_time() < deadline:
            run = await self.wait(run_id, deadline - anyio.current_time())
            if run.asks and not run.has_ended:  # it has not heard yet
                await anyio.sleep(RESUME_SECONDS)
        return run

    async def tell(self, run_id: str, text: str, *, now: bool = False) -> str:
        """Tell an agent something; the run that hears it, which is a new one if this has ended."""
        path = f"/v1/runs/{_part(run_id)}/input"
        said = await self._posted(path, {"text": text, "now": now})
        return str(said.get("run_id", ""))

    # Questions and approvals

    async def inbox(self) -> list[WaitingWord]:
        """What waits for a word, the oldest first."""
        said = await self._json("/v1/inbox")
        return [_read(WaitingWord, each) for each in _items(said)]

    async def answer(self, run_id: str, message_id: str, answer: str) -> RemoteRun:
        path = f"/v1/runs/{_part(run_id)}/questions/{_part(message_id)}"
        return await self._post(path, {"answer": answer}, RemoteRun)

    async def decide(self, run_id: str, decisions: Mapping[str, Mapping[str, Any]]) -> RemoteRun:
        """Call id -> `{"action": "approve" or "reject", "input"?, "why"?}`."""
        path = f"/v1/runs/{_part(run_id)}/approvals"
        return await self._post(path, {"decisions": decisions}, RemoteRun)

    async def approve(self, run_id: str, *call_ids: str) -> RemoteRun:
        return await self.decide(run_id, {each: {"action": "approve"} for each in call_ids})

    async def reject(self, run_id: str, *call_ids: str, why: str = "") -> RemoteRun:
        no = {"action": "reject", "why": why} if why else {"action": "reject"}
        return await self.decide(run_id, dict.fromkeys(call_ids, no))

    # Events

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[RemoteEvent]:
        """What happens in a run, until it has ended; each event once, in order, whatever becomes of
        the server meanwhile. RunRefused if events have been removed in between.
        """
        async for event in self._followed(f"/v1/runs/{_part(run_id)}/events", after):
            yield event

    async def all_events(self, after: int | None = None) -> AsyncIterator[RemoteEvent]:
        """The same of all runs, from now on or after an event, for ever."""
        async for event in self._followed("/v1/events", after):
            yield event

    async def past_events(self, run_id: str, after: int = 0) -> list[RemoteEvent]:
        """What has happened in a run so far. RunRefused if the server never had `after`."""
        path, found = f"/v1/runs/{_part(run_id)}/events", list[RemoteEvent]()
        while True:
            params = {"after": after, "limit": PAGE_EVENTS}
            page = await self._json(path, params=params)
            if page.get("gap"):
                raise RunRefused(f"events were removed before they were read: {page['gap']}")
            items = [_read(RemoteEvent, each) for each in _items(page)]
            found += items
            if len(items) < PAGE_EVENTS or items[-1].id <= after:
                return found
            after = items[-1].id

    async def _followed(self, path: str, after: int | None) -> AsyncIterator[RemoteEvent]:
        cursor = after
        while True:
            try:
                async for frame in self._frames(path, cursor):
                    if frame.event in ("end", "hello"):
                        if frame.event == "end":
                            return
                        cursor = _newest(frame) if cursor is None else cursor
                    elif frame.event == "gap_detected":
                        raise RunRefused(f"events were removed before they were read: {frame.data}")
                    elif frame.data:
                        event = _read(RemoteEvent, _said_in(frame))
                        cursor = event.id
                        yield event
            except ServerAway:
                await self.connection.patiently(self.health)
            await anyio.sleep(RESUME_SECONDS)

    async def _frames(self, path: str, cursor: int | None) -> AsyncIterator[httpx2.ServerSentEvent]:
        """Those of one stream; a run that had ended by then has one that says so."""
        headers = {"Accept": "text/event-stream"}
        if cursor:
            headers["Last-Event-ID"] = str(cursor)
        async with self.connection.stream(
            "GET", path, headers=headers, seconds=STREAM_SECONDS
        ) as response:
            if response.status_code == 204:
                yield httpx2.ServerSentEvent(event="end")
            elif response.status_code == 200:
                async for frame in sse(response):
                    yield frame
            else:
                await self.connection.read(response)

    # Workspaces and changes

    async def upload(self, packed: PackedTree) -> RemoteUpload:
        """Send a workspace, unless the server has it already."""
        try:
            return await self._get(f"/v1/workspaces/{packed.workspace}", RemoteUpload)
        except WorkspaceNotFound:
            return await self.connection.patiently(partial(self._send, packed))

    async def _send(self, packed: PackedTree) -> RemoteUpload:
        async def pieces() -> AsyncIterator[bytes]:
            async with await anyio.open_file(packed.file, "rb") as file:
                while piece := await file.read(SENT_BYTES):
                    yield piece

        response = await self.connection.request(
            "POST",
            "/v1/workspaces",
            headers={"Content-Type": "application/gzip"},
            content=pieces(),
            seconds=UPLOAD_ANSWER_SECONDS,
        )
        upload = _read(RemoteUpload, response.json())
        if upload.workspace != packed.workspace:
            raise OperatorError(
                f"the orchestrator at {self.url} received another workspace than was sent; try "
                "again"
            )
        return upload

    async def remove_upload(self, workspace: str) -> None:
        await self.connection.request("DELETE", f"/v1/workspaces/{_part(workspace)}")

    async def patch(self, run_id: str) -> bytes:
        """What a run changed, as `git apply` takes it."""
        path = f"/v1/runs/{_part(run_id)}/patch"
        ask = partial(self.connection.request, "GET", path)
        return (await self.connection.patiently(ask)).content

    @asynccontextmanager
    async def changes(self, run_id: str) -> AsyncIterator[Changes]:
        """What a run changed, on this disk for as long as the block lasts."""
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            yield await self.fetch_changes(run_id, Path(folder))

    async def fetch_changes(self, run_id: str, folder: Path) -> Changes:
        """What a run changed, kept in this folder."""
        if not RUN_ID.fullmatch(run_id):  # it becomes a path
            raise RunNotFound(f"{run_id[:60]!r} is no run")
        archive = folder / "changes.tar"
        fetch = partial(self._fetch, f"/v1/runs/{run_id}/changes", archive)
        await self.connection.patiently(fetch)
        return await anyio.to_thread.run_sync(partial(_taken, archive, folder / run_id))

    async def _fetch(self, path: str, archive: Path) -> None:
        async with self.connection.stream("GET", path) as response:
            if response.status_code != 200:
                await self.connection.read(response)
            size = 0
            async with await anyio.open_file(archive, "wb") as file:
                async for piece in response.aiter_raw():
                    size += len(piece)
                    if size > ARCHIVE_BYTES:
                        raise ApplyRefused(f"{self.url} sends more changes than a run can make")
                    await file.write(piece)

    # The server

    async def health(self) -> dict[str, Any]:
        return dict(_json_of(await self.connection.request("GET", "/v1/health")))

    async def me(self) -> WhoAmI:
        return await self._get("/v1/me", WhoAmI)

    async def agents(self) -> list[RemoteAgent]:
        said = await self._json("/v1/agents")
        return [_read(RemoteAgent, each) for each in _items(said)]

    async def agent(self, name: str) -> RemoteAgent:
        return await self._get(f"/v1/agents/{_part(name)}", RemoteAgent)

    async def plan(self, name: str, *, rows: str = "") -> dict[str, Any]:
        """As `orchestrator plan --json` has it; with `rows`, also as it prints it."""
        params = {"rows": rows} if rows else None
        return dict(await self._json(f"/v1/agents/{_part(name)}/plan", params=params))

    async def cost(self, **params: Any) -> dict[str, Any]:
        return dict(await self._json("/v1/cost", params=params))

    async def audit(self, **params: Any) -> dict[str, Any]:
        return dict(await self._json("/v1/audit", params=params))

    # Requests

    async def _json(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        ask = partial(self.connection.request, "GET", path, params=params, headers=headers)
        return _json_of(await self.connection.patiently(ask))

    async def _get(
        self, path: str, model: type[M], *, headers: Mapping[str, str] | None = None
    ) -> M:
        return _read(model, await self._json(path, headers=headers))

    async def _posted(self, path: str, body: Any, key: str = "", say: Say | None = None) -> Any:
        """Under a key, so that it is done once however often it is asked for: also again while the
        server is still at it.
        """
        headers = {"Idempotency-Key": key or token_hex(16)}
        ask = partial(self.connection.request, "POST", path, headers=headers, json=body)
        give_up, said = anyio.current_time() + DONE_SECONDS, False
        while True:
            try:
                return _json_of(await self.connection.patiently(ask))
            except (NotReady, AskedBefore) as exc:
                if anyio.current_time() + exc.retry_seconds > give_up:
                    raise
                pause = exc.retry_seconds
            if say is not None and not said:
                await say(f"{self.url} is not ready yet, and is asked again until it is")
            said = True
            await anyio.sleep(pause)

    async def _post(
        self, path: str, body: Any, model: type[M], key: str = "", say: Say | None = None
    ) -> M:
        return _read(model, await self._posted(path, body, key, say))


def _taken(archive: Path, folder: Path) -> Changes:
    def pieces() -> Iterable[bytes]:
        with archive.open("rb") as file:
            while piece := file.read(SENT_BYTES):
                yield piece

    return take_changes(pieces(), folder)


def _json_of(response: httpx2.Response) -> dict[str, Any]:
    try:
        said = response.json()
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise OperatorError(
            f"{response.url.host} answers, but not as an orchestrator does; is the address right?"
        )
    return said


def _items(page: Mapping[str, Any]) -> list[Any]:
    items = page.get("items")
    if not isinstance(items, list):
        raise OperatorError("the server's list is none; is it of another version?")
    return items


def _said_in(frame: httpx2.ServerSentEvent) -> Any:
    """What a server-sent event says; None for what is no JSON."""
    try:
        return frame.json()
    except (ValueError, RecursionError):
        return None


def _read(model: type[M], said: object) -> M:
    try:
        return model.model_validate(said)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise OperatorError(
            f"the server's answer is not understood ({where}: {first['msg']}); is it of another "
            "version?"
        ) from exc


def _newest(frame: httpx2.ServerSentEvent) -> int | None:
    said = _said_in(frame)
    newest = said.get("newest_event_id") if isinstance(said, dict) else None
    return newest if isinstance(newest, int) else None


def _part(text: str) -> str:
    """A text as one part of a path: nothing in it leads to another route."""
    return quote(text, safe="") if text not in (".", "..") else quote(text).replace(".", "%2E")
