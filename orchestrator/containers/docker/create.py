"""ContainerSpec -> the engine's create call. Pure: what is not written here, no container has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from orchestrator.containers.docker.image_terms import ImageTerms, covered_volumes
from orchestrator.containers.labels import SPEC
from orchestrator.domain.container import Bind, ContainerSpec, Cover, Mount

WARDEN = ("/usr/bin/python3", "-I", "-S", "/opt/orchestrator/warden.pyc")
"""PID 1. Isolated and without `site`: nothing but the file itself and the standard library. The
distribution's own interpreter, which compiled it: an image may have put another one before it."""

WARDEN_CAPABILITIES = ("SETUID", "SETGID", "KILL")
"""What PID 1 keeps: to become the agent's user, and to end the agent's processes."""

COUNTED_DEVICES = ("/dev/pts", "/dev/mqueue")
"""Shut in every container: the kernel counts pseudo-terminals for the whole machine, and message
queues by user, so that one agent could leave none to the containers beside it."""

MASKED = (
    # What engines close by themselves, each of them (Docker 20.10 to 28); a list replaces theirs.
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys"),
    *("/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list"),
    *("/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware"),
)

MASKED_BY_US = ("/proc/key-users", "/proc/locks", "/proc/pressure")
"""In which the kernel tells of the whole machine: who has keys, who has locked what, what it waits
for. Whoever writes to the last has the kernel keep watch."""

DEV_NULL = "/dev/null"
"""What is mounted over a file that must not be reached, as engines do for files of /proc."""

JsonObject = dict[str, object]


def create_body(
    spec: ContainerSpec,
    labels: Mapping[str, str],
    *,
    image: ImageTerms | None = None,
    keep_as: str | None = None,
    cpus_available: float | None = float("inf"),
    profile_path: str | None = None,
    closed: Sequence[str] = (),
    masks_by_option: bool = False,
) -> JsonObject:
    """The body of POST /containers/create; `keep_as` names a kept container's volumes.

    `image` is what the name of the spec's image stands for, with all that must not come of it.
    Without `cpus_available` the engine cannot limit them, and refuses to be asked to. An engine
    that wants its seccomp profile in a file finds it at `profile_path`; `closed` are directories
    that it would let be written; where it `masks_by_option`, it adds ours to what it closes by
    itself. All but the labels is digested into one: another digest, another container.
    """
    image = image or ImageTerms(id=spec.image)
    closed = (*COUNTED_DEVICES, *closed, *covered_volumes(image, spec))
    body: JsonObject = {
        "Image": image.id,
        # Emptied: not every engine takes a variable away.
        "Env": [f"{name}=" for name in image.variables],
        "Entrypoint": list(WARDEN),
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        # The wire: one client, and when it goes, PID 1 reads the end of its stdin.
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        # Not even the engine's network "none": no endpoint to join and leave, which is half of a
        # start. "NetworkMode" says the same to engines that do not know this.
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGTERM",
        "StopTimeout": 1,
        "HostConfig": {
            **_host_config(spec, keep_as, cpus_available),
            **({} if masks_by_option else {"MaskedPaths": [*MASKED, *MASKED_BY_US]}),
            "SecurityOpt": _security(spec, profile_path, masks_by_option),
            "Tmpfs": _tmpfs(spec, closed),
        },
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:12]
    return {**body, "Labels": {**labels, SPEC: digest}}


def _host_config(
    spec: ContainerSpec, keep_as: str | None, cpus_available: float | None
) -> JsonObject:
    limits = spec.limits
    config: JsonObject = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "AutoRemove": keep_as is None,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(WARDEN_CAPABILITIES),
        "IpcMode": "private",
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        # Events are the record. A log file would be a second one, unbounded and slow.
        "LogConfig": {"Type": "none", "Config": {}},
        "PidsLimit": limits.pids,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # unset, the real limit would be twice the memory
        "ShmSize": limits.shm_bytes,
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "core", "Soft": 1, "Hard": 1},  # see CORE in seccomp.py
        ],
        "Mounts": [_mount(mount, keep_as) for mount in spec.mounts],
    }
    if cpus_available is not None:
        config["NanoCpus"] = int(min(limits.cpus, cpus_available) * 1_000_000_000)
    if spec.oci_runtime is not None:
        config["Runtime"] = spec.oci_runtime
    return config


def _security(spec: ContainerSpec, profile_path: str | None, masks_by_option: bool) -> list[str]:
    options = ["no-new-privileges"]
    if masks_by_option:
        options.append("mask=" + ":".join(MASKED_BY_US))
    if spec.seccomp is not None:
        options.append(f"seccomp={profile_path or spec.seccomp}")
    return options


def _tmpfs(spec: ContainerSpec, closed: Sequence[str]) -> dict[str, str]:
    # World-writable with the sticky bit, since not every engine takes uid= for a tmpfs. The
    # agent is the only user inside who can write at all: root has no DAC_OVERRIDE.
    return dict.fromkeys(closed, "ro,noexec,nosuid,nodev,mode=755,size=4k") | {
        t.target: f"rw,exec,nosuid,nodev,mode={1777 if t.writable else 755},size={t.size_bytes}"
        for t in spec.tmpfs
    }


def bare_body(body: Mapping[str, object], labels: Mapping[str, str]) -> JsonObject:
    """The create call for a container that is only looked into: nothing of the host's is in it."""
    config = body["HostConfig"]
    assert isinstance(config, dict)  # noqa: S101 as create_body makes it
    volumes = [row for row in config["Mounts"] if row["Type"] == "volume" and "Source" in row]
    return {**body, "HostConfig": {**config, "Mounts": volumes}, "Labels": dict(labels)}


def _mount(mount: Mount, keep_as: str | None) -> JsonObject:
    if isinstance(mount, Cover):
        mount = Bind(source=DEV_NULL, target=mount.target)
    if isinstance(mount, Bind):
        return {
            "Type": "bind",
            "Source": mount.source,
            "Target": mount.target,
            "ReadOnly": mount.read_only,
            "BindOptions": {"Propagation": "rprivate"},
        }
    row: JsonObject = {"Type": "volume", "Target": mount.target}
    if keep_as is not None:  # unnamed, it would go when the container is made anew
        row["Source"] = volume_name(keep_as, mount.target)
    return row


def volume_name(keep_as: str, target: str) -> str:
    """One for each target, and telling its container from every other."""
    return f"{keep_as}-{hashlib.sha256(target.encode()).hexdigest()[:12]}"
