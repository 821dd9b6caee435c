"""The other views of the page; and all of them for keyboards, screen readers and small screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from orchestrator.domain.result import ChangedFile
from tests.npm_packages import npm_commands
from tests.surfaces.web.page_stage import PageStage, until

pytestmark = pytest.mark.anyio

AXE = Path(__file__).parent / "axe"

PATCH = """\
diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt
@@ -1 +1 @@
-before
+after
"""


async def furnished(on_page: PageStage) -> list[str]:
    """Something to see in each view; the places."""
    stage = on_page.stage
    if not (stage.agents / "reader").exists():
        stage.add_agent("reader", {"text": "hi"}, permissions={"allow": ["Bash"]})
        broken = stage.agents / "broken"
        broken.mkdir()
        stage.write_agent("broken", "---\nname: broken\ntimeout: soon\n---\nDo it.\n")
    asking = await on_page.run("reader", ("text", "I look"))
    await on_page.ask(asking, "Which colour?")
    await on_page.want(asking, "Bash", {"command": "date"})
    denied: dict[str, object] = {"host": "example.com", "port": 443, "why": "not allowed"}
    call: dict[str, object] = {"id": "1", "tool": "Bash", "input": {"command": "date"}}
    used: dict[str, object] = {"model": "m1", "cost_usd": 0.1, "duration_ms": 500}
    ended = await on_page.run(
        "reader",
        ("queued", "reader for main"),
        ("tool_call", "Bash date", call),
        ("egress_denied", "example.com:443 blocked", denied),
        ("tool_result", "today", {"id": "1"}),
        ("model_request", "200 m1", used),
        status="completed",
        result={
            "result": {"answer": "today"},
            "attempts": 1,
            "patch": PATCH,
            "changed_files": (ChangedFile(path="a.txt", change="modified"),),
        },
    )
    tabs = ("events", "answer", "changes", "network", "tools", "cost", "plan")
    return [
        "waiting",
        "runs",
        *(f"run/{ended}/{tab}" for tab in tabs),
        "agents",
        "servers",
        "machine",
    ]


async def shown(on_page: PageStage, page: Page, place: str) -> None:
    """Go there, and wait until nothing is on its way."""
    await on_page.go(page, place)
    await until(page, "!document.querySelector('[aria-busy]')")


async def test_agents_show_their_plan_and_what_is_wrong_with_its_line(on_page: PageStage) -> None:
    await furnished(on_page)
    page = await on_page.opened("agents")
    broken = page.locator(".card.broken")
    await expect(broken).to_contain_text("cannot run")
    await expect(broken.locator(".problems")).to_contain_text("3")
    card = page.locator(".card", has_text="What reader does")
    await card.get_by_text("Plan: what a run would be launched with").click()
    await expect(card).to_contain_text("through the wire")
    await card.get_by_role("link", name="Its runs").click()
    await expect(page.get_by_label("Filter runs")).to_have_value("agent:reader")


async def test_the_machine_shows_its_engine_disk_and_queue(on_page: PageStage) -> None:
    page = await on_page.opened("machine")
    for heading in ("Engine", "Disk", "Queue"):
        await expect(page.get_by_role("heading", name=heading)).to_be_visible()
    await expect(page.get_by_role("button", name="Check the guarantees")).to_be_enabled()
    await on_page.go(page, "servers")
    await expect(page.get_by_text("No servers of tools here.")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_in_any_view(on_page: PageStage, scheme: Any) -> None:
    source = npm_commands(AXE).parent / "axe-core" / "axe.min.js"
    places = await furnished(on_page)
    page = await on_page.opened(color_scheme=scheme)
    await page.evaluate(source.read_text())
    for place in places:
        await shown(on_page, page, place)
        found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        told = [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]]
        assert told == [], place


async def test_nothing_is_wider_than_a_phone(on_page: PageStage) -> None:
    places = await furnished(on_page)
    page = await on_page.opened(viewport={"width": 390, "height": 780})
    for place in places:
        await shown(on_page, page, place)
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide == 0, place
        inside = await page.locator("main .view h1").bounding_box()
        assert inside is not None
        assert inside["x"] >= 0


async def test_colours_are_the_systems_until_one_chooses(on_page: PageStage) -> None:
    page = await on_page.opened(color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(ground)
    await page.get_by_label("colours: auto; choose another").click()
    light = await page.evaluate(ground)
    assert dark != light
    await page.reload()
    await page.wait_for_selector("nav.rail")
    assert await page.evaluate(ground) == light


async def test_a_keyboard_reaches_everything_and_focus_is_seen(on_page: PageStage) -> None:
    await furnished(on_page)
    page = await on_page.opened()
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to the content")).to_be_focused()
    await page.keyboard.press("Enter")
    seen = set()
    for _ in range(12):
        await page.keyboard.press("Tab")
        seen.add(
            await page.evaluate("""() => {
                const at = document.activeElement;
                const style = getComputedStyle(at);
                return [at.innerText.split("\\n")[0], style.outlineStyle !== "none"].join("|");
            }""")
        )
    assert {"Approve|true", "Edit|true", "Reject|true", "Answer|true"} <= seen
