"""`orchestrator doctor`: does this machine's engine keep what we promise?"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from orchestrator.domain.words import counted
from orchestrator.surfaces.cli.options import AgentsDirOption, JsonOption, settings_for
from orchestrator.surfaces.progress import shown_progress

if TYPE_CHECKING:
    from orchestrator.containers.docker.engine import EngineInfo
    from orchestrator.doctor.examination import Check
    from orchestrator.domain.tool_server import ToolServer
    from orchestrator.errors import OrchestratorError
    from orchestrator.settings import Settings

EXIT_BROKEN_PROMISE = 1
"""A promise does not hold."""

TICK, CROSS, DOUBT = "✓", "✗", "!"

NAME_WIDTH = 16


class Report(NamedTuple):
    """All that one examination found."""

    checks: tuple[Check, ...]
    engine: EngineInfo | None = None
    image: str = ""
    error: OrchestratorError | None = None
    """Why it came to no end: no engine, no image, no place for records."""

    @property
    def ok(self) -> bool:
        return self.error is None and all(check.ok for check in self.checks)


def doctor(
    *,
    server: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Look at containers as this server of tools gets them."),
    ] = None,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what runs need of this machine, and prove with probe containers that its engine keeps
    what we promise.
    """
    import anyio

    wanted = None if server is None else _server(server, agents_dir)
    if as_json:
        report = anyio.run(examined, lambda _: None, wanted)
        print(json.dumps(_as_json(report)))
        if report.error is not None:
            raise typer.Exit(report.error.exit_code)
    else:
        with _shown_checks() as show:
            report = anyio.run(examined, show, wanted)
        if report.error is not None:
            raise report.error
        print(_summary(report))
    if not report.ok:
        raise typer.Exit(EXIT_BROKEN_PROMISE)


def _server(name: str, agents_dir: Path | None) -> ToolServer:
    from orchestrator.errors import CallInvalid
    from orchestrator.state import open_agents

    server = open_agents(settings_for(agents_dir)).current().server(name).server
    if server.url is not None:
        raise CallInvalid(f"{name} is at a URL, and has no container to be looked at")
    return server


async def examined(
    show: Callable[[Check], None], server: ToolServer | None, settings: Settings | None = None
) -> Report:
    """All that is found out, by settings that are read unless they are given; `show` is told each
    thing as it is.
    """
    # Here and above, not at the top: `--help` need not wait for docker and pydantic.
    from orchestrator.doctor.host_checks import examine_host
    from orchestrator.errors import OrchestratorError
    from orchestrator.settings import read_settings

    settings = settings or read_settings()
    checks: list[Check] = []

    def tell(check: Check) -> None:
        checks.append(check)
        show(check)

    async for check in examine_host(settings):
        tell(check)
    try:
        engine, image = await _examine_engine(settings, tell, server)
    except OrchestratorError as exc:
        return Report(tuple(checks), error=exc)
    return Report(tuple(checks), engine, image)


async def _examine_engine(
    settings: Settings, tell: Callable[[Check], None], server: ToolServer | None
) -> tuple[EngineInfo, str]:
    import anyio.to_thread

    from orchestrator.app import open_runtime
    from orchestrator.containers.images.agent_image import build_agent_image
    from orchestrator.doctor.examination import Check, examine
    from orchestrator.domain.agent import DEFAULT_RUNNER
    from orchestrator.domain.container import ContainerSpec
    from orchestrator.domain.variables import variables
    from orchestrator.plan import Place, plan_server
    from orchestrator.state import check_state

    await anyio.to_thread.run_sync(check_state, settings)
    async with open_runtime(settings) as runtime:
        engine = runtime.engine
        with shown_progress() as progress:
            build = partial(build_agent_image, engine, settings, DEFAULT_RUNNER, progress)
            image = await anyio.to_thread.run_sync(build)
        held = "the image that agents run in is there"
        tell(Check(name="image", promise=held, ok=True, detail=image, advice=""))
        spec = ContainerSpec(image=image, seccomp=await runtime.seccomp_profile())
        if server is not None:
            place = Place(image=image, seccomp=spec.seccomp)
            named = dict.fromkeys(server.secret_names, "-")
            unset = {name: "-" for _, text in server.templates for name in variables(text)}
            spec = plan_server(server, place, unset, named).container
            image = spec.image
        with _folder(settings.allowed_roots) as workspace:
            async with aclosing(examine(engine, runtime, spec, workspace)) as found:
                async for check in found:
                    tell(check)
        return await engine.about(), image


@contextmanager
def _folder(roots: Iterable[Path]) -> Iterator[Path | None]:
    """A directory to show to a container: an empty one below a root, or else a root itself."""
    found = [root for root in roots if root.is_dir()]
    for root in found:
        try:
            folder = tempfile.TemporaryDirectory(prefix="orchestrator-doctor-", dir=root)
        except OSError:
            continue  # not ours to write to
        with folder as path:
            Path(path).chmod(0o777)  # so that only the mount keeps the probe from writing
            yield Path(path)
        return
    yield next(iter(found), None)


@contextmanager
def _shown_checks() -> Iterator[Callable[[Check], None]]:
    """Yields what to call with each check: a row of a table on a terminal, else plain lines."""
    if not sys.stdout.isatty():
        yield lambda check: print("\n".join(_lines(check)), flush=True)
        return
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    console = Console()

    def show(check: Check) -> None:
        # A table per row, all with the same columns: what is printed stays, however long it gets.
        row = Table.grid(Column(width=1), Column(ratio=4), Column(ratio=6), padding=(0, 1))
        row.expand = True
        mark = Text(TICK, "green") if check.ok else Text(CROSS, "bold red")
        if check.warning:
            mark = Text(DOUBT, "bold yellow")
        seen = Text(check.detail, "dim" if check.ok else "red")
        if check.advice:
            seen.append(f"\n→ {check.advice}", "default")
        row.add_row(mark, Text(check.promise), seen)
        console.print(row)

    yield show


def _lines(check: Check) -> Iterator[str]:
    encoding = sys.stdout.encoding or "utf-8"
    tick, cross, arrow = (TICK, CROSS, "→") if _can_write(encoding) else ("ok", "no", "->")
    mark = DOUBT if check.warning else tick if check.ok else cross
    yield f"{mark} {check.name:<{NAME_WIDTH}} {check.promise}: {_written(check.detail, encoding)}"
    if check.advice:
        yield f"{'':{len(mark)}} {'':<{NAME_WIDTH}} {arrow} {_written(check.advice, encoding)}"


def _can_write(encoding: str) -> bool:
    return _written(TICK + CROSS + "→", encoding) == TICK + CROSS + "→"


def _written(text: str, encoding: str) -> str:
    return text.encode(encoding, "replace").decode(encoding)


def _summary(report: Report) -> str:
    broken = [check for check in report.checks if not check.ok]
    doubts = sum(check.warning for check in report.checks)
    version = report.engine.version if report.engine is not None else "unknown"
    where = f"engine {version}, {report.image}"
    more = f", with {counted(doubts, 'warning')}" if doubts else ""
    if not broken:
        return f"all {len(report.checks)} promises hold{more} ({where})"
    return f"{len(broken)} of {len(report.checks)} promises do not hold{more} ({where})"


def _as_json(report: Report) -> dict[str, object]:
    said: dict[str, object] = {
        "ok": report.ok,
        "engine": report.engine.model_dump() if report.engine is not None else None,
        "image": report.image,
        "checks": [check.model_dump() for check in report.checks],
    }
    if report.error is not None:
        said["error"] = {"code": report.error.code, "message": str(report.error)}
    return said
