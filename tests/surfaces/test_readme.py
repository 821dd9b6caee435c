"""README.md names every command and every setting, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from orchestrator.settings import SOURCES
from orchestrator.surfaces.cli.main import app

README = (Path(__file__).parent.parent.parent / "README.md").read_text()


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"^    orchestrator ([a-z]+(?: [a-z]+)?) ", README, re.MULTILINE))
    group = typer.main.get_group(app)
    commands = {
        f"{name} {sub}".strip()
        for name, command in group.commands.items()
        for sub in getattr(command, "commands", {"": None})
    }
    assert commands <= listed
    assert {line.split()[0] for line in listed} <= set(group.commands)


def test_every_setting_is_in_the_table() -> None:
    section = README.partition("## Settings")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    named = {variable for row in rows for variable in re.findall(r"`([A-Z_]{6,})`", row[0])}
    assert named == {source.variable for source in SOURCES.values()} | {"DOCKER_TLS_VERIFY"}
    told = {row[1] for row in rows} - {"no"}
    projects = {f"`{name}`" for name, source in SOURCES.items() if source.writer == "project"}
    users = {f"`{name}`, yours" for name, source in SOURCES.items() if source.writer == "user"}
    assert told == projects | users
