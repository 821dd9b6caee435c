"""The reference pages name every command and setting, and no other; their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from orchestrator.settings import SOURCES
from orchestrator.shipped import reference_pages
from orchestrator.surfaces.cli.main import app, main
from orchestrator.surfaces.cli.setup.pages import ABOUT
from tests.bench.report import four_numbers, table_on

ROOT = Path(__file__).parents[2]
COMMANDS = (ROOT / "orchestrator/surfaces/cli/README.md").read_text()
SETTINGS = (ROOT / "orchestrator/SETTINGS.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(
        path
        for folder in (".github", "agents", "images", "orchestrator", "tests")
        for path in sorted((ROOT / folder).rglob("*.md"))
    ),
]


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"^    orchestrator ([a-z]+(?: [a-z]+)?) ", COMMANDS, re.MULTILINE))
    group = typer.main.get_group(app)
    commands = {
        f"{name} {sub}".strip()
        for name, command in group.commands.items()
        if not command.hidden
        for sub in getattr(command, "commands", {"": None})
    }
    assert commands <= listed
    assert {line.split()[0] for line in listed} <= set(group.commands)


def test_every_setting_is_in_the_table() -> None:
    rows = [line.split(" | ") for line in SETTINGS.splitlines() if line.startswith("| `")]
    named = {variable for row in rows for variable in re.findall(r"`([A-Z_]{6,})`", row[0])}
    assert named == {source.variable for source in SOURCES.values()} | {"DOCKER_TLS_VERIFY"}
    told = {row[1] for row in rows} - {"no"}
    projects = {f"`{name}`" for name, source in SOURCES.items() if source.writer == "project"}
    users = {f"`{name}`, yours" for name, source in SOURCES.items() if source.writer == "user"}
    assert told == projects | users


def test_every_page_can_be_shown_by_its_topic(capsys: pytest.CaptureFixture[str]) -> None:
    pages = reference_pages()
    assert list(ABOUT) == list(pages)
    for topic, page in pages.items():
        with pytest.raises(SystemExit) as left:
            main(["help", topic])
        assert (left.value.code, capsys.readouterr().out) == (0, page.read_text())
    with pytest.raises(SystemExit) as left:
        main(["help", "nothing"])
    assert left.value.code == 5
    assert "there are agent, servers, " in capsys.readouterr().err


def test_the_readme_has_four_numbers_of_the_benchmarks() -> None:
    shown = table_on((ROOT / "README.md").read_text())
    assert shown == four_numbers((ROOT / "tests/bench/README.md").read_text())


def test_every_link_of_a_page_leads_somewhere() -> None:
    assert {str(page.relative_to(ROOT)): lost for page in PAGES if (lost := _broken(page))} == {}


def _broken(page: Path) -> list[str]:
    """Links to no file, or to no heading of it."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        name, _, heading = link.partition("#")
        to = page.parent / name if name else page
        if "://" not in link and (not to.exists() or (heading and heading not in _headings(to))):
            broken.append(link)
    return broken


def _headings(page: Path) -> set[str]:
    """As GitHub makes them into anchors."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
