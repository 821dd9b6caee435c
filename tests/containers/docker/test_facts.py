"""What an engine says of itself -> EngineFacts, by value."""

from __future__ import annotations

import pytest

from orchestrator.containers.docker.facts import EngineFacts, facts

KERNEL = "6.1.0-28-amd64"

DOCKER = {
    "NCPU": 4,
    "CpuCfsQuota": True,
    "KernelVersion": KERNEL,
    "DefaultRuntime": "runc",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default", "name=cgroupns"],
    "Architecture": "x86_64",
}
DOCKER_VERSION = {"Components": [{"Name": "Engine", "Version": "26.1.5+dfsg1"}, {"Name": "runc"}]}
PODMAN_VERSION = {"Components": [{"Name": "Podman Engine", "Version": "5.4.2"}, {"Name": "Conmon"}]}
SECCOMP = ["name=seccomp,profile=default"]


def test_an_engine_is_known_by_what_it_says_of_itself() -> None:
    assert facts(DOCKER, DOCKER_VERSION, KERNEL) == EngineFacts(
        cpus=4.0,
        same_kernel=True,
        default_runtime="runc",
        maps_users=False,
        is_podman=False,
        takes_profile=True,
    )


def test_an_engine_that_says_nothing_is_trusted_with_nothing() -> None:
    assert facts({}, {}, KERNEL) == EngineFacts(
        cpus=float("inf"),
        same_kernel=False,
        default_runtime="runc",
        maps_users=False,
        is_podman=False,
        takes_profile=False,
    )


@pytest.mark.parametrize(
    ("info", "version", "differs"),
    [
        ({"CpuCfsQuota": False}, DOCKER_VERSION, {"cpus": None}),  # rootless, or an old kernel
        ({"NCPU": 0}, DOCKER_VERSION, {"cpus": float("inf")}),
        ({"KernelVersion": "6.6.87-linuxkit"}, DOCKER_VERSION, {"same_kernel": False}),
        ({"DefaultRuntime": "crun"}, DOCKER_VERSION, {"default_runtime": "crun"}),
        ({"SecurityOptions": [*SECCOMP, "name=rootless"]}, DOCKER_VERSION, {"maps_users": True}),
        ({"SecurityOptions": [*SECCOMP, "name=userns"]}, DOCKER_VERSION, {"maps_users": True}),
        ({"SecurityOptions": None}, DOCKER_VERSION, {"takes_profile": False}),
        ({"SecurityOptions": ["name=apparmor"]}, DOCKER_VERSION, {"takes_profile": False}),
        ({"Architecture": "amd64"}, DOCKER_VERSION, {}),
        ({"Architecture": "arm64"}, DOCKER_VERSION, {}),
        ({"Architecture": "s390x"}, DOCKER_VERSION, {"takes_profile": False}),
        ({}, PODMAN_VERSION, {"is_podman": True}),
        ({}, {"Components": None}, {}),
    ],
)
def test_each_fact_comes_from_one_answer(
    info: dict[str, object], version: dict[str, object], differs: dict[str, object]
) -> None:
    usual = facts(DOCKER, DOCKER_VERSION, KERNEL)
    assert facts(DOCKER | info, version, KERNEL) == usual.model_copy(update=differs)
