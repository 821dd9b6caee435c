"""Row: one measured line, what it is compared with, and whether it is good enough. Pure."""

from __future__ import annotations

import operator
from typing import Literal

from orchestrator.domain import Frozen

Unit = Literal["ms", "s", "MB/s", "/s", "MB", "kB", "files"]

_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}
_DIGITS = {"ms": 1, "s": 1, "MB/s": 0, "/s": 0, "MB": 3, "kB": 1, "files": 0}


class Target(Frozen):
    """What a row has to reach, as a ratio or as a value of its own."""

    of: Literal["ratio", "ours"]
    how: Literal["<=", ">=", "<"]
    value: float

    def met(self, ours: float, ratio: float | None) -> bool:
        measured = ratio if self.of == "ratio" else ours
        return measured is not None and bool(_COMPARE[self.how](measured, self.value))


class Row(Frozen):
    """One line of the table: medians of one run."""

    name: str
    against: str = ""
    """The plain tool that a user would take instead."""
    unit: Unit
    ours: float
    theirs: float | None = None
    target: Target | None = None
    """None: told, not judged."""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.theirs else None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met(self.ours, self.ratio)

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text: name, ours, theirs, ratio, target, met."""
        against = f" ({self.against})" if self.against else ""
        return (
            self.name,
            self._amount(self.ours),
            "" if self.theirs is None else self._amount(self.theirs) + against,
            "" if self.ratio is None else f"{self.ratio:.3f}",
            self._target_text(),
            {None: "", True: "yes", False: "NO"}[self.met],
        )

    def _amount(self, value: float) -> str:
        return f"{value:,.{_DIGITS[self.unit]}f} {self.unit}".replace(" /s", "/s")

    def _target_text(self) -> str:
        if self.target is None:
            return ""
        how = self.target.how.replace("<=", "≤").replace(">=", "≥")
        if self.target.of == "ratio":
            return f"{how} {self.target.value:g}×"
        return f"{how} {self.target.value:g} {self.unit}".replace(" /s", "/s")


def ratio_at_most(value: float) -> Target:
    return Target(of="ratio", how="<=", value=value)


def ratio_at_least(value: float) -> Target:
    return Target(of="ratio", how=">=", value=value)


def ours_below(value: float) -> Target:
    return Target(of="ours", how="<", value=value)
