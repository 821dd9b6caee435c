"""`make screenshots`: the pictures of the page's views, light and dark, for its documentation.

The runs are made up and written into a store of their own; server, page and browser are real.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal

import anyio
from playwright.async_api import Page

from orchestrator.containers.docker.engine import connect
from orchestrator.containers.images.agent_image import build_agent_image
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import ChangedFile, RunResult, Usage
from orchestrator.settings import read_settings
from orchestrator.shipped import shipped_agents
from tests.surfaces.mcp.mcp_stage import FOR_EVER, Stage, on_stage
from tests.surfaces.web.page_stage import (
    HOUR,
    PageStage,
    begin_run,
    open_page_stage,
    until,
)

PLACE = Path(__file__).parents[3] / ".github" / "screenshots"

VIEW = {"width": 1120, "height": 680}

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

MODEL = "claude-sonnet-5-5"

PATCH = """\
diff --git a/src/build.py b/src/build.py
--- a/src/build.py
+++ b/src/build.py
@@ -18,8 +18,9 @@ def build(target: str) -> Path:
     config = load(target)
-    out = Path(config.root) / "dist"
-    out.mkdir()
+    # A relative root is the project's, not that of the directory we were called in.
+    out = (config.project / config.root / "dist").resolve()
+    out.mkdir(parents=True, exist_ok=True)
     for page in config.pages:
         (out / page.name).write_text(render(page))
diff --git a/tests/test_build.py b/tests/test_build.py
--- a/tests/test_build.py
+++ b/tests/test_build.py
@@ -1,2 +1,6 @@
 from build import build
+
+
+def test_a_relative_root_is_the_projects(project):
+    assert build("docs").parent == project
"""

AGENTS = {
    "fixer": (
        "Finds out why a build fails, and proposes the smallest fix.",
        """permissions: {allow: [Bash, Read, Edit]}
