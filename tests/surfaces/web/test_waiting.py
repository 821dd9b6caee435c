"""The page, waiting: what a person decides, in a real browser."""

from __future__ import annotations

import json
import re

import anyio
import pytest
from playwright.async_api import Page, expect

from orchestrator.domain.exchange import Approval, Question
from tests.surfaces.mcp.mcp_stage import PATIENCE
from tests.surfaces.web.page_stage import PageStage, until

pytestmark = pytest.mark.anyio

LONG_NUMBER = 2**53 + 1  # the first that a browser rounds

PUSH: dict[str, object] = {"command": "git push origin main", "description": "Publish it"}


async def settled(page: Page) -> None:
    """What is chosen has been so for long enough to be meant."""
    await until(page, "document.querySelector('waiting-view').settled")


async def approval(on_page: PageStage, run_id: str, call_id: str) -> Approval:
    found = await on_page.exchanges.approval(run_id, call_id)
    assert found is not None
    return found


async def decided(on_page: PageStage, run_id: str, call_id: str) -> Approval:
    with anyio.fail_after(PATIENCE):
        while (found := await approval(on_page, run_id, call_id)).decision == "pending":
            await anyio.sleep(0.02)
    return found


async def answered(on_page: PageStage, run_id: str, message_id: str) -> Question:
    with anyio.fail_after(PATIENCE):
        while True:
            found = await on_page.exchanges.question(run_id, message_id)
            assert found is not None
            if found.answer is not None:
                return found
            await anyio.sleep(0.02)


async def test_a_tool_call_is_shown_whole_and_approved_by_a_person(on_page: PageStage) -> None:
    run = await on_page.run("pusher")
    long = "x" * 3000 + "; rm -rf /"
    call = await on_page.want(run, "Bash", PUSH | {"command": long, "id": LONG_NUMBER}, by="user")
    page = await on_page.opened()
    card = page.locator(".card", has_text="pusher wants to use Bash")
    await expect(card.locator("pre").first).to_have_text(long)
    assert "Publish it" in await card.inner_text()
    assert str(LONG_NUMBER) in await card.inner_text()
    assert "left" in await card.locator(".left").inner_text()
    await settled(page)
    await card.get_by_role("button", name="Approve").click()
    found = await decided(on_page, run, call)
    assert (found.decision, found.new_input) == ("approved", None)
    assert "page" in found.whom
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()


async def test_keys_choose_approve_edit_and_reject(on_page: PageStage) -> None:
    run = await on_page.run("keyed")
    inputs = [{"command": f"echo {n}", "id": LONG_NUMBER} for n in range(3)]
    calls = [await on_page.want(run, "Bash", each) for each in inputs]
    page = await on_page.opened()
    await expect(page.locator(".card")).to_have_count(3)
    await settled(page)
    await page.keyboard.press("a")
    assert (await decided(on_page, run, calls[0])).decision == "approved"

    await expect(page.locator(".card:not(.over)")).to_have_count(2)
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    await settled(page)
    await page.keyboard.press("r")
    await page.keyboard.type("not on a Friday")
    await page.keyboard.press("Enter")
    refused = await decided(on_page, run, calls[1])
    assert (refused.decision, refused.message) == ("rejected", "not on a Friday")

    await expect(page.locator(".card:not(.over)")).to_have_count(1)
    await page.keyboard.press("Escape")
    await settled(page)
    await page.keyboard.press("e")
    editor = page.get_by_label("The input to run instead")
    await expect(editor).to_have_value(json.dumps(inputs[2], indent=2))
    await editor.fill('{"command": ')
    await page.get_by_role("button", name="Approve as edited").click()
    await expect(page.get_by_role("alert")).to_contain_text("The edited input cannot be used")
    assert (await approval(on_page, run, calls[2])).decision == "pending"
    other = {"command": "echo other", "id": LONG_NUMBER + 2}
    await editor.fill(json.dumps(other))
    await page.get_by_role("button", name="Approve as edited").click()
    edited = await decided(on_page, run, calls[2])
    assert (edited.decision, edited.new_input) == ("approved", other)


async def test_a_key_that_comes_too_soon_decides_nothing(on_page: PageStage) -> None:
    run = await on_page.run("hasty")
    first = await on_page.want(run, "Bash", {"command": "one"})
    page = await on_page.opened()
    await settled(page)
    second = await on_page.want(run, "Bash", {"command": "two"})
    await expect(page.locator(".card")).to_have_count(2)
    # Meant for the first, twice; with the second press the second is chosen, and was never seen.
    await page.evaluate("""() => {
        const press = () => dispatchEvent(new KeyboardEvent("keydown", {key: "a"}));
        const view = document.querySelector("waiting-view");
        press();
        view.choose([...view.cards.keys()][1]);
        press();
    }""")
    assert (await decided(on_page, run, first)).decision == "approved"
    await expect(page.locator(".card:not(.over)")).to_have_count(1)
    assert (await approval(on_page, run, second)).decision == "pending"


