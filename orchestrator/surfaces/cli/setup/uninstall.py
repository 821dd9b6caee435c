"""`orchestrator uninstall`: what we have made on this machine, listed and, on a word, removed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.options import JsonOption
from orchestrator.surfaces.cli.setup.images import MEGABYTE
from orchestrator.surfaces.progress import shown_progress
from orchestrator.surfaces.text import print_lines, say, table

if TYPE_CHECKING:
    from orchestrator.engine.inventory import Inventory, Openers
    from orchestrator.settings import Settings

THE_PROGRAM = (
    "the program itself goes with `uv tool uninstall subagent-orchestrator`, or "
    "`pipx uninstall subagent-orchestrator`"
)


def uninstall(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without, only list it.")] = False,
    keep_images: Annotated[
        bool, typer.Option("--keep-images", help="Leave the images for others on this engine.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the containers, volumes, images and files that we have made; with --yes, remove them."""
    import anyio

    from orchestrator.engine.inventory import take_inventory
    from orchestrator.settings import read_settings

    settings = read_settings()
    opens = _openers(settings)
    found = anyio.run(take_inventory, settings, opens)
    if keep_images:
        found = found.model_copy(update={"images": ()})
    if not as_json:
        print_lines(inventory_lines(found, settings))
    stays = anyio.run(_remove, settings, opens, found) if yes else ()
    if as_json:
        print(json.dumps(inventory_document(found, settings, stays, removed=yes)))
    elif yes:
        print_lines(f"stays: {line}" for line in stays)
        print("removed" if not found.is_empty else "there was nothing to remove")
        say(THE_PROGRAM, sys.stdout)
    elif not found.is_empty:
        print("nothing is removed yet: `orchestrator uninstall --yes` removes all but yours")


async def _remove(settings: Settings, opens: Openers, found: Inventory) -> tuple[str, ...]:
    from orchestrator.engine.inventory import remove_all

    with shown_progress() as progress:
        return await remove_all(settings, opens, found, progress)


def _openers(settings: Settings) -> Openers:
    from functools import partial

    from orchestrator.app import open_engine, open_runtime
    from orchestrator.engine.inventory import Openers
    from orchestrator.state import open_store

    return Openers(
        runtime=partial(open_runtime, settings, reap=False),
        engine=partial(open_engine, settings),
        store=partial(open_store, settings),
    )


def inventory_lines(found: Inventory, settings: Settings) -> Iterator[str]:
    """A line for each thing."""
    rows = [("container", info.status, info.name) for info in found.containers]
    rows += [("volume", "files of a session", name) for name in found.volumes]
    rows += [("image", _megabytes(image.size_bytes), image.tag) for image in found.images]
    if found.state is not None:
        size = _megabytes(found.state.bytes)
        rows.append(("record", size, f"of runs, sessions, trust: {found.state.path}"))
    if found.cache is not None:
        rows.append(("downloads", _megabytes(found.cache.bytes), str(found.cache.path)))
    rows += [("yours", "stays", path) for path in _own_files(settings)]
    rows.append(("yours", "stays", "agents/ and .mcp.json in your projects"))
    return table(rows)


def inventory_document(
    found: Inventory, settings: Settings, stays: tuple[str, ...], *, removed: bool
) -> dict[str, object]:
    """The same for programs."""
    return {
        "removed": removed,
        "containers": [info.name for info in found.containers],
        "volumes": list(found.volumes),
        "images": [image.tag for image in found.images],
        "state": None if found.state is None else found.state.model_dump(mode="json"),
        "cache": None if found.cache is None else found.cache.model_dump(mode="json"),
        "yours": _own_files(settings),
        "stays": list(stays),
    }


def _own_files(settings: Settings) -> list[str]:
    """Files that the user wrote for us."""
    from orchestrator.settings import user_file

    files = (settings.secrets_file, user_file())
    return [str(path) for path in files if path.exists()]


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:.0f} MB"
