"""An agent that writes HTML, scripts, directions and escapes wherever it can: all of it is text."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from orchestrator.domain.result import ChangedFile
from tests.surfaces.web.page_stage import PageStage

pytestmark = pytest.mark.anyio

HTML = (
    "<img src=x onerror='globalThis.owned=1'><script>globalThis.owned=1</script>"
    "<svg onload=globalThis.owned=1></svg>\"'><iframe srcdoc='<b>x'></iframe>{{7*7}}${7*7}"
)
BIDI = "safe\u202egpj.exe\u2066\u200b\u2069"
ANSI = "\x1b[31mred\x1b[0m\x1b]8;;http://evil.example\x07link\x07\r\x08\x9b2J"
EVIL = f"{HTML} {BIDI} {ANSI}"

PATCH = f"""\
diff --git a/x b/{HTML}
--- a/x
+++ b/{HTML} {BIDI}
@@ -1 +1 @@
-{HTML}
+{BIDI} {ANSI}
"""

VIEWS = ("events", "answer", "changes", "network", "tools", "cost")


async def test_what_an_agent_writes_is_text_everywhere(on_page: PageStage) -> None:
    evil: dict[str, object] = {"command": EVIL, EVIL: EVIL, "nested": {EVIL: [EVIL]}}
    host = {"host": EVIL, "port": 443, "why": EVIL, "rule": EVIL}
    asking = await on_page.run(EVIL, ("status", EVIL), prompt=EVIL, caller=EVIL)
    await on_page.ask(asking, EVIL, default=EVIL)
    await on_page.want(asking, EVIL, evil)
    ended = await on_page.run(
        EVIL,
        ("queued", EVIL),
        ("ready", EVIL, {"model": EVIL, "tools": [EVIL]}),
        ("text", EVIL),
        ("saying", EVIL, {"begins": True}),
        ("tool_call", EVIL, {"id": EVIL, "tool": EVIL, "input": evil}),
        ("tool_result", EVIL, {"id": EVIL, "is_error": True}),
        ("server_denied", EVIL, {"server": EVIL, "tool": EVIL, "why": EVIL}),
        ("schema_failed", EVIL),
        ("egress", EVIL, host),
        ("egress_denied", EVIL, host),
        ("model_request", EVIL, {"model": EVIL, "cost_usd": 0.1}),
        prompt=EVIL,
        context=EVIL,
        status="completed",
        result={
            "result": {EVIL: EVIL},
            "message": EVIL,
            "model": EVIL,
            "warnings": (EVIL,),
            "log_tail": (EVIL,),
            "changed_files": (ChangedFile(path=EVIL, change="renamed", old_path=EVIL, acts=EVIL),),
            "patch": PATCH,
        },
    )
    page = await on_page.opened("waiting")
    await expect(page.locator(".card")).to_have_count(2)
    await expect(page.locator(".card.approval pre").first).to_contain_text("⟨U+202E⟩gpj.exe")
    await expect(page.locator(".card.approval pre").first).to_contain_text("␛[31mred␛[0m")
    places = ["waiting", "runs", *(f"run/{ended}/{tab}" for tab in VIEWS), f"run/{asking}/answer"]
    for place in places:
        await on_page.go(page, place)
        await expect(page.locator("main .view")).to_contain_text("<img src=x onerror=")
        if place == f"run/{ended}/events":
            for number in range(await page.locator(".event").count()):
                await page.locator(".event").nth(number).click()
        await page.evaluate(
            "document.querySelectorAll('main details').forEach(each => { each.open = true; })"
        )
        found = await page.evaluate("""() => ({
            elements: document.querySelectorAll(
                "main img, main script, main iframe, main svg:not(.icon), main [onerror]").length,
            owned: globalThis.owned ?? null,
            odd: /[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b\\u202a-\\u202e\\u2066-\\u2069]/.test(
                    document.body.innerText + document.title
                      + [...document.querySelectorAll("[title], [aria-label]")]
                          .map(e => e.title + e.ariaLabel).join("")),
            wide: document.documentElement.scrollWidth - innerWidth,
        })""")
        assert found == {"elements": 0, "owned": None, "odd": False, "wide": 0}, place


async def test_a_command_is_read_in_the_order_in_which_it_runs(on_page: PageStage) -> None:
    """Letters that are written from right to left turn the rest of a line around, by themselves."""
    run = await on_page.run("turner")
    await on_page.want(run, "Bash", {"command": "rm \u05d0\u05d1 /etc/x"})
    page = await on_page.opened()
    order = await page.evaluate("""() => {
        const text = document.querySelector(".card pre").firstChild;
        return [...text.data].map((_, at) => {
            const range = document.createRange();
            range.setStart(text, at);
            range.setEnd(text, at + 1);
            return range.getBoundingClientRect().left;
        });
    }""")
    assert order == sorted(order)
    assert len(set(order)) == len(order)
