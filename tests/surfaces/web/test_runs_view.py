"""The page, runs: a tree that lives, in a real browser."""

from __future__ import annotations

import time

import pytest
from playwright.async_api import Locator, Page, expect

from orchestrator.domain.events import Event
from orchestrator.domain.result import Usage
from tests.surfaces.web.page_stage import PageStage, until

pytestmark = pytest.mark.anyio

RUNS = 10_000

MOST_ROWS = 60
"""Elements for rows, whatever their number."""


def request_of(cost: float, *, tokens: int = 1000) -> dict[str, object]:
    used = {"input_tokens": tokens, "output_tokens": 100, "cost_usd": cost}
    return {"status": 200, "model": "claude-sonnet-5-5", "duration_ms": 10, **used}


def row(page: Page, run_id: str) -> Locator:
    return page.locator("virtual-list .run", has=page.locator("small", has_text=run_id))


async def test_runs_are_a_tree_and_no_cost_counts_twice(on_page: PageStage) -> None:
    parent = await on_page.run("boss", ("model_request", "", request_of(0.5)))
    child = await on_page.run("helper", ("model_request", "", request_of(0.25)), parent=parent)
    fields = {"cost_usd": 0.1, "family_usd": 0.1, "usage": Usage(requests=3)}
    await on_page.run("done", status="completed", parent=child, result=fields)
    page = await on_page.opened("runs")
    await expect(page.locator("virtual-list .run")).to_have_count(3)
    names = await page.locator("virtual-list .run b").all_inner_texts()
    assert names == ["boss", "helper", "done"]
    await expect(row(page, parent).locator(".cost")).to_have_text("$0.50")
    await expect(row(page, parent).locator(".family")).to_have_text("$0.85")
    await expect(row(page, child).locator(".family")).to_have_text("$0.35")
    await row(page, parent).get_by_role("button", name="Hide").click()
    await expect(page.locator("virtual-list .run")).to_have_count(1)
    await expect(row(page, parent).locator(".family")).to_have_text("$0.85")


async def test_a_run_is_live(on_page: PageStage) -> None:
    page = await on_page.opened("runs")
    run = await on_page.run("lively", ("queued", "lively for main"), status="pending")
    await expect(row(page, run).locator(".status")).to_have_text("queued")
    await on_page.store.set_status(run, "running")
    await on_page.happen(run, ("starting", "a container"), ("tool_call", "Bash make", {"id": "1"}))
    await expect(row(page, run).locator(".status")).to_have_text("running")
    await expect(row(page, run).locator(".now")).to_have_text("usesBash make")
    await on_page.happen(run, ("model_request", "", request_of(0.02, tokens=2400)))
    await expect(row(page, run).locator(".tokens")).to_have_text("2.5k")
    await expect(row(page, run).locator(".turns")).to_have_text("1")
    await expect(row(page, run).locator(".cost")).to_have_text("$0.0200")
    await on_page.ask(run, "Which?")
    await expect(row(page, run).locator(".status")).to_have_text("question")
    await on_page.end(run, "lively", cost_usd=0.03, family_usd=0.03)
    await expect(row(page, run).locator(".status")).to_have_text("completed")
    await expect(row(page, run).locator(".cost")).to_have_text("$0.0300")


async def test_a_run_that_does_nothing_for_a_minute_is_marked(on_page: PageStage) -> None:
    stalled, busy = await on_page.run("stalled"), await on_page.run("busy")
    old = time.time() - 90
    event = Event(
        run_id=stalled, seq=1, at=old, kind="tool_call", text="Bash sleep", data={"id": "1"}
    )
    await on_page.store.add_events([event])
    await on_page.happen(busy, ("text", "at work"))
    page = await on_page.opened("runs")
    await expect(row(page, stalled).locator(".status em")).to_have_text("stalled")
    await expect(row(page, busy).locator(".status em")).to_have_count(0)
    await on_page.happen(stalled, ("text", "there again"))
    await expect(row(page, stalled).locator(".status em")).to_have_count(0)


async def test_the_filter_finds_runs_by_agent_status_and_words(on_page: PageStage) -> None:
    failed = await on_page.run("mason", prompt="Build a wall", status="failed")
    await on_page.run("mason", prompt="Build a roof", status="completed")
    await on_page.run("baker", prompt="Bake a wall of bread", status="completed")
    page = await on_page.opened("runs")
    rows = page.locator("virtual-list .run")
    await expect(rows).to_have_count(3)
    await page.keyboard.press("/")
    await page.keyboard.type("agent:mason")
    await expect(rows).to_have_count(2)
    await page.keyboard.type(" status:failed")
    await expect(rows).to_have_count(1)
    assert failed in await rows.inner_text()
    await page.get_by_label("Filter runs").fill("wall")
    await expect(rows).to_have_count(2)
    await page.get_by_label("Filter runs").fill("status:sleeping")
    await expect(page.locator(".toast.bad")).to_contain_text("there is no status 'sleeping'")
    await page.get_by_label("Filter runs").fill("")
    await expect(rows).to_have_count(3)


async def test_ten_thousand_runs_are_scrolled_through_with_few_elements(
    on_page: PageStage,
) -> None:
    ids = await on_page.many_runs(RUNS)
    page = await on_page.opened("runs")
    rows = page.locator("virtual-list .run")
    await expect(row(page, ids[-1])).to_be_visible()
    for _ in range(3):  # the next page comes when the end comes into sight
        before = await page.evaluate("document.querySelector('virtual-list').count")
        await page.evaluate("document.querySelector('virtual-list').toEnd()")
        await until(page, "n => document.querySelector('virtual-list').count > n", before)
    assert before >= 300
    assert await rows.count() <= MOST_ROWS
    await page.get_by_label("Filter runs").fill("agent:agent3")
    await expect(rows.first).to_contain_text("agent3")


async def test_runs_are_walked_with_the_keyboard(on_page: PageStage) -> None:
    await on_page.run("older", status="completed")
    newer = await on_page.run("newer", status="completed")
    page = await on_page.opened("waiting")
    await page.keyboard.press("2")
    await expect(page.locator("virtual-list .run")).to_have_count(2)
    for key in ("j", "j", "k"):
        await page.keyboard.press(key)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text(newer)
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("tab", selected=True)).to_have_text("Changes")
