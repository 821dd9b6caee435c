"""The page and its stream of events: one for a browser, over restarts, for the right version."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, Request, Route, expect

from tests.surfaces.web.page_stage import PageStage
from tests.surfaces.web.test_runs_view import request_of, row

pytestmark = pytest.mark.anyio


def streams(page: Page) -> list[str]:
    """Addresses of streams that this browser's tabs open from now on."""
    found: list[str] = []

    def see(request: Request) -> None:
        if request.url.endswith("/v1/events"):
            found.append(request.url)

    page.context.on("request", see)
    return found


async def test_three_tabs_share_a_stream_and_the_next_goes_on_with_it(on_page: PageStage) -> None:
    run = await on_page.run("shared")
    first = await on_page.opened("runs")
    opened = streams(first)
    second, third = await on_page.tab(first, "runs"), await on_page.tab(first, "runs")
    await on_page.happen(run, ("text", "heard by all"))
    for page in (first, second, third):
        await expect(row(page, run).locator(".now")).to_contain_text("heard by all")
    assert opened == []
    await first.close()
    await on_page.happen(run, ("text", "heard by those left"), ("model_request", "", request_of(1)))
    for page in (second, third):
        await expect(row(page, run).locator(".now")).to_contain_text("heard by those left")
        await expect(row(page, run).locator(".cost")).to_have_text("$1.00")
    assert len(opened) == 1


async def test_a_page_without_locks_has_a_stream_of_its_own(on_page: PageStage) -> None:
    run = await on_page.run("alone")
    context = await on_page.context()
    await context.add_init_script("delete Navigator.prototype.locks")
    page = await context.new_page()
    await page.goto(await on_page.link())
    await page.wait_for_selector("nav.rail")
    await on_page.go(page, "runs")
    await on_page.happen(run, ("text", "heard anyway"))
    await expect(row(page, run).locator(".now")).to_contain_text("heard anyway")


async def test_a_server_restarted_under_the_page_loses_it_nothing(on_page: PageStage) -> None:
    run = await on_page.run("survivor", ("text", "before"))
    page = await on_page.opened(f"run/{run}/events")
    await expect(page.get_by_text("before", exact=True)).to_be_visible()
    connection = page.locator(".connection")
    await expect(connection).to_have_text("live")
    await on_page.stop(kill=True)
    await expect(connection).to_have_text("reconnecting …")
    await on_page.happen(run, ("text", "meanwhile"), ("model_request", "", request_of(0.5)))
    await on_page.start()
    await expect(connection).to_have_text("live")
    await expect(page.get_by_text("meanwhile", exact=True)).to_be_visible()
    await on_page.happen(run, ("text", "after"))
    await expect(page.get_by_text("after", exact=True)).to_be_visible()
    said = await page.locator(".event .said").all_inner_texts()
    assert [text for text in said if text in ("before", "meanwhile", "after")] == [
        "before", "meanwhile", "after",
    ]  # fmt: skip
    await on_page.go(page, "runs")
    await expect(row(page, run).locator(".cost")).to_have_text("$0.50")


async def test_the_page_reloads_itself_once_for_a_server_of_another_version(
    on_page: PageStage,
) -> None:
    page = await on_page.opened("runs")
    loads: list[str] = []
    page.on("load", lambda _: loads.append("load"))

    async def another(route: Route) -> None:
        await route.fulfill(json={"page": "another"})

    await page.route("**/assets/current", another)
    async with page.expect_event("load"):
        await on_page.stop(kill=True)
        await on_page.start()
    await expect(page.locator(".connection")).to_have_text("live")
    await expect(page.locator("nav.rail")).to_be_visible()
    assert loads == ["load"]
