"""ContainerSpec -> the engine's create call, by value."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from orchestrator.containers.docker.create import MASKED, bare_body, create_body, volume_name
from orchestrator.containers.docker.image_terms import ImageTerms
from orchestrator.domain.container import (
    MIB,
    Bind,
    ContainerSpec,
    Cover,
    Limits,
    Tmpfs,
    User,
    Volume,
)


def host_config(body: dict[str, object]) -> dict[str, object]:
    config = body["HostConfig"]
    assert isinstance(config, dict)
    return config


def test_a_container_has_what_is_written_here_and_nothing_else() -> None:
    spec = ContainerSpec(
        image="agent:1",
        mounts=(Bind(source="/srv/project"),),
        limits=Limits(memory_bytes=1024 * MIB, cpus=1.5, pids=100, open_files=500),
    )

    body = create_body(spec, {"a": "b"})
    assert {**body, "Labels": {"a": "b", "orchestrator.spec": "DIGEST"}} == {
        "Image": "agent:1",
        "Entrypoint": ["/usr/bin/python3", "-I", "-S", "/opt/orchestrator/warden.pyc"],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Env": [],
        "Labels": {"a": "b", "orchestrator.spec": "DIGEST"},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGTERM",
        "StopTimeout": 1,
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "AutoRemove": True,
            "Privileged": False,
            "CapDrop": ["ALL"],
            "CapAdd": ["SETUID", "SETGID", "KILL"],
            "SecurityOpt": ["no-new-privileges"],
            "MaskedPaths": [*MASKED, "/proc/key-users", "/proc/locks", "/proc/pressure"],
            "IpcMode": "private",
            "Init": False,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none", "Config": {}},
            "PidsLimit": 100,
            "Memory": 1024 * MIB,
            "MemorySwap": 1024 * MIB,
            "NanoCpus": 1_500_000_000,
            "ShmSize": 64 * MIB,
            "Ulimits": [
                {"Name": "nofile", "Soft": 500, "Hard": 500},
                {"Name": "core", "Soft": 1, "Hard": 1},
            ],
            "Tmpfs": {
                "/dev/pts": "ro,noexec,nosuid,nodev,mode=755,size=4k",
                "/dev/mqueue": "ro,noexec,nosuid,nodev,mode=755,size=4k",
                "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={256 * MIB}",
                "/home/agent": f"rw,exec,nosuid,nodev,mode=1777,size={256 * MIB}",
            },
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": "/srv/project",
                    "Target": "/workspace",
                    "ReadOnly": True,
                    "BindOptions": {"Propagation": "rprivate"},
                }
            ],
        },
    }


def test_a_kept_container_is_not_removed_and_its_volumes_have_names() -> None:
    spec = ContainerSpec(image="agent:1", mounts=(Volume(),), tmpfs=(Tmpfs(target="/tmp"),))
    kept, disposable = create_body(spec, {}, keep_as="orch-kept-1"), create_body(spec, {})

    assert host_config(kept)["AutoRemove"] is False
    assert host_config(kept)["Mounts"] == [
        {
            "Type": "volume",
            "Target": "/home/agent",
            "Source": volume_name("orch-kept-1", "/home/agent"),
        }
    ]
    assert volume_name("k", "/a-b") != volume_name("k", "/a/b")
    assert host_config(disposable)["Mounts"] == [{"Type": "volume", "Target": "/home/agent"}]


def test_a_container_to_look_into_has_nothing_of_the_hosts_mounted() -> None:
    shown = (Bind(source="/srv/project"), Cover(target="/workspace/pipe"), Volume())
    spec = ContainerSpec(image="agent:1", mounts=shown, tmpfs=())
    body = create_body(spec, {"a": "b"}, keep_as="kept")
    bare = bare_body(body, {"c": "d"})

    name = volume_name("kept", "/home/agent")
    volume = {"Type": "volume", "Target": "/home/agent", "Source": name}
    config = {**host_config(body), "Mounts": [volume]}
    assert bare == {**body, "HostConfig": config, "Labels": {"c": "d"}}


def test_another_runtime_and_a_seccomp_profile_are_passed_on() -> None:
    spec = ContainerSpec(image="agent:1", oci_runtime="runsc", seccomp='{"defaultAction": "x"}')
    config = host_config(create_body(spec, {}))

    assert config["Runtime"] == "runsc"
    assert config["SecurityOpt"] == [
        "no-new-privileges",
        'seccomp={"defaultAction": "x"}',
    ]


def test_nothing_that_an_image_sets_or_opens_is_left_and_it_is_named_by_its_id() -> None:
    image = ImageTerms(id="sha256:1", variables=("LD_PRELOAD", "PATH"), volumes=("/data", "/tmp"))
    body = create_body(ContainerSpec(image="theirs:1"), {}, image=image)

    assert (body["Image"], body["Env"]) == ("sha256:1", ["LD_PRELOAD=", "PATH="])
    scratch = host_config(body)["Tmpfs"]
    assert isinstance(scratch, dict)
    assert scratch["/data"] == "ro,noexec,nosuid,nodev,mode=755,size=4k"
    assert scratch["/tmp"].startswith("rw,")


def test_an_engine_that_adds_to_what_it_closes_is_told_of_ours_alone() -> None:
    config = host_config(create_body(ContainerSpec(image="agent:1"), {}, masks_by_option=True))
    assert "MaskedPaths" not in config
    assert config["SecurityOpt"] == [
        "no-new-privileges",
        "mask=/proc/key-users:/proc/locks:/proc/pressure",
    ]


def test_a_container_asks_for_no_more_processors_than_there_are() -> None:
    spec = ContainerSpec(image="agent:1", limits=Limits(cpus=64))
    assert host_config(create_body(spec, {}, cpus_available=2))["NanoCpus"] == 2_000_000_000
    assert "NanoCpus" not in host_config(create_body(spec, {}, cpus_available=None))


def test_what_is_asked_for_is_known_by_its_digest_and_labels_are_not_part_of_it() -> None:
    def digest(spec: ContainerSpec, labels: dict[str, str], **how: str) -> object:
        labels_ = create_body(spec, labels, **how)["Labels"]  # type: ignore[arg-type]
        assert isinstance(labels_, dict)
        return labels_["orchestrator.spec"]

    spec = ContainerSpec(image="agent:1")
    forged = {"orchestrator.spec": "forged"}
    assert digest(spec, {}) == digest(spec, {"a": "b"}) == digest(spec, forged)
    assert digest(spec, {}) != digest(spec, {}, keep_as="orch-kept-1")
    assert digest(spec, {}) != digest(ContainerSpec(image="agent:2"), {})


@pytest.mark.parametrize(
    "target",
    ["/", "/proc/x", "/etc", "/opt/orchestrator", "//etc", "/lib64", "/run", "work", "/a/../b"],
)
def test_nothing_is_mounted_over_the_containers_own_system(target: str) -> None:
    with pytest.raises(ValidationError, match=r"belongs to the container|must be an absolute"):
        Bind(source="/srv", target=target)


def test_nothing_is_mounted_twice() -> None:
    with pytest.raises(ValidationError, match="mounted twice: /tmp"):
        ContainerSpec(image="x", tmpfs=(Tmpfs(target="/tmp"), Tmpfs(target="/tmp")))


def test_scratch_space_leaves_room_for_processes() -> None:
    with pytest.raises(ValidationError, match="leave at least a quarter"):
        ContainerSpec(image="x", limits=Limits(memory_bytes=512 * MIB))


@pytest.mark.parametrize("ids", [{"uid": 0}, {"gid": 0}, {"uid": -1}])
def test_the_agent_is_never_root(ids: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        User(**ids)


def test_equal_specs_have_equal_digests_and_others_do_not() -> None:
    one, same = ContainerSpec(image="x"), ContainerSpec(image="x")
    other = ContainerSpec(image="x", limits=Limits(pids=99))

    assert one.digest == same.digest != other.digest
