"""The text of an agent file of others -> AgentSpec with notes, or what is wrong with it. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from orchestrator.catalog.foreign.dialects import Dialect, dialect_of, stem
from orchestrator.catalog.foreign.draft import Draft
from orchestrator.catalog.foreign.fields import FIELD_NAMES, honoured, read_foreign_fields
from orchestrator.catalog.foreign.front_matter import (
    FrontMatter,
    UnreadFields,
    names_of,
    read_front_matter,
    read_lenient,
)
from orchestrator.catalog.foreign.names import agent_name
from orchestrator.catalog.foreign.notes import Note
from orchestrator.catalog.problems import Problem, Problems
from orchestrator.domain.agent import AgentSpec

is_field = names_of(FIELD_NAMES)

DOCUMENTS = frozenset(
    ("readme", "changelog", "license", "contributing", "agents", "claude", "gemini", "memory")
)
"""Files that lie among agents and are none; they are passed over without a word."""


class ForeignAgent(NamedTuple):
    """An agent of others, and what of its file counts differently here."""

    agent: AgentSpec
    notes: tuple[Note, ...]
    honoured: tuple[str, ...]
    """Fields that mean here what they mean there."""
    dialect: Dialect
    places: Problems
    """Nothing is wrong; it knows the lines."""


class ForeignMistake(NamedTuple):
    """A file that was meant to be an agent and cannot be used."""

    name: str
    problems: tuple[Problem, ...]


class NoAgent(NamedTuple):
    """A file that is no agent; why, unless that needs no word."""

    note: Note | None = None


def read_foreign(text: str, path: Path) -> ForeignAgent | ForeignMistake | NoAgent:
    """What a file of others comes to. It raises nothing."""
    dialect, file_stem = dialect_of(path), stem(path)
    name = agent_name(file_stem, file_stem)
    if "\0" in text:
        line = 1 + text[: text.index("\0")].count("\n")
        return _mistake(name, path, line, "", "holds a NUL character; remove it")
    if dialect.name == "persona":
        head: FrontMatter | UnreadFields | None = read_lenient(text, 1, is_field)
    else:
        head = read_front_matter(text, is_field)
    if head is None:
        return _no_agent(path, file_stem, "does not begin with fields, so it is no agent")
    if isinstance(head, UnreadFields):
        field = str(head.loc[0]) if head.loc else ""
        return _mistake(name, path, head.line, field, head.message)
    fields = head.fields
    if dialect.name == "persona" and "persona" not in fields:
        return _no_agent(path, file_stem, "has no persona, so it is no agent")
    if not {"name", "description", "persona"} & set(fields):
        return _no_agent(path, file_stem, "has neither name nor description, so it is no agent")
    return _of_fields(head, path, dialect, file_stem)


def _of_fields(
    head: FrontMatter, path: Path, dialect: Dialect, file_stem: str
) -> ForeignAgent | ForeignMistake:
    draft = Draft(path, dialect, file_stem, head.lines)
    for mended in head.mended:
        draft.problems.lines.setdefault(mended.loc, mended.line)
        draft.changed(str(mended.loc[0]) if mended.loc else "", mended.message)
    read_foreign_fields(draft, head.fields)
    prompt = head.body
    if dialect.name == "persona":
        persona = head.fields["persona"]
        prompt = persona if isinstance(persona, str) else ""
        if not prompt.strip():
            draft.problems.add(("persona",), "must be text: what the agent is told to be")
    name = str(draft.fields["name"])
    if draft.problems.found:
        return ForeignMistake(name, draft.problems.ordered())
    try:
        agent = AgentSpec.model_validate_json(
            json.dumps({**draft.fields, "prompt": prompt.strip()}), strict=True
        )
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        field = str(error["loc"][0]) if error["loc"] else ""
        return _mistake(name, path, draft.problems.line_of((field,)), field, error["msg"])
    notes = tuple(sorted(draft.notes, key=lambda note: note.line))
    return ForeignAgent(agent, notes, honoured(draft, head.fields), dialect, draft.problems)


def _mistake(name: str, path: Path, line: int, field: str, message: str) -> ForeignMistake:
    return ForeignMistake(name, (Problem(path=path, line=line, field=field, message=message),))


def _no_agent(path: Path, file_stem: str, why: str) -> NoAgent:
    if file_stem.lower() in DOCUMENTS:
        return NoAgent()
    return NoAgent(Note(path=path, line=1, field="", message=why, kind="passed over"))
