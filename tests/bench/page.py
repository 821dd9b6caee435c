"""The page: what a browser fetches to show it, and how soon it shows a run out of ten thousand."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from playwright.async_api import Response

from tests.bench.row import Row, Target
from tests.bench.stage import Stage
from tests.surfaces.mcp.mcp_stage import on_stage
from tests.surfaces.web.page_stage import PageStage, open_page_stage

RUNS = 10_000

FIRST_ROW = """() => new Promise(told => {
    const look = () => document.querySelector("virtual-list .run")
        ? requestAnimationFrame(() => told(performance.now())) : requestAnimationFrame(look);
    look();
})"""
"""Milliseconds from the beginning of the navigation to a frame with a row in it."""


async def page(stage: Stage) -> tuple[Row, ...]:
    """The first visit of a browser that knows nothing, and the next one."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            on_stage(Path(folder), stage.image) as served,
            open_page_stage(served) as on_page,
        ):
            await on_page.many_runs(RUNS)
            first, again = [], []
            for _ in range(stage.times(10, 3)):
                once = await _visited(on_page)
                first.append(once[0])
                again.append(once[1])
            size, requests = await _fetched(on_page)
            await on_page.tidy()
    limit = Target(of="ours", how="<", value=1000)
    first_row = f"the page, to the first of {RUNS:,} runs"
    return (
        Row(name="the page, first visit: its files, packed", unit="kB", ours=size / 1000),
        Row(name="the page, first visit: files fetched", unit="files", ours=requests),
        Row(name=first_row, unit="ms", ours=statistics.median(first), target=limit),
        Row(name=f"{first_row}, next visit", unit="ms", ours=statistics.median(again)),
    )


async def _visited(on_page: PageStage) -> tuple[float, float]:
    """Milliseconds to the first row: a browser that has nothing, and the same once more."""
    opened = await on_page.opened("runs")
    logged_in = await opened.context.storage_state()
    await opened.context.close()
    on_page.contexts.clear()
    context = await on_page.context(storage_state=logged_in)
    tab = await context.new_page()
    times = []
    for _ in range(2):
        await tab.goto(f"{on_page.url}/#/runs", wait_until="commit")
        times.append(float(await tab.evaluate(FIRST_ROW)))
        await tab.goto("about:blank")
    await context.close()
    on_page.contexts.clear()
    return times[0], times[1]


async def _fetched(on_page: PageStage) -> tuple[int, int]:
    """Bytes on the line, and requests, for the page's own files."""
    context = await on_page.context()
    tab = await context.new_page()
    seen: list[Response] = []

    def see(response: Response) -> None:
        seen.append(response)

    tab.on("response", see)
    await tab.goto(await on_page.link())
    await tab.wait_for_selector("nav.rail")
    ours = [each for each in seen if "/v1/" not in each.url]
    sizes = [(await each.request.sizes())["responseBodySize"] for each in ours]
    return sum(sizes), len(ours)
