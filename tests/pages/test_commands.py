"""Every command of README and of the reference pages is run as it stands, in its order, from an
empty folder, from the wheel alone, at 80 columns: at a terminal, or without one. `make soak` types
each page both ways.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from orchestrator.shipped import reference_pages
from orchestrator.surfaces.cli.main import app
from tests.pages.installed import ROOT, reader_environment
from tests.pages.page_commands import page_commands
from tests.pages.reader import COLUMNS, Typed, type_commands

PAGES = {
    "readme": ROOT / "README.md",
    **reference_pages(),
}

FIT = (
    *("orchestrator agents list", "orchestrator cost", "orchestrator help"),
    *("orchestrator images list", "orchestrator plan", "orchestrator run ", "orchestrator runs"),
    "orchestrator sessions list",
)
"""What fits a terminal of 80 columns; others show paths, or files as they are, or share it."""

MOST_BY_HAND = 25
"""Commands of all pages that no test runs."""


class Reader:
    """Stands in an empty folder, with a home of his own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = env

    def types(self, page: Path, *, tty: bool) -> list[Typed]:
        return type_commands(page_commands(page.read_text()), self.folder, self.env, tty=tty)


@pytest.fixture
def reader(bin_: Path, image: str, tmp_path: Path) -> Iterator[Reader]:
    home, folder = tmp_path / "home", tmp_path / "my-project"
    home.mkdir()
    folder.mkdir()
    env = reader_environment(bin_, home)
    yield Reader(folder, env)
    argv = ["orchestrator", "uninstall", "--yes", "--keep-images", "--json"]
    subprocess.run(argv, env=env, cwd=folder, check=True, capture_output=True)


def ways(name: str) -> set[str]:
    """How a page is typed: where its output is looked at, a page may be typed twice."""
    commands = [c for c in page_commands(PAGES[name].read_text()) if not c.by_hand]
    ways = set()
    if any(command.text.startswith(FIT) for command in commands):
        ways.add("terminal")
    if any(command.prints for command in commands) or (commands and not ways):
        ways.add("log")
    return ways


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in PAGES for way in sorted(ways(name))]
)
def test_the_commands_of_a_page_work_as_they_stand(name: str, way: str, reader: Reader) -> None:
    commands_work(name, reader, tty=way == "terminal")


def commands_work(name: str, reader: Reader, *, tty: bool) -> None:
    typed = reader.types(PAGES[name], tty=tty)
    for command, code, screen in typed:
        where = f"{PAGES[name].relative_to(ROOT)}:{command.line}: {command.text}\n{screen}"
        assert code == command.exit_code, where
        assert "Traceback" not in screen, where
        if tty and command.text.startswith(FIT) and not command.text.endswith("&"):
            assert [line for line in screen.splitlines() if len(line) > COLUMNS] == [], where
        if command.prints and not tty:
            assert steady(screen) == steady(command.prints), where


def test_few_commands_are_left_to_the_reader() -> None:
    by_hand = [
        f"{page}:{command.line}"
        for page in PAGES.values()
        for command in page_commands(page.read_text())
        if command.by_hand
    ]
    assert len(by_hand) <= MOST_BY_HAND, by_hand


def test_every_command_is_tried_out_on_some_page() -> None:
    texts = [c.text for page in PAGES.values() for c in page_commands(page.read_text())]
    group = typer.main.get_group(app)
    commands = {
        f"orchestrator {name} {sub}".strip()
        for name, command in group.commands.items()
        for sub in getattr(command, "commands", {"": None})
        if not command.hidden
    }
    shown = {command for command in commands if any(command in text for text in texts)}
    assert commands - shown == set()


def steady(transcript: str) -> list[str]:
    """A transcript without what differs from run to run: times, ids, model requests."""
    lines = [line.rstrip() for line in transcript.splitlines()]
    lines = [line for line in lines if not re.match(r" +[\d.]+ s  model ", line)]
    text = "\n".join(lines).strip("\n")
    for changing in (r"^ +[\d.]+ s  ", r"(?<=; )[\d.]+ s", r"(?<=claude:)\w+", r"(?<=orch-)\w+"):
        text = re.sub(changing, "…", text, flags=re.MULTILINE)
    return text.splitlines()
