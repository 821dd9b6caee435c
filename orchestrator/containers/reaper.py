"""What did a crash leave behind? Pure: a listed container -> why it may be removed, or None."""

from __future__ import annotations

from orchestrator.containers.labels import ContainerInfo

REAP_GRACE_SECONDS = 60.0
"""Past its deadline, for clocks that differ between machines."""


def why_reap(
    info: ContainerInfo, *, now: float, our_state: str, owner_alive: bool, held: bool
) -> str | None:
    """The reason to remove a container, or None to leave it.

    Never what a living orchestrator owns. Of another state directory we cannot know who lives,
    so there only the deadline that its maker wrote on it counts.
    """
    if info.state == our_state:
        if owner_alive or held:
            return None
        if info.kind == "disposable":
            return "its orchestrator is gone"
        return "it was never started" if info.status == "created" else None
    if info.kind == "disposable" and 0 < info.deadline < now - REAP_GRACE_SECONDS:
        return "it is past its deadline"
    return None
