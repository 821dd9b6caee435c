"""The page, one run: its time, its events and what came of it, in a real browser."""

from __future__ import annotations

import anyio
import pytest
from playwright.async_api import expect

from orchestrator.domain.events import Event
from orchestrator.domain.result import Usage
from tests.surfaces.mcp.mcp_stage import PATIENCE
from tests.surfaces.web.page_stage import PageStage, begin_run, until
from tests.surfaces.web.test_waiting import settled

pytestmark = pytest.mark.anyio

EVENTS = 50_000


async def test_a_timeline_shows_where_time_went_waiting_apart(on_page: PageStage) -> None:
    run = await on_page.run(
        "busy",
        ("queued", "busy for main"),
        ("starting", "a container"),
        ("started", "claude"),
        ("ready", "claude", {"model": "claude-sonnet-5-5"}),
        ("model_request", "200", {"duration_ms": 1000, "model": "claude-sonnet-5-5"}),
        ("tool_call", "Bash make", {"id": "1", "tool": "Bash", "input": {"command": "make"}}),
        ("egress", "pypi.org:443", {"host": "pypi.org", "port": 443}),
        ("tool_result", "done", {"id": "1", "is_error": False}),
        ("asked", "Which?", {"message_id": "m"}),
        ("answered", "That.", {"message_id": "m"}),
    )
    page = await on_page.opened(f"run/{run}")
    legend = page.locator(".strip .legend li")
    await expect(legend).to_have_text(
        [
            "queued 1.0 s",
            "starting 2.0 s",
            "model 1.0 s",
            "tools 2.0 s",
            "waiting 1.0 s",
            "network 1",
        ]
    )
    said = await page.locator("canvas").get_attribute("aria-label")
    assert "waiting 1.0 s" in (said or "")
    await page.locator(".event", has_text="Bash make").click()
    await expect(page.locator(".detail")).to_contain_text("command")
    await page.get_by_role("button", name="network").click()
    await expect(page.locator(".event")).to_have_count(1)


async def test_fifty_thousand_events_are_all_there_with_few_elements(on_page: PageStage) -> None:
    run = await on_page.run("flood")
    events = [
        Event(run_id=run, seq=n, at=1e9 + n / 100, kind="text", text=f"line {n}")
        for n in range(1, EVENTS + 1)
    ]
    await on_page.store.add_events(events)
    page = await on_page.opened(f"run/{run}/events")
    listed = "document.querySelector('virtual-list.events')"
    await until(page, f"{listed}?.count === {EVENTS}")
    await page.evaluate(f"{listed}.toEnd()")
    await expect(page.get_by_text(f"line {EVENTS}", exact=True)).to_be_visible()
    await page.evaluate(f"{listed}.show({EVENTS // 2 - 1})")
    await expect(page.get_by_text(f"line {EVENTS // 2}", exact=True)).to_be_visible()
    assert await page.locator(".event").count() < 80
    await page.evaluate(f"{listed}.toEnd()")
    await on_page.happen(run, ("text", "and one more"))  # and it follows what comes
    await expect(page.get_by_text("and one more", exact=True)).to_be_visible()


async def test_an_answer_comes_with_its_verdict(on_page: PageStage) -> None:
    good = await on_page.run(
        "honest",
        ("schema_failed", "/sources: 'none' is not of type 'array'"),
        status="completed",
        result={"result": {"answer": "42"}, "attempts": 2},
    )
    bad = await on_page.run(
        "vague",
        status="failed",
        result={
            "reason": "invalid_output",
            "message": "the answer broke its schema",
            "schema_errors": ("/answer is missing",),
            "attempts": 3,
            "partial_text": "I would say 42.",
        },
    )
    page = await on_page.opened(f"run/{good}")
    panel = page.get_by_role("tabpanel")
    await expect(panel).to_contain_text("Fits its schema after 2 attempts.")
    await expect(panel).to_contain_text('"answer": "42"')
    await expect(panel).to_contain_text("'none' is not of type 'array'")
    await on_page.go(page, f"run/{bad}/answer")
    await expect(page.get_by_role("tabpanel")).to_contain_text("/answer is missing")
    await expect(page.get_by_role("tabpanel")).to_contain_text("I would say 42.")