async def test_a_question_is_answered_and_a_draft_outlives_a_reload(on_page: PageStage) -> None:
    run = await on_page.run("curious")
    asked = await on_page.ask(run, "Which colour?", default="red")
    page = await on_page.opened()
    card = page.locator(".card.question")
    await expect(card).to_contain_text("Which colour?")
    await expect(card).to_contain_text("Without an answer it goes by: red")
    await settled(page)
    await card.get_by_role("button", name="Answer").click()
    await expect(card.get_by_role("alert")).to_contain_text("The answer is empty")
    await page.keyboard.press("Escape")
    await settled(page)
    await page.keyboard.press("a")
    await page.keyboard.type("a light gr")
    await page.reload()
    field = page.get_by_label("Answer curious")
    await expect(field).to_have_value("a light gr")
    await field.press("End")
    await field.type("een")
    await field.press("Control+Enter")
    found = await answered(on_page, run, asked)
    assert (found.answer, found.answered_by) == ("a light green", "caller")


async def test_what_comes_to_wait_is_told_in_title_icon_and_to_screen_readers(
    on_page: PageStage,
) -> None:
    page = await on_page.opened("runs")
    assert not (await page.title()).startswith("(")
    icon = page.locator("link[rel=icon]")
    assert "waiting" not in (await icon.get_attribute("href") or "")
    run = await on_page.run("asker")
    await on_page.want(run, "Bash", {"command": "date"})
    await until(page, "document.title.startsWith('(1) ')")
    await expect(icon).to_have_attribute("href", re.compile(r"favicon-waiting\.svg$"))
    await expect(page.locator(".count[data-of=waiting]")).to_have_text("1")
    await expect(page.locator("[role=status].visually-hidden")).to_have_text(
        "asker wants to use Bash; 1 waiting"
    )


async def test_two_tabs_decide_at_once_and_one_counts(on_page: PageStage) -> None:
    run = await on_page.run("pusher")
    call = await on_page.want(run, "Bash", PUSH)
    first = await on_page.opened()
    second = await on_page.tab(first)
    for page in (first, second):
        await expect(page.locator(".card")).to_have_count(1)
        await settled(page)
    await second.get_by_role("button", name="Reject").click()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.get_by_role("button", name="Approve").click)
        tasks.start_soon(second.locator(".more").get_by_role("button", name="Reject").click)
    found = await decided(on_page, run, call)
    for page in (first, second):
        await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    said = [await page.locator(".toast").all_inner_texts() for page in (first, second)]
    won, lost = (said[0], said[1]) if found.decision == "approved" else (said[1], said[0])
    assert won == [f"pusher: {found.decision}"]
    assert lost
    assert lost != won
    assert not any("pusher: " in text for text in lost)


async def test_what_is_decided_elsewhere_leaves_the_page_and_a_click_meant_for_it_decides_nothing(
    on_page: PageStage,
) -> None:
    run = await on_page.run("pusher")
    call = await on_page.want(run, "Bash", PUSH)
    below = await on_page.want(run, "Bash", PUSH)
    page = await on_page.opened()
    cards = page.locator(".card")
    await expect(cards).to_have_count(2)
    await settled(page)
    await page.evaluate("""() => {
        const ask = fetch;
        window.posts = 0;
        window.fetch = (path, options) => {
            window.posts += options.method === "POST";
            return ask(path, options);
        };
        performance.now = () => 1e9;  // from now on nothing stands still for long
    }""")
    assert await on_page.exchanges.decide(run, call, "rejected", message="no")
    await on_page.happen(run, ("approval_decided", "rejected", {"call_id": call}))
    await expect(cards.first.locator(".left")).to_have_text("decided elsewhere")
    await expect(cards).to_have_count(1)
    button = cards.get_by_role("button", name="Approve")
    await button.click()
    await expect(cards).to_have_class(re.compile("chosen"))
    assert await page.evaluate("window.posts") == 0
    assert (await approval(on_page, run, below)).decision == "pending"
    await page.evaluate("performance.now = () => 1e9 + 501")
    await button.click()
    assert (await decided(on_page, run, below)).decision == "approved"
