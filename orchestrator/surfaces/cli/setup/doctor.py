"""`orchestrator doctor`: does this machine's engine keep what we promise?"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from orchestrator.surfaces.progress import shown_progress

if TYPE_CHECKING:
    from orchestrator.containers.docker.engine import EngineInfo
    from orchestrator.doctor.examination import Check

EXIT_BROKEN_PROMISE = 1
"""A promise does not hold."""

TICK, CROSS = "✓", "✗"

NAME_WIDTH = 16


class Report(NamedTuple):
    """All that one examination found."""

    engine: EngineInfo
    image: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def doctor(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Prove, with probe containers, that this machine's engine keeps what we promise."""
    import anyio

    if as_json:
        report = anyio.run(_examine, lambda _: None)
        print(json.dumps(_as_json(report)))
    else:
        with _shown_checks() as show:
            report = anyio.run(_examine, show)
        print(_summary(report))
    if not report.ok:
        raise typer.Exit(EXIT_BROKEN_PROMISE)


async def _examine(show: Callable[[Check], None]) -> Report:
    # Here and above, not at the top: `--help` need not wait for docker and pydantic.
    import anyio.to_thread

    from orchestrator.app import open_runtime
    from orchestrator.containers.images.agent_image import build_agent_image
    from orchestrator.doctor.examination import examine
    from orchestrator.domain.container import ContainerSpec
    from orchestrator.settings import read_settings

    settings = read_settings()
    async with open_runtime(settings) as runtime:
        engine = runtime.engine
        with shown_progress() as progress:
            image = await anyio.to_thread.run_sync(build_agent_image, engine, settings, progress)
        checks = []
        spec = ContainerSpec(image=image, seccomp=await runtime.seccomp_profile())
        with _folder(settings.allowed_roots) as workspace:
            async with aclosing(examine(engine, runtime, spec, workspace)) as found:
                async for check in found:
                    checks.append(check)
                    show(check)
        return Report(await engine.about(), image, tuple(checks))


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
        seen = Text(check.detail, "dim" if check.ok else "red")
        if check.advice:
            seen.append(f"\n→ {check.advice}", "default")
        row.add_row(mark, Text(check.promise), seen)
        console.print(row)

    yield show


def _lines(check: Check) -> Iterator[str]:
    encoding = sys.stdout.encoding or "utf-8"
    tick, cross, arrow = (TICK, CROSS, "→") if _can_write(encoding) else ("ok", "no", "->")
    mark = tick if check.ok else cross
    yield f"{mark} {check.name:<{NAME_WIDTH}} {check.promise}: {_written(check.detail, encoding)}"
    if check.advice:
        yield f"{'':{len(mark)}} {'':<{NAME_WIDTH}} {arrow} {_written(check.advice, encoding)}"


def _can_write(encoding: str) -> bool:
    return _written(TICK + CROSS + "→", encoding) == TICK + CROSS + "→"


def _written(text: str, encoding: str) -> str:
    return text.encode(encoding, "replace").decode(encoding)


def _summary(report: Report) -> str:
    broken = [check for check in report.checks if not check.ok]
    where = f"engine {report.engine.version}, {report.image}"
    if not broken:
        return f"all {len(report.checks)} promises hold ({where})"
    return f"{len(broken)} of {len(report.checks)} promises do not hold ({where})"


def _as_json(report: Report) -> dict[str, object]:
    return {
        "ok": report.ok,
        "engine": report.engine.model_dump(),
        "image": report.image,
        "checks": [check.model_dump() for check in report.checks],
    }
