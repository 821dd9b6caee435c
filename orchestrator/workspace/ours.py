"""Which files of a workspace are the orchestrator's own, whoever's project they belong to. Pure.

An agent that could write one could give the next agent any right: other hosts, other secrets, a
script in the place of its model.
"""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.domain.outside import RULES_NAME
from orchestrator.domain.tool_server import SERVER_NAME, SERVERS
from orchestrator.workspace.paths import parents, plain_parts

AGENT_NAME = "agent.md"
PROJECT_NAMES = ("orchestrator.yaml", RULES_NAME)
"""Of files that count for all of a project."""

OUR_NAMES = frozenset((AGENT_NAME, SERVER_NAME, *PROJECT_NAMES))

AGENT_HEAD_BYTES = 16
"""Of an agent.md, to know it by."""


def is_ours(path: str, homes: Collection[str] = ()) -> bool:
    """Whether a path below a workspace decides what an orchestrator does.

    `homes` are the folders that hold an agent.md ("" is the workspace): all in them counts, such
    as script.yaml and memory.md.
    """
    return is_our_name(path) or any(folder in homes for folder in ("", *parents(path)))


def is_our_name(path: str) -> bool:
    """The same, by the path alone. Of an agent.md, `is_agent` says whether it is one."""
    names = plain_parts(path)
    return names[-1] in (*PROJECT_NAMES, AGENT_NAME) or (
        names[-1] == SERVER_NAME and len(names) > 2 and names[-3] == SERVERS
    )


def is_agent(head: bytes) -> bool:
    """Whether a file that is called agent.md describes an agent, by how it begins; it may be a
    page of documentation.
    """
    return head.removeprefix(b"\xef\xbb\xbf").startswith(b"---")