workspace: copy
network: {allow: [pypi.org, files.pythonhosted.org]}
max_budget_usd: 2
approval: {'Bash(git push:*)': ask}
""",
    ),
    "docs-reader": (
        "Answers a question about Python from its documentation.",
        "permissions: {allow: [Bash]}\nnetwork: {allow: [docs.python.org]}\nmax_budget_usd: 0.5\n",
    ),
    "reviewer": (
        "Reads a change and says what is wrong with it.",
        "permissions: {allow: [Read]}\n",
    ),
    "migrator": ("Writes migrations.", "permissions: {allow: [Read]}\nnetwok: {allow: []}\n"),
}

Told = tuple[float, EventKind, str, dict[str, object]]


def requested(at: float, seconds: float, cost: float, tokens: int) -> Told:
    used = {"input_tokens": tokens // 4, "cache_read_tokens": tokens, "output_tokens": tokens // 20}
    data: dict[str, object] = {"status": 200, "model": MODEL, "duration_ms": seconds * 1000, **used}
    return (at, "model_request", f"200 {MODEL} {tokens} tokens in", data | {"cost_usd": cost})


def used_tool(at: float, seconds: float, command: str, result: str) -> list[Told]:
    call = f"call{at}"
    asked: dict[str, object] = {"id": call, "tool": "Bash", "input": {"command": command}}
    return [
        (at, "tool_call", f"Bash {command}", asked),
        (at + seconds, "tool_result", result, {"id": call, "is_error": "FAILED" in result}),
    ]


STORY: list[Told] = [
    (0, "queued", "fixer for main", {}),
    (3.1, "starting", "a container of subagent-orchestrator/claude:fff9fbe3f60d", {}),
    (3.9, "started", "claude in orch-5f9b21c07d3e", {}),
    (4.6, "ready", f"{MODEL}, tools: Bash, Read, Edit", {"model": MODEL}),
    requested(12.4, 7.6, 0.0312, 9_100),
    (12.5, "text", "I run the tests first, to see what fails.", {}),
    *used_tool(
        12.6, 9.2, "pytest -q", "1 FAILED, 41 passed ⏎ test_build.py: FileNotFoundError: dist"
    ),
    requested(30.2, 8.1, 0.0174, 12_400),
    *used_tool(30.3, 0.4, "sed -n 1,60p src/build.py", "def build(target: str) -> Path:"),
    requested(39.8, 8.9, 0.0210, 14_900),
    (40.0, "text", "A relative root is taken from where it is called. I change that.", {}),
    *used_tool(40.1, 12.0, "pip install -q pytest-randomly && pytest -q", "42 passed in 2.1 s"),
    (42.0, "egress", "pypi.org:443", {"host": "pypi.org", "port": 443, "rule": "pypi.org"}),
    (
        *(44.0, "egress", "files.pythonhosted.org:443"),
        {"host": "files.pythonhosted.org", "port": 443, "rule": "files.pythonhosted.org"},
    ),
    (
        *(47.0, "egress_denied", "telemetry.example:443 blocked: not under network.allow"),
        {"host": "telemetry.example", "port": 443, "why": "not under network.allow in agent.md"},
    ),
    requested(61.0, 8.6, 0.0188, 15_800),
    (61.2, "asked", "Should the directory be made if it is not there?", {"message_id": "m"}),
    (96.0, "answered", "Yes.", {"message_id": "m"}),
    requested(103.4, 7.2, 0.0142, 16_300),
    *used_tool(103.6, 7.8, "pytest -q", "43 passed in 2.2 s"),
    requested(118.0, 6.4, 0.0120, 16_900),
    (118.2, "text", "The build resolves its root against the project now.", {}),
    (118.4, "ended", "completed", {"status": "completed", "reason": "ok"}),
]


async def add(on_page: PageStage, run_id: str, story: list[Told], ago: float) -> None:
    began = time.time() - ago
    rows = [
        Event(run_id=run_id, seq=seq, at=began + at, kind=kind, text=text, data=data)
        for seq, (at, kind, text, data) in enumerate(story, 1)
    ]
    await on_page.store.add_events(rows)
    sql = "UPDATE runs SET created = ? WHERE run_id = ?"
    await on_page.store.database.write(sql, began, run_id)


async def ended(
    on_page: PageStage,
    agent: str,
    story: list[Told],
    ago: float,
    cost: float = 0.0,
    **fields: object,
) -> str:
    status = fields.pop("status", "completed")
    run_id = await on_page.run(agent, prompt=str(fields.pop("prompt", "Find out why it fails.")),
                               parent=str(fields.pop("parent", "")),
                               workspace=fields.pop("workspace", None))  # fmt: skip
    await add(on_page, run_id, story, ago)
    about = {"run_id": run_id, "agent": agent, "caller": "main", "status": status, "model": MODEL}
    usage = Usage(input_tokens=int(cost * 90_000), output_tokens=int(cost * 8_000), requests=6)
    sums = {"cost_usd": cost, "family_usd": cost, "usage": usage, "reason": "ok", "attempts": 1}
    result = RunResult.model_validate({**about, **sums, **fields})
    assert await on_page.store.finish(result)
    took = max((at for at, *_ in story), default=30.0)
    sql = "UPDATE runs SET ended = created + ? WHERE run_id = ?"
    await on_page.store.database.write(sql, took, run_id)
    return run_id


async def furnish(on_page: PageStage) -> str:
    """Runs to be seen; the one to be looked at."""
    work = on_page.stage.work
    short: list[Told] = [(0, "queued", "", {}), (30, "ended", "completed", {})]
    for number, (agent, status, reason, cost) in enumerate(
        [
            ("docs-reader", "completed", "ok", 0.041), ("reviewer", "failed", "budget", 0.502),
            ("docs-reader", "completed", "ok", 0.038), ("fixer", "timed_out", "deadline", 0.377),
            ("reviewer", "completed", "ok", 0.112), ("fixer", "cancelled", "cancelled", 0.009),
            ("fixer", "completed", "ok", 0.214), ("reviewer", "completed", "ok", 0.098),
        ]
    ):  # fmt: skip
        ago = HOUR * (9 - number) + 700
        prompt = "Which releases of Python have tomllib?" if agent == "docs-reader" else (
            "Read the change in src/ and say what is wrong with it."
        )  # fmt: skip
        await ended(on_page, agent, short, ago, cost, status=status, reason=reason, prompt=prompt)
    whole = await ended(
        on_page,
        *("fixer", STORY, 1300.0, 0.1146),
        prompt="The nightly build fails since yesterday. Find out why, and fix it.",
        workspace=work,
        attempts=1,
        result={"cause": "a relative root", "fix": "resolved against the project", "tests": 43},
        denied_hosts=("telemetry.example:443",),
        patch=PATCH,
        changed_files=(
            ChangedFile(path="src/build.py", change="modified"),
            ChangedFile(path="tests/test_build.py", change="modified"),
        ),
    )
    await running(on_page)
    return whole


async def running(on_page: PageStage) -> None:
    """What is under way, and what of it waits."""
    parent = await on_page.run("fixer", prompt="Fix the flaky test, and publish the fix.")
    part = [told for told in STORY if told[0] < 61]
    await add(on_page, parent, part, 95)
    child = await on_page.run(
        "docs-reader", prompt="Does pytest.raises match a group?", parent=parent
    )
    await add(on_page, child, [(0, "queued", "", {}), requested(6, 5, 0.0121, 4_000)], 60)
    await on_page.ask(
        child,
        "The changelog names two releases that changed this, 8.4 and 9.0. Which one does the "
        "project use?",
        default="9.0",
        seconds=1500,
    )
    second = await ended(on_page, "reviewer", [(0, "queued", "", {}), requested(20, 9, 0.08, 9000)],
                         70, 0.0815, parent=parent)  # fmt: skip
    assert second
    call: dict[str, object] = {
        "command": "git push origin fix/flaky-test",
        "description": "Publish",
    }
    await on_page.want(parent, "Bash", call)
    busy = await on_page.run("docs-reader", prompt="What does sys.monitoring cost?")
    await add(on_page, busy, [(0, "queued", "", {}), requested(9, 8, 0.0240, 9_800),
                              *used_tool(10, 400, "curl -s docs.python.org/3/", "")[:1]],
              30)  # fmt: skip
    stuck = await on_page.run("fixer", prompt="Upgrade the linter.")
    await add(on_page, stuck, [(0, "queued", "", {}), requested(9, 8, 0.0530, 21_800),
                               *used_tool(10, 400, "make lint", "")[:1]], 260)  # fmt: skip


async def shoot(on_page: PageStage, whole: str) -> None:
    PLACE.mkdir(exist_ok=True)
    places = {
        "waiting": "waiting", "runs": "runs", "run": f"run/{whole}/events",
        "changes": f"run/{whole}/changes", "network": f"run/{whole}/network", "agents": "agents",
        "servers": "servers", "machine": "machine",
    }  # fmt: skip
    for scheme in SCHEMES:
        page = await on_page.opened(viewport=VIEW, color_scheme=scheme)
        drawn = await on_page.context()
        palette = await drawn.new_page()
        for name, place in places.items():
            await on_page.go(page, place)
            await until(page, "!document.querySelector('[aria-busy]')")
            if name == "run":
                await page.locator(".event", has_text="pytest -q").first.click()
            await anyio.sleep(0.4)  # for frames that are on their way
            target = PLACE / f"{name}-{scheme}.png"
            target.write_bytes(await with_palette(palette, await page.screenshot()))
            print(f"{target.relative_to(Path.cwd())}  {target.stat().st_size / 1000:.1f} kB")


async def with_palette(page: Page, png: bytes) -> bytes:
    """The same picture in 128 colours, which takes half of the bytes; the browser draws it anew."""
    script = (Path(__file__).parent / "palette.js").read_text()
    packed = await page.evaluate(script, base64.b64encode(png).decode())
    return base64.b64decode(packed)


def write_agents(stage: Stage) -> None:
    for name, (about, fields) in AGENTS.items():
        folder = stage.agents / name
        folder.mkdir()
        (folder / "agent.md").write_text(
            f"---\nname: {name}\ndescription: {about}\n{fields}---\n\nDo it.\n"
        )
    (stage.agents / "servers").mkdir()
    for each in shipped_agents().glob("servers/*/server.yaml"):
        shutil.copytree(each.parent, stage.agents / "servers" / each.parent.name)


async def main() -> None:
    """Write all of them anew."""
    settings = read_settings()
    engine = connect(settings)
    image = build_agent_image(engine, settings, DEFAULT_RUNNER, lambda _: None)
    engine.close()
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        place = Path(folder) / "shop"
        place.mkdir()
        async with on_stage(place, image) as stage:
            write_agents(stage)
            async with open_page_stage(stage) as on_page:
                whole = await furnish(on_page)
                stage.add_agent("watcher", FOR_EVER)
                page = await on_page.opened()
                await begin_run(page, "watcher", "Watch the queue until it is empty.")
                await on_page.go(page, "machine")
                await page.get_by_text("orch-").wait_for()
                await page.context.close()
                on_page.contexts.clear()
                await shoot(on_page, whole)
                await on_page.tidy()


if __name__ == "__main__":
    anyio.run(main)
