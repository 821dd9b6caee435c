"""What is written on every container from the create call on, so that it can be found again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from orchestrator.domain import Frozen

LABEL_PREFIX = "orchestrator."
STATE = LABEL_PREFIX + "state"
"""Which state directory its makers share: orchestrators of one user know of each other."""
OWNER = LABEL_PREFIX + "owner"
KIND = LABEL_PREFIX + "kind"
KEY = LABEL_PREFIX + "key"
SPEC = LABEL_PREFIX + "spec"
"""A digest of all that the engine was asked for; create.py writes it."""
DEADLINE = LABEL_PREFIX + "deadline"
WRITES = LABEL_PREFIX + "writes"
"""Directories of the host that it may write to, as JSON."""

ContainerKind = Literal["disposable", "kept"]


class ContainerInfo(Frozen):
    """A container of ours as the engine lists it."""

    id: str
    name: str
    status: str
    """created, running, paused, exited, removing or dead."""
    kind: ContainerKind
    state: str
    owner: str
    key: str = ""
    created: float = 0.0
    deadline: float = 0.0
    """When it should have ended by itself; 0 for never."""
    writes: tuple[str, ...] = ()
    """Directories of the host that it may write to."""
    labels: dict[str, str] = {}
    """Everything else that was written on it."""


def make_labels(
    *,
    state: str,
    owner: str,
    kind: ContainerKind,
    key: str = "",
    deadline: float = 0.0,
    writes: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The labels of one container; `extra` cannot overwrite ours."""
    return {
        **(extra or {}),
        **({WRITES: json.dumps(list(writes))} if writes else {}),
        STATE: state,
        OWNER: owner,
        KIND: kind,
        KEY: key,
        DEADLINE: f"{deadline:.0f}",
    }


def read_info(listed: Mapping[str, object]) -> ContainerInfo | None:
    """One row of the engine's container list -> ContainerInfo, or None if it is not ours."""
    found = listed.get("Labels")
    labels = {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
    kind = labels.get(KIND)
    if STATE not in labels or kind not in ("disposable", "kept"):
        return None
    names = listed.get("Names")
    return ContainerInfo(
        id=str(listed["Id"]),
        name=str(names[0]).lstrip("/") if isinstance(names, list) and names else "",
        status=str(listed.get("State", "")),
        kind="kept" if kind == "kept" else "disposable",
        state=labels[STATE],
        owner=labels.get(OWNER, ""),
        key=labels.get(KEY, ""),
        created=float(str(listed.get("Created", 0))),
        deadline=_number(labels.get(DEADLINE, "")),
        writes=_texts(labels.get(WRITES, "")),
        labels={k: v for k, v in labels.items() if k not in _OUR_LABELS},
    )


_OUR_LABELS = frozenset((STATE, OWNER, KIND, KEY, SPEC, DEADLINE, WRITES))


def _texts(text: str) -> tuple[str, ...]:
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
