"""The ways in which authors may write fields -> the fields of a noun. Pure."""

from __future__ import annotations

import re

from orchestrator.catalog.problems import Problems, did_you_mean, found
from orchestrator.plain_yaml import Loc

SIZES_MB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt])(?:i?b)?", re.IGNORECASE)
TIMES_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])")


def moved(fields: dict[str, object], old: Loc, new: Loc, problems: Problems) -> object:
    """Take the value out of one field, to be put into another, which stands where it stood."""
    problems.lines[new] = problems.line_of(old)
    return fields.pop(str(old[-1]))


def spell_network(fields: dict[str, object], problems: Problems) -> None:
    """`none`, `open`, or a mapping whose mode follows from what it holds."""
    given = fields.get("network")
    if isinstance(given, dict):
        if "mode" not in given:
            fields["network"] = {"mode": "allow", **given}
    elif given in ("none", "open"):
        fields["network"] = {"mode": given}
    elif "network" in fields:
        guess = did_you_mean(given, ("none", "open")) if isinstance(given, str) else None
        problems.add(
            ("network",),
            f"found {found(given)}; allowed: none, open, or hosts as in `allow: [api.github.com]`"
            + (f"; did you mean '{guess}'?" if guess else ""),
        )
        del fields["network"]


def spell_sizes(fields: dict[str, object], problems: Problems, names: tuple[str, ...]) -> None:
    """`memory: 2g` -> `memory_mb: 2048`, and the same for the other sizes."""
    given = fields.get("resources")
    if not isinstance(given, dict):
        return
    resources = dict(given)
    for field in names:
        if field not in resources:
            continue
        loc: Loc = ("resources", field)
        size = moved(resources, loc, ("resources", f"{field}_mb"), problems)
        match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
        megabytes = float(match[1]) * SIZES_MB[match[2].lower()] if match else 0.5
        if f"{field}_mb" in resources:
            problems.add(loc, f"is given as {field}_mb as well; remove one of them")
        elif not megabytes.is_integer():
            problems.add(loc, f'found {found(size)}; allowed: whole MiB, such as "512m" or "2g"')
        else:
            resources[f"{field}_mb"] = int(megabytes)
    fields["resources"] = resources


def spell_time(fields: dict[str, object], old: Loc, meant: str, problems: Problems) -> None:
    """`idle_after: 7d` -> `idle_seconds: 604800`; `old` is where it is in the document."""
    name = str(old[-1])
    if name not in fields:
        return
    time = moved(fields, old, (*old[:-1], meant), problems)
    match = _TIME.fullmatch(time.strip()) if isinstance(time, str) else None
    if meant in fields:
        problems.add(old, f"is given as {meant} as well; remove one of them")
    elif match is None:
        problems.add(old, f'found {found(time)}; allowed: a time, such as "90s", "30m" or "7d"')
    else:
        fields[meant] = float(match[1]) * TIMES_SECONDS[match[2]]
