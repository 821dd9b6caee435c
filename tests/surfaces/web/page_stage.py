"""The page on stage: one server, one browser, and runs that are written straight into the store."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from orchestrator.containers.owner import Owner
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.exchange import Approval, ApprovalBy, Question
from orchestrator.domain.result import FINAL, RunResult, RunStatus
from orchestrator.domain.task import Task
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.page_logins import PageLogins
from orchestrator.store.runs import Store
from tests.surfaces.mcp.mcp_stage import COMMAND, LISTENING, PATIENCE, Stage

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

SOON_MS = 30_000
"""For anything that the page should show; the machine may be busy."""

HOUR = 3600.0


def find_browser() -> str:
    """A Chromium of this machine (.ci/setup installs Debian's); skips the test if there is none."""
    named = os.environ.get("TEST_BROWSER", "")
    found = named or next(filter(None, map(shutil.which, BROWSERS)), "")
    if not found:
        pytest.skip("no Chromium is here to open the page in; install chromium, or name one in "
                    "TEST_BROWSER")  # fmt: skip
    return found


async def until(page: Page, holds: str, *values: Any) -> None:
    """Wait until an expression holds in the page; Playwright's own way needs `eval`, which the page
    does not allow.
    """
    with anyio.fail_after(PATIENCE):
        while not await page.evaluate(holds, *values):
            await anyio.sleep(0.02)


async def begin_run(page: Page, agent: str, prompt: str, **fields: object) -> str:
    """A real run, as a script of the page would begin it."""
    made = await page.evaluate(
        """async body => (await fetch("/v1/runs", {method: "POST", body: JSON.stringify(body),
            headers: {"Content-Type": "application/json",
                      "X-Orchestrator": localStorage["orchestrator.key"]}})).json()""",
        {"agent": agent, "prompt": prompt, **fields},
    )
    return str(made["run_id"])


class PageStage:
    """A server of the page, and ways to put runs before it."""

    def __init__(self, stage: Stage, store: Store, browser: Browser) -> None:
        self.stage = stage
        self.store = store
        self.exchanges = Exchanges(store)
        self.browser = browser
        self.url = ""
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.contexts: list[BrowserContext] = []
        self.made: list[str] = []
        self.complaints: list[str] = []

    # ---- The server

    async def start(self, **env: str) -> None:
        """Start the server, on the port that it had before."""
        with self.stage.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(  # noqa: ASYNC220 anyio's would leave a thread to a test
                [COMMAND, "serve", "--http", f"127.0.0.1:{self.port}"],
                env=self.stage.env | env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        with anyio.fail_after(PATIENCE):
            while not (said := LISTENING.search(self.stage.stderr.read_text())):
                assert self.process.poll() is None, self.stage.stderr.read_text()
                await anyio.sleep(0.05)
        self.url = said[1].removesuffix("/mcp")
        self.port = int(self.url.rpartition(":")[2])

    async def stop(self, *, kill: bool = False) -> None:
        assert self.process is not None
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        await anyio.to_thread.run_sync(partial(self.process.wait, PATIENCE))

    # ---- The browser

    async def context(self, **options: Any) -> BrowserContext:
        """A browser of its own: no cookie, nothing kept."""
        context = await self.browser.new_context(
            **{"viewport": {"width": 1180, "height": 760}, "reduced_motion": "reduce"} | options
        )
        context.set_default_timeout(SOON_MS)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("console", lambda said: self._heard(said.type, said.text))
        self.contexts.append(context)
        return context

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error" and "Failed to load resource" not in text and "net::ERR" not in text:
            self.complaints.append(text)

    async def link(self) -> str:
        """What `orchestrator dashboard` prints."""
        logins = PageLogins(self.store.database, self.stage.settings.project)
        return f"{self.url}/#code={await logins.new_code()}"

    async def opened(self, where: str = "waiting", **options: Any) -> Page:
        """The page in a browser of its own, signed in, at a view."""
        context = await self.context(**options)
        page = await context.new_page()
        await page.goto(await self.link())
        await page.wait_for_selector("nav.rail")
        await self.go(page, where)
        return page

    async def tab(self, page: Page, where: str = "waiting") -> Page:
        """Another tab of the same browser."""
        other = await page.context.new_page()
        await other.goto(f"{self.url}/#/{where}")
        await other.wait_for_selector("nav.rail")
        return other

    async def go(self, page: Page, where: str) -> None:
        await page.evaluate("where => { location.hash = `#/${where}`; }", where)
        await page.wait_for_selector("main .view h1")

    # ---- Runs

    async def run(
        self,
        agent: str,
        *events: tuple[EventKind, str] | tuple[EventKind, str, dict[str, object]],
        status: RunStatus = "running",
        parent: str = "",
        prompt: str = "Do it.",
        result: dict[str, Any] | None = None,
        **task: Any,
    ) -> str:
        """A run with these events, a second apart and the last of them now."""
        made = Task(
            agent=agent,
            prompt=prompt,
            caller=task.pop("caller", "main"),
            project=self.stage.settings.project,
            parent_run_id=parent,
            depth=1 if parent else 0,
            **task,
        )
        await self.store.add_run(made)
        self.made.append(made.run_id)
        if status != "pending":
            await self.store.set_status(made.run_id, "running")
        await self.happen(made.run_id, *events)
        if status in FINAL:
            await self.end(made.run_id, agent, status, **result or {})
        return made.run_id

    async def happen(
        self,
        run_id: str,
        *events: tuple[EventKind, str] | tuple[EventKind, str, dict[str, object]],
        apart: float = 1.0,
    ) -> None:
        known = (await self.store.versions([run_id]))[run_id][1]
        began = time.time() - apart * len(events)
        rows = [
            Event(
                run_id=run_id,
                seq=known + number,
                at=began + apart * number,
                kind=event[0],
                text=event[1],
                data=event[2] if len(event) == 3 else {},
            )
            for number, event in enumerate(events, 1)
        ]
        await self.store.add_events(rows)

    async def end(
        self, run_id: str, agent: str, status: RunStatus = "completed", **fields: Any
    ) -> None:
        known = (await self.store.versions([run_id]))[run_id][1]
        reason = fields.pop("reason", "ok" if status == "completed" else "cancelled")
        result = RunResult(
            run_id=run_id, agent=agent, caller="main", status=status, reason=reason, **fields
        )
        data: dict[str, object] = {"status": status, "reason": reason}
        last = Event(
            run_id=run_id, seq=known + 1, at=time.time(), kind="ended", text=status, data=data
        )
        assert await self.store.finish(result, [last])

    async def ask(
        self, run_id: str, question: str, default: str = "", seconds: float = HOUR
    ) -> str:
        message_id = f"m{len(self.made)}{time.time_ns()}"
        now = time.time()
        await self.exchanges.ask(
            Question(
                message_id=message_id,
                run_id=run_id,
                question=question,
                asked=now,
                deadline=now + seconds,
                default_answer=default,
            )
        )
        await self.store.set_status(run_id, "waiting_parent_reply")
        await self.happen(run_id, ("asked", question, {"message_id": message_id}), apart=0)
        return message_id

    async def want(
        self,
        run_id: str,
        tool: str,
        input: dict[str, object],  # noqa: A002 as the store calls it
        by: ApprovalBy = "user",
    ) -> str:
        call_id = f"c{time.time_ns()}"
        now = time.time()
        await self.exchanges.request(
            Approval(
                call_id=call_id,
                run_id=run_id,
                tool=tool,
                input=input,
                asked=now,
                deadline=now + HOUR,
                approval_by=by,
            )
        )
        await self.store.set_status(run_id, "paused")
        data: dict[str, object] = {"call_id": call_id, "tool": tool, "input": input}
        await self.happen(run_id, ("approval_asked", tool, data), apart=0)
        return call_id

    async def many_runs(self, count: int) -> list[str]:
        """Ended runs, at once."""
        now = time.time()
        ids = [f"r{number:010x}" for number in range(count)]
        rows = []
        for number, run_id in enumerate(ids):
            agent = f"agent{number % 7}"
            task = Task(
                run_id=run_id,
                agent=agent,
                prompt=f"Task number {number}",
                caller="main",
                project=self.stage.settings.project,
            )
            result = RunResult(
                run_id=run_id, agent=agent, caller="main", status="completed", reason="ok",
                cost_usd=0.01, family_usd=0.01,
            )  # fmt: skip
            at = now - HOUR - (count - number)
            rows.append((run_id, task.project, agent, task.model_dump_json(), at, at + 1,
                         result.model_dump_json()))  # fmt: skip
        sql = (
            "INSERT INTO runs (run_id, project, agent, caller, window, depth, status, reason, "
            "owner, task, created, ended, result) "
            "VALUES (?, ?, ?, 'main', '', 0, 'completed', 'ok', '', ?, ?, ?, ?)"
        )
        await self.store.database.atomically(lambda db: db.executemany(sql, rows))
        self.made += ids
        return ids

    async def tidy(self) -> None:
        """As it was before the test: no run, no tab."""
        for context in self.contexts:
            await context.close()
        self.contexts.clear()
        for first in range(0, len(self.made), 500):
            await self.store.remove(self.made[first : first + 500])
        self.made.clear()
        complaints, self.complaints = self.complaints, []
        assert complaints == []


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_browser(), args=["--disable-gpu", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page_stage(stage: Stage) -> AsyncIterator[PageStage]:
    """A server with the page, a browser, and a store that both share."""
    with Owner(stage.settings.state_dir) as owner:
        store = Store(stage.settings.state_dir / "runs.sqlite", owner.id)
        try:
            async with open_browser() as browser:
                opened = PageStage(stage, store, browser)
                await opened.start()
                try:
                    yield opened
                finally:
                    await opened.stop()
        finally:
            store.close()
