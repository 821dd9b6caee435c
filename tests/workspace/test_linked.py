"""Other names of files, by way of links: by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.workspace.linked import MAX_NAMES, TOO_MANY, LinkedNames

ROOT = Path("/home/me/project")


def acts(links: dict[str, str], path: str, *, is_link: bool = False) -> bool:
    return bool(LinkedNames(links, ROOT).why_it_acts(path, is_link=is_link))


@pytest.mark.parametrize(
    ("links", "path"),
    [
        ({"CLAUDE.md": "a"}, "a"),
        ({"CLAUDE.md": "./x/../a"}, "a"),
        ({"sub/CLAUDE.md": "../a"}, "a"),
        ({"CLAUDE.md": "/home/me/project/a"}, "a"),
        ({"CLAUDE.md": "x/a", "x": "/home/me/project/y"}, "y/a"),
        ({"CLAUDE.md": "b", "b": "c", "c": "d"}, "d"),
        ({"CLAUDE.md": "b", "b": "c", "c": "d"}, "c"),
        ({"CLAUDE.md": "x/../a", "x": "deep/down"}, "deep/a"),
        ({".claude": "conf"}, "conf/hooks/run.sh"),
        ({".github": "ci"}, "ci/workflows/x.yml"),
        ({"outer": "inner", "inner/.claude": "../conf"}, "conf/settings.json"),
        ({"loop": ".", ".claude": "loop/conf"}, "conf/settings.json"),
        ({"Claude.MD": "Docs/A"}, "docs/a"),
        ({".claude": "x", "x/own": "../y", "y/z": "../deep"}, "deep/file"),
        ({"node_modules/.bin/tool": "../../tool.js"}, "tool.js"),
    ],
)
def test_a_file_acts_by_every_name_that_links_give_it(links: dict[str, str], path: str) -> None:
    assert acts(links, path)


@pytest.mark.parametrize(
    ("links", "path"),
    [
        ({}, "a"),
        ({"CLAUDE.md": "a"}, "b"),
        ({"CLAUDE.md": "/etc/a"}, "a"),
        ({"CLAUDE.md": "../a"}, "a"),
        ({"CLAUDE.md": "x/../../a"}, "a"),
        ({"notes.md": "a"}, "a"),
        ({"a": "b", "b": "a"}, "c"),
        ({"CLAUDE.md": "CLAUDE.md"}, "a"),
        ({f"{n}": "." for n in range(100)}, "a"),
        ({".github": "."}, "a"),
        ({f"packages/{n}/node_modules/a": "../../a" for n in range(2000)}, "packages/a/x.ts"),
    ],
)
def test_a_file_that_no_acting_name_leads_to_does_not(links: dict[str, str], path: str) -> None:
    assert not acts(links, path)


def test_a_link_acts_if_it_may_lead_to_a_folder_in_which_something_does() -> None:
    assert not acts({}, ".github")
    assert acts({}, ".github", is_link=True)
    assert acts({".github": "ci", "ci": "old"}, "ci", is_link=True)


def test_a_file_with_more_names_than_can_be_looked_at_acts() -> None:
    links = {f"{number}/.github": "../a" for number in range(MAX_NAMES + 1)}
    assert LinkedNames(links, ROOT).why_it_acts("a") == TOO_MANY
