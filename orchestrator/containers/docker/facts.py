"""What an engine says of itself -> EngineFacts: what a container on it can have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.containers.seccomp import ARCHITECTURES
from orchestrator.domain import Frozen


class EngineFacts(Frozen):
    """One engine, asked once, when the runtime is opened."""

    cpus: float | None
    """Processors that it has; None if it cannot limit them (rootless, or a kernel without it)."""
    same_kernel: bool
    """It runs on this machine's kernel: it sees our files, and its inodes are ours."""
    default_runtime: str
    """The OCI runtime of a container that names none."""
    maps_users: bool
    """A user inside is another one outside: the engine is rootless or remaps users."""
    is_podman: bool
    takes_profile: bool
    """It filters system calls, on an architecture that our seccomp profile covers."""


def facts(info: Mapping[str, Any], version: Mapping[str, Any], kernel: str) -> EngineFacts:
    """From the answers to GET /info and GET /version; `kernel` is this machine's release."""
    options = [str(option).split(",")[0] for option in info.get("SecurityOptions") or ()]
    parts = version.get("Components") or ()
    return EngineFacts(
        cpus=float(info.get("NCPU") or "inf") if info.get("CpuCfsQuota", True) else None,
        same_kernel=info.get("KernelVersion") == kernel,
        default_runtime=str(info.get("DefaultRuntime") or "runc"),
        maps_users=not {"name=rootless", "name=userns"}.isdisjoint(options),
        is_podman=any(part.get("Name") == "Podman Engine" for part in parts),
        takes_profile=takes_profile(info),
    )


def takes_profile(info: Mapping[str, Any]) -> bool:
    """Whether the engine filters system calls, on an architecture that our profile covers."""
    filters = any("seccomp" in str(option) for option in info.get("SecurityOptions") or ())
    return filters and info.get("Architecture") in ARCHITECTURES
