"""The agents that come with the project, for tests: as they are, but for a few fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

AGENTS = Path(__file__).parent.parent.parent / "agents"


def shipped_fields(name: str) -> dict[str, Any]:
    """What stands between the dashes of an agent's agent.md."""
    fields = yaml.safe_load(_parts(name)[0])
    assert isinstance(fields, dict)
    return fields


def place_shipped(agents_dir: Path, name: str, **replaced: object) -> None:
    """Write a shipped agent into a test's own folder, with these fields instead of its own."""
    fields = shipped_fields(name) | replaced
    (agents_dir / name).mkdir(parents=True, exist_ok=True)
    text = f"---\n{yaml.safe_dump(fields)}---\n{_parts(name)[1]}"
    (agents_dir / name / "agent.md").write_text(text)


def _parts(name: str) -> tuple[str, str]:
    _, fields, body = (AGENTS / name / "agent.md").read_text().split("---\n", 2)
    return fields, body
