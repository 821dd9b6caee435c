"""A client that knows only the document that describes sessions, and the repository behind it."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx

PATIENCE = 30

Said = dict[str, Any]


class SessionEvents:
    """Its stream of events, read as the repository's own client does."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last_id = ""
        self.seen: list[tuple[str, Said]] = []

    async def next(self) -> tuple[str, Said]:
        """The next event: its variant and what it says."""
        name, data = "", ""
        with anyio.fail_after(PATIENCE):
            async for line in self._lines:
                if not line:
                    said = json.loads(data) if data else {}
                    if isinstance(said.get("event"), dict):
                        ((variant, payload),) = said["event"].items()
                        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in variant)
                        assert name == snake.strip("_")
                        assert str(uuid.UUID(said["run_id"])) == payload["run_id"]
                        self.seen.append((variant, payload))
                        return variant, payload
                    if name == "gap_detected":
                        return name, said
                    name, data = "", ""
                    continue
                key, _, value = line.partition(":")
                name = value.strip() if key == "event" else name
                data = value.strip() if key == "data" else data
                self.last_id = value.strip() if key == "id" else self.last_id
        raise EOFError

    async def until(self, *variants: str) -> Said:
        while True:
            name, said = await self.next()
            if name in variants:
                return said

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]


class SessionClient:
    """Every verb of the document."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def call(self, method: str, path: str, body: Said | None = None, **more: Any) -> Said:
        answer = await self._http.request(method, f"/v1/{path}", json=body, **more)
        assert answer.status_code < 300, (path, answer.text)
        found: Said = answer.json() if answer.content else {}
        return found

    async def refused(self, method: str, path: str, body: Said | None = None) -> tuple[int, str]:
        answer = await self._http.request(method, f"/v1/{path}", json=body)
        said = answer.json()
        assert said["error"]
        assert said["request_id"]
        return answer.status_code, said["code"]

    async def create(self, title: str = "a task", **more: object) -> str:
        made = await self.call("POST", "sessions", {"title": title, **more})
        return str(uuid.UUID(made["id"]))

    async def send(self, session: str, text: str, **more: object) -> str:
        body = {"message": {"role": "user", "content": text}, **more}
        run_id: str = (await self.call("POST", f"sessions/{session}/messages", body))["run_id"]
        return str(uuid.UUID(run_id))

    async def state(self, session: str) -> str:
        found = await self.call("GET", f"sessions/{session}")
        return str(found["session"]["run_status"]["state"])

    async def pending(self, session: str) -> list[Said]:
        found: list[Said] = (await self.call("GET", f"sessions/{session}/tools/pending"))[
            "tool_calls"
        ]
        return found

    async def decide(self, session: str, run_id: str, **made: Said) -> None:
        body = {"run_id": run_id, "decisions": made}
        await self.call("POST", f"sessions/{session}/tools/decisions", body)

    @asynccontextmanager
    async def events(self, session: str, last_id: str = "") -> AsyncIterator[SessionEvents]:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        path = f"/v1/sessions/{session}/events"
        async with self._http.stream("GET", path, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield SessionEvents(answer.aiter_lines())
