"""Who gets to see the page, and what a browser is allowed with it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
from playwright.async_api import Error, expect

from orchestrator.surfaces.web.assets import page_files
from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, on_stage
from tests.surfaces.web.page_stage import PageStage

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]


async def test_a_link_opens_the_page_once(on_page: PageStage) -> None:
    link = await on_page.link()
    for knows in (True, False):
        page = await (await on_page.context()).new_page()
        await page.goto(link)
        if knows:
            await expect(page.locator("nav.rail")).to_be_visible()
            assert page.url == f"{on_page.url}/#/waiting"  # the code is in no history
            await page.reload()
            await expect(page.locator("nav.rail")).to_be_visible()
        else:
            await expect(page.get_by_role("heading")).to_have_text("This page does not know you")


async def test_without_a_link_nothing_is_shown_but_how_to_get_one(on_page: PageStage) -> None:
    await on_page.run("secretive", prompt="not for everybody")
    page = await (await on_page.context()).new_page()
    await page.goto(f"{on_page.url}/#/runs")
    await expect(page.get_by_text("orchestrator dashboard")).to_be_visible()
    assert "secretive" not in await page.content()


async def test_signing_out_ends_it_in_all_tabs(on_page: PageStage) -> None:
    page = await on_page.opened()
    other = await on_page.tab(page)
    await page.get_by_title("End this page's session").click()
    await expect(page.get_by_role("heading")).to_have_text("This page does not know you")
    await other.reload()
    await expect(other.get_by_role("heading")).to_have_text("This page does not know you")


async def test_a_cookie_that_another_port_got_is_worth_nothing(on_page: PageStage) -> None:
    page = await on_page.opened()
    cookies = {each["name"]: each["value"] for each in await page.context.cookies()}
    (kept,) = await page.context.cookies()
    assert (kept["httpOnly"], kept["sameSite"], kept["path"]) == (True, "Strict", "/")
    async with httpx.AsyncClient(base_url=on_page.url, cookies=cookies) as http:
        for headers in ({}, {"X-Orchestrator": "page"}, {"X-Orchestrator": "guess"}):
            me = await http.get("/v1/me", headers=headers)
            assert me.status_code != 200 or me.json()["person"] is False
            doctor = await http.post("/v1/doctor", headers=headers)
            assert doctor.status_code in (401, 403)
        key = await page.evaluate("localStorage['orchestrator.key']")
        me = await http.get("/v1/me", headers={"X-Orchestrator": key})
        assert me.json()["person"] is True
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "same-site"}):
            refused = await http.post("/v1/logout", headers={"X-Orchestrator": key, **headers})
            assert refused.status_code == 403, headers


async def test_the_page_answers_to_its_own_names_only(on_page: PageStage) -> None:
    async with httpx.AsyncClient(base_url=on_page.url) as http:
        for path in ("/", "/assets/current", f"/assets/{page_files().digest}/page.js"):
            assert (await http.get(path)).status_code == 200
            lured = await http.get(path, headers={"Host": "evil.example"})
            assert lured.status_code == 421, path


async def test_files_are_kept_for_ever_under_a_name_that_changes(on_page: PageStage) -> None:
    async with httpx.AsyncClient(base_url=on_page.url) as http:
        index = await http.get("/")
        named = re.findall(r'(?:href|src)="(/assets/[^"]+)"', index.text)
        assert {path.rpartition(".")[2] for path in named} == {"js", "css", "svg"}
        assert len([path for path in named if path.endswith(".js")]) == len(
            [name for name in page_files().files if name.endswith(".js")]
        )
        for path in named:
            answer = await http.get(path)
            assert answer.status_code == 200, path
            assert "immutable" in answer.headers["cache-control"]
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            again = await http.get(path, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await http.get("/assets/0123456789abcdef/page.js")).status_code == 404
        assert (await http.get("/assets/current")).json() == {"page": page_files().digest}
        again = await http.get("/", headers={"If-None-Match": index.headers["etag"]})
        assert again.status_code == 304


async def test_no_text_becomes_html_or_a_script(on_page: PageStage) -> None:
    page = await on_page.opened()
    for attempt in (
        "document.body.innerHTML = '<b>x</b>'",
        "document.write('x')",
        "document.body.insertAdjacentHTML('beforeend', 'x')",
        "trustedTypes.createPolicy('p', {createHTML: text => text})",
        "document.createElement('script').textContent = 'globalThis.ran = 1'",
    ):
        with pytest.raises(Error, match=r"TypeError"):
            raise AssertionError(attempt, await page.evaluate(f"() => {{ {attempt} }}"))
    blocked = await page.evaluate("""() => new Promise(told => {
        const tell = event => told(event.effectiveDirective);
        document.addEventListener("securitypolicyviolation", tell);
        const image = document.createElement("img");
        image.src = "http://127.0.0.1:9/leak";
        document.body.append(image);
    })""")
    assert blocked == "img-src"
    assert await page.evaluate("globalThis.ran") is None
    on_page.complaints.clear()  # it says each time what it refuses


def test_the_documentation_shows_each_view_in_both_colours_in_few_bytes() -> None:
    page = (ROOT / "orchestrator/surfaces/web/README.md").read_text()
    shown = set(re.findall(r"\.\./\.\./\.\./(\.github/screenshots/[^\"]+)", page))
    made = {str(path.relative_to(ROOT)) for path in (ROOT / ".github/screenshots").iterdir()}
    assert shown == made
    views = {name.removesuffix("-light.png") for name in made if name.endswith("-light.png")}
    assert {f"{view}-dark.png" for view in views} | {f"{view}-light.png" for view in views} == made
    assert len(views) == 8
    for name in made:
        data = (ROOT / name).read_bytes()
        assert len(data) < 80_000, name
        assert data[25] == 3, f"{name} has no palette"


async def printed(on_page: PageStage, *options: str) -> str:
    with anyio.fail_after(PATIENCE):
        command = [COMMAND, "dashboard", "--no-open", *options]
        done = await anyio.run_process(command, env=on_page.stage.env)
    return done.stdout.decode().strip()


async def test_the_command_serves_where_no_server_does_and_starts_a_browser_with_a_file(
    on_page: PageStage, tmp_path: Path, image: str
) -> None:
    """The link is in no argument, where other users of the machine could read it."""
    async with on_stage(tmp_path, image) as stage:
        told = tmp_path / "told"
        browser = tmp_path / "browser"
        browser.write_text(f'#!/bin/sh\necho "$@" > {told}.new && mv {told}.new {told}\n')
        browser.chmod(0o755)
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            process = subprocess.Popen(  # noqa: ASYNC220 anyio's would leave a thread
                [COMMAND, "dashboard"],
                env=stage.env | {"BROWSER": str(browser)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        try:
            with anyio.fail_after(PATIENCE):
                while not await anyio.Path(told).exists():
                    assert process.poll() is None, (tmp_path / "err").read_bytes()
                    await anyio.sleep(0.05)
            (opened,) = told.read_text().split()
            link = (tmp_path / "out").read_text().strip()
            assert opened.startswith("file://")
            assert "code" not in opened
            file = opened.removeprefix("file://")
            assert (await anyio.Path(file).stat()).st_mode & 0o777 == 0o600
            page = await (await on_page.context()).new_page()
            await page.goto(opened)
            await expect(page.locator("nav.rail")).to_be_visible()
            assert page.url == link.partition("#")[0] + "#/waiting"
        finally:
            process.terminate()
            assert await anyio.to_thread.run_sync(process.wait) == 0


async def test_the_command_finds_the_server_and_prints_a_link(on_page: PageStage) -> None:
    link = await printed(on_page)
    assert re.fullmatch(rf"{re.escape(on_page.url)}/#code=[\w-]{{20,}}", link)
    page = await (await on_page.context()).new_page()
    await page.goto(link)
    await expect(page.locator("nav.rail")).to_be_visible()
    elsewhere = await printed(on_page, "--at", "https://orchestrator.example/")
    assert elsewhere.startswith("https://orchestrator.example/#code=")
