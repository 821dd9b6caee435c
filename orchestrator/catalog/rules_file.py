""".mcp-gateway-rules.json on disk -> OutsideRules, and again when it changed.

A file that is wrong now changes nothing: the rules that counted before go on, and its operator is
told. Half of a file that is being saved would otherwise open what it does not name yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.catalog.document import FileRefused
from orchestrator.catalog.folder import file_text
from orchestrator.catalog.rules_text import PinnedNames, parse_rules, rule_warnings
from orchestrator.domain import Frozen
from orchestrator.domain.outside import RULES_NAME, OutsideRules
from orchestrator.domain.words import counted
from orchestrator.errors import OperatorError

EXAMPLE = '{"agents": {"default": {"deny": {"servers": ["*"]}}}}'


class Reloads(Frozen):
    """How reading the rules has gone so far; times in seconds since 1970."""

    last_attempt: float = 0.0
    last_success: float = 0.0
    last_error: str = ""
    """Why the file as it is now does not count; empty if it does."""
    attempt_count: int = 0
    success_count: int = 0


class RulesFile:
    """The rules of this moment. Not for several threads at once."""

    def __init__(
        self, path: Path, servers: Callable[[], PinnedNames], tell: Callable[[str], None]
    ) -> None:
        """Read the file; OperatorError with all that is wrong with it. `servers` are those that
        there are, with their tools; `tell` says something to the operator.
        """
        self.path = path
        self.reloads = Reloads()
        self._servers = servers
        self._tell = tell
        self._seen = _Seen()
        self._rules = OutsideRules()
        self._attempt()
        if self.reloads.last_error:
            raise OperatorError(f"the rules cannot be used:\n{self.reloads.last_error}")
        for warning in self.warnings():
            tell(f"{path}: {warning}")

    def current(self) -> OutsideRules:
        """What counts now: what the file says, or what it said when it was last right."""
        if self._read() != self._seen:
            self.reload()
        return self._rules

    def reload(self) -> None:
        """Read the file again, changed or not, and tell what has come of it."""
        if not self._attempt():
            wrong = self.reloads.last_error
            self._tell(f"the rules are wrong now, and those of before go on:\n{wrong}")
            return
        self._tell(
            f"{self.path}: read again, rules for {counted(len(self._rules.agents), 'agent')}"
        )
        for warning in self.warnings():
            self._tell(f"{self.path}: {warning}")

    def warnings(self) -> tuple[str, ...]:
        """Rules that have no effect as things are."""
        return rule_warnings(self._rules, self._servers())

    def _read(self) -> _Seen:
        try:
            return _Seen(file_text(self.path))
        except FileRefused as exc:
            return _Seen(refused=f"{self.path}: {exc}")

    def _attempt(self) -> bool:
        self._seen = self._read()
        found: OutsideRules | Sequence[object] = (self._seen.refused,)
        if not self._seen.refused:
            found = parse_rules(self._seen.text, self.path)
        now, right = time.time(), isinstance(found, OutsideRules)
        if isinstance(found, OutsideRules):
            self._rules = found
        self.reloads = Reloads(
            last_attempt=now,
            last_success=now if right else self.reloads.last_success,
            last_error="" if isinstance(found, OutsideRules) else "\n".join(map(str, found)),
            attempt_count=self.reloads.attempt_count + 1,
            success_count=self.reloads.success_count + right,
        )
        return right


class _Seen(NamedTuple):
    """A file as it was read."""

    text: str = ""
    refused: str = ""
    """Why it has no text."""


def read_rules(path: Path) -> OutsideRules | None:
    """What a file says; None if there is none, or one that cannot be used."""
    try:
        found = parse_rules(file_text(path), path)
    except FileRefused:
        return None
    return found if isinstance(found, OutsideRules) else None


def find_rules(named: Path | None, project: Path, home: Path) -> Path:
    """The file that counts: the one that the operator names, else the first that is there of the
    usual places; OperatorError if none is.
    """
    if named is not None:
        return named
    places = (
        project / RULES_NAME,
        home / ".config/agent-mcp-gateway" / RULES_NAME,
        project / "config" / RULES_NAME,
    )
    for place in places:
        if place.exists():
            return place
    raise OperatorError(
        f"there are no rules that say which agent may call what; write {places[0]}, such as "
        f"{EXAMPLE}, or name another file in GATEWAY_RULES"
    )
