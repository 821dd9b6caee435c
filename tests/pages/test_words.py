"""Readers meet no word of ours that is not explained where they meet it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from orchestrator.shipped import reference_pages
from orchestrator.surfaces.cli.main import app
from tests.pages.installed import ROOT

NEVER = "a word of the code: say what it does instead"

INTERNALS = {
    # What explains it, on a page that uses it; a message has no room for that, and uses none.
    "wire": r"one wire|wire, the one connection",
    "warden": r"the warden, which is PID 1|PID 1 \(the warden\)",
    "spares?": r"keeps N containers|containers? (that )?wait",
    # And what no reader needs.
    "egress": NEVER,
    "envelopes?": NEVER,
    "broker(ed|s)?": NEVER,
    "staging|stages?": NEVER,
    "reap(er|ed|s)?": NEVER,
    "shelf": NEVER,
    "desk": NEVER,
    "errands?": NEVER,
    "makings": NEVER,
    "mux": NEVER,
    "frames?": NEVER,
    "canar(y|ies)": NEVER,
    "checkpoints?": NEVER,
    "machinery": NEVER,
    # The subject of a sentence is one that its reader can point at: caller, agent, engine.
    (SOMEBODY := "somebody|someone|nobody|no one|anybody|anyone|everybody|everyone|whoever"): NEVER,
}

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", ".github/SECURITY.md")),
    *reference_pages().values(),
]

INSIDE = ("wire/warden.py", "workspace/inside.py", "doctor/probe.py", "containers/disk_count.py")
"""Programs in a container: what they print reaches no reader."""

UNSEEN = {"debug", "info"}
"""Levels of a log that is shown from `warning` on."""


def used(text: str) -> Iterator[str]:
    """Which of them a text uses; in quotes of code they are names."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    for word in INTERNALS:
        if re.search(rf"\b({word})\b", plain, re.IGNORECASE):
            yield word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_explains_every_word_of_ours_that_it_uses(page: Path) -> None:
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    left = [w for w in used(prose) if INTERNALS[w] is NEVER or not re.search(INTERNALS[w], text)]
    assert left == []


def test_what_developers_read_has_subjects_that_can_be_pointed_at_too() -> None:
    folders = ("orchestrator", "agents", "tests/attacks", "tests/bench")
    pages = [page for folder in folders for page in (ROOT / folder).rglob("*.md")]
    assert len(pages) > 40
    assert [
        str(page.relative_to(ROOT)) for page in pages if SOMEBODY in used(page.read_text())
    ] == []


def test_no_message_uses_a_word_of_ours() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}: {text}"
        for path in sorted((ROOT / "orchestrator").rglob("*.py"))
        if not str(path).endswith(INSIDE)
        for line, text in messages(path)
        for word in used(text)
    ]
    assert found == []


def test_no_help_of_a_command_or_a_tool_uses_a_word_of_ours() -> None:
    helps = [*_command_helps(typer.main.get_command(app)), *_tool_descriptions()]
    assert len(helps) > 100
    assert [(word, text) for text in helps for word in used(text)] == []


def _command_helps(command: Any) -> Iterator[str]:
    yield command.help or ""
    yield from (getattr(parameter, "help", "") or "" for parameter in command.params)
    for each in getattr(command, "commands", {}).values():
        yield from _command_helps(each)


def _tool_descriptions() -> Iterator[str]:
    """The docstrings of functions in functions of the MCP server: a client's model reads them."""
    for path in (ROOT / "orchestrator/surfaces/mcp").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for outer in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            for inner in ast.walk(outer):
                if isinstance(inner, ast.AsyncFunctionDef):
                    yield ast.get_docstring(inner) or ""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The sentences in a module that can reach a reader."""
    tree = ast.parse(path.read_text())
    unseen = {id(part) for node in ast.walk(tree) for part in _unseen(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in unseen:
            continue
        if isinstance(node.value, str) and " " in node.value.strip() and not _is_sql(node.value):
            yield node.lineno, node.value


def _unseen(node: ast.AST) -> Iterator[ast.AST]:
    """What is not said to a reader: docstrings, quiet logs, mistakes of ours."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in UNSEEN or name in ("TypeError", "AssertionError", "RuntimeError"):
            yield from ast.walk(node)


def _is_sql(text: str) -> bool:
    return bool(re.search(r"\b(SELECT|UPDATE|INSERT|ALTER|CREATE|json_extract)\b", text))


def test_a_word_of_ours_is_seen_in_every_form_but_not_as_a_name() -> None:
    assert list(used("The Warden reaps it.")) == ["warden", "reap(er|ed|s)?"]
    assert list(used("`ask: nobody`, see [it](#spares); wired, unframed")) == []
