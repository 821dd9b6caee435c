"""Which program a file was written for, by its name and place. Pure."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

from orchestrator.catalog.foreign.tools import LOCAL_TOOLS, LOOKING_TOOLS
from orchestrator.domain import Frozen

DialectName = Literal["claude", "copilot", "openhands", "persona"]


class Dialect(Frozen):
    """What a program takes for granted in its files."""

    name: DialectName
    program: str
    """As it is called in a sentence."""
    without_tools: tuple[str, ...]
    """What an agent may use here whose file names no tools."""
    unsaid: str
    """What that means there."""
    read_only: bool = False
    """Its agents change nothing."""


CLAUDE = Dialect(
    name="claude",
    program="Claude Code",
    without_tools=LOCAL_TOOLS,
    unsaid="every tool in Claude Code",
)
COPILOT = Dialect(
    name="copilot", program="Copilot", without_tools=LOCAL_TOOLS, unsaid="every tool in Copilot"
)
OPENHANDS = Dialect(
    name="openhands", program="OpenHands", without_tools=(), unsaid="no tool in OpenHands"
)
PERSONA = Dialect(
    name="persona",
    program="a subagents server",
    without_tools=LOOKING_TOOLS,
    unsaid="all that a read-only sandbox lets an agent do",
    read_only=True,
)

PLACES = {
    ".claude/agents": CLAUDE,
    ".github/agents": COPILOT,
    ".copilot/agents": COPILOT,
    ".openhands/agents": OPENHANDS,
    ".agents/agents": OPENHANDS,
}
"""Where programs look for their agents in a project."""

COPILOT_SUFFIX = ".agent.md"


def dialect_of(path: Path) -> Dialect:
    """Whose file this is; what is in no known place is taken for Claude Code's."""
    if path.suffix == ".yaml":
        return PERSONA
    if path.name.endswith(COPILOT_SUFFIX):
        return COPILOT
    for first, second in pairwise(path.parts[:-1]):
        if dialect := PLACES.get(f"{first}/{second}"):
            return dialect
    return CLAUDE


def stem(path: Path) -> str:
    """The file's name without what says of which kind it is."""
    return path.name.removesuffix(COPILOT_SUFFIX).removesuffix(".md").removesuffix(".yaml")