async def test_a_denied_host_comes_with_the_line_that_is_missing(on_page: PageStage) -> None:
    denied = {"host": "example.com", "port": 443, "why": "not under network.allow in agent.md"}
    run = await on_page.run(
        "reacher",
        ("egress", "pypi.org:443", {"host": "pypi.org", "port": 443, "rule": "pypi.org"}),
        ("egress_denied", "example.com:443 blocked", denied),
        ("egress_denied", "example.com:443 blocked", denied),
    )
    page = await on_page.opened(f"run/{run}/network")
    first = page.locator(".hosts li").first
    await expect(first).to_contain_text("denied")
    await expect(first).to_contain_text("2 times")
    await expect(first.locator("code")).to_have_text("network: {allow: [example.com]}")
    await expect(page.locator(".hosts li").nth(1)).to_contain_text("by pypi.org")


async def test_tools_and_cost_are_added_up(on_page: PageStage) -> None:
    call: dict[str, object] = {"id": "1", "tool": "Bash", "input": {"command": "make"}}
    used: dict[str, object] = {
        "model": "m1",
        "input_tokens": 900,
        "cache_read_tokens": 100,
        "output_tokens": 50,
    }
    run = await on_page.run(
        "worker",
        ("tool_call", "Bash make", call),
        ("tool_result", "no rule", {"id": "1", "is_error": True}),
        ("model_request", "", used | {"cost_usd": 0.25, "duration_ms": 2000}),
        ("model_request", "", used | {"cost_usd": 0.5, "duration_ms": 1000}),
        status="completed",
        result={"cost_usd": 0.75, "family_usd": 1.0, "usage": Usage(requests=2)},
    )
    page = await on_page.opened(f"run/{run}/tools")
    await expect(page.locator(".calls li")).to_contain_text("failed")
    await on_page.go(page, f"run/{run}/cost")
    cells = page.locator("tbody tr").locator("th, td")
    await expect(cells).to_have_text(["m1", "2", "2.0k", "200", "100", "$0.75", "3.0 s"])
    await expect(page.locator(".panel .facts dd")).to_have_text(["$0.75", "$1.00"])


async def test_a_real_run_is_approved_seen_to_its_end_and_its_changes_applied(
    on_page: PageStage,
) -> None:
    """The real engine: a container, a CLI, a tool call that waits, a patch."""
    stage = on_page.stage
    folder = stage.work / "project"
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("before\n")
    command = "echo after > a.txt"
    stage.add_agent(
        "editor",
        {"tool": "Bash", "input": {"command": command}},
        {"text": "changed"},
        permissions={"allow": ["Bash"]},
        approval={"Bash": "ask"},
        approval_by="user",
        workspace="copy",
    )
    page = await on_page.opened()
    run = await begin_run(page, "editor", "Change it", workspace=str(folder))
    on_page.made.append(run)
    await expect(page.locator(".card pre").first).to_have_text(command, timeout=PATIENCE * 1000)
    await settled(page)
    await page.keyboard.press("a")
    await on_page.go(page, f"run/{run}/changes")
    status = page.locator(".bar .status")
    await expect(status).to_have_text("completed", timeout=PATIENCE * 1000)
    await expect(page.locator(".diff .add")).to_contain_text("+after")
    await page.get_by_role("button", name="Apply").click()
    await page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    await expect(page.get_by_text("Changed 1 file.")).to_be_visible()
    assert await anyio.Path(folder / "a.txt").read_text() == "after\n"
    await on_page.go(page, f"run/{run}/plan")
    await expect(page.get_by_role("tabpanel")).to_contain_text("through the wire")
