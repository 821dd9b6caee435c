"""The mark that makes a test an attack: each has a row in README.md here, made from them."""

from __future__ import annotations

from typing import Literal

import pytest

Group = Literal[
    "network",
    "DNS",
    "metadata and rebinding",
    "gateway abuse",
    "secret hunting",
    "files, links and archives",
    "git",
    "callers of tools",
    "callers over HTTP",
    "servers of tools",
    "processes and resources",
    "images",
    "helpers of the orchestrator",
    "wire",
    "planted settings",
    "words from inside",
]


def attack(group: Group, name: str, outcome: str) -> pytest.MarkDecorator:
    """What is tried, in a few words, and what comes of it on both sides."""
    return pytest.mark.attack(group=group, name=name, outcome=outcome)
