"""`orchestrator images`: build, list and prune the images that agents run in."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.options import JsonOption
from orchestrator.surfaces.progress import shown_progress
from orchestrator.surfaces.text import print_lines, table

MEGABYTE = 1_000_000
"""As `docker images` counts."""

images_app = Commands("The images that agents run in.")


EVERY_RUNNER = "all"

ImageRunnerOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The agent CLI that is in it; `all`: each that runs here.",
    ),
]


@images_app.command()
def build(*, runner: ImageRunnerOption = "claude", as_json: JsonOption = False) -> None:
    """Build the image of a runner, unless it is there already."""
    # Here and below, not at the top: `--help` need not wait for docker and pydantic.
    from orchestrator.app import open_engine
    from orchestrator.containers.images.agent_image import build_agent_image, runners_here
    from orchestrator.containers.images.cli_parts import IMAGE_RUNNERS
    from orchestrator.settings import read_settings

    began = time.monotonic()
    settings = read_settings()
    if runner not in (*IMAGE_RUNNERS, EVERY_RUNNER):
        known = ", ".join((*IMAGE_RUNNERS, EVERY_RUNNER))
        raise typer.BadParameter(f"no runner {runner!r}; known: {known}")
    with open_engine(settings) as engine, shown_progress() as progress:
        runners = runners_here(engine) if runner == EVERY_RUNNER else (runner,)
        tags = [build_agent_image(engine, settings, each, progress) for each in runners]
    if as_json:
        seconds = round(time.monotonic() - began, 3)
        print(json.dumps({"image": tags[0], "images": tags, "seconds": seconds}))
    else:
        print_lines(tags)


@images_app.command("list")
def list_(*, as_json: JsonOption = False) -> None:
    """List our images on the engine, newest first."""
    from orchestrator.app import open_engine
    from orchestrator.containers.images.agent_image import all_current_tags, list_images
    from orchestrator.settings import read_settings

    settings = read_settings()
    with open_engine(settings) as engine:
        current = all_current_tags(engine, settings)
        images = list_images(engine)
    if as_json:
        rows = [{**image.model_dump(), "current": image.tag in current} for image in images]
        print(json.dumps({"images": rows}))
        return
    lines = []
    for image in images:
        made = datetime.fromtimestamp(image.created_seconds, UTC).strftime("%Y-%m-%d")
        notes = [
            note
            for note, holds in (("current", image.tag in current), ("in use", image.in_use))
            if holds
        ]
        size = f"{image.size_bytes / MEGABYTE:.0f} MB"
        lines.append((image.tag, made, f"{size:>6}", ", ".join(notes)))
    print_lines(table(lines))


@images_app.command()
def prune(*, as_json: JsonOption = False) -> None:
    """Remove images of agents that are neither current nor in use."""
    from orchestrator.app import open_engine
    from orchestrator.containers.images.agent_image import all_current_tags, prune_images
    from orchestrator.settings import read_settings

    settings = read_settings()
    with open_engine(settings) as engine, shown_progress() as progress:
        keep = all_current_tags(engine, settings)
        removed = prune_images(engine, settings, keep, progress)
    if as_json:
        print(json.dumps({"removed": [image.tag for image in removed]}))
        return
    for image in removed:
        print(f"removed {image.tag} ({image.size_bytes / MEGABYTE:.0f} MB)")
    if not removed:
        print("nothing to remove")
