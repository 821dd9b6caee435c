"""Attacks by an image on PID 1, by a copy on who compares it, and on what the kernel tells all."""

from __future__ import annotations

import base64
import fcntl
import io
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import (
    HOME,
    MIB,
    Bind,
    ContainerSpec,
    Launch,
    Tmpfs,
    Volume,
)
from orchestrator.errors import SpecRefused
from orchestrator.workspace.transfer import collect, copy_in
from tests.attacks.mark import attack
from tests.attacks.rig import PATIENCE, Rig, answers
from tests.attacks.spoils import work
from tests.engine.harness import Harness
from tests.workspace.trees import LocalBox, LocalProgram, make

MakeImage = Callable[..., str]


@pytest.fixture
def make_image(engine: DockerRuntime, image: str, tmp_path: Path) -> Iterator[MakeImage]:
    """Lines of a Dockerfile -> an image built on ours; gone at the end of the test."""
    api, made = engine.engine.api, list[str]()

    def build(*lines: str) -> str:
        text = "\n".join((f"FROM {image}", "USER root", *lines))
        tag = f"orchestrator-test/{tmp_path.name.lower()}:{len(made)}"
        said = [*api.build(fileobj=io.BytesIO(text.encode()), tag=tag, rm=True, decode=True)]
        assert not [row for row in said if "error" in row], said
        made.append(tag)
        return tag

    yield build
    for tag in made:
        api.remove_image(tag, force=True)


@attack(
    "images",
    "set LD_PRELOAD, LD_AUDIT and PYTHONHOME for PID 1, and a GPU, by ENV; another stop signal",
    "every variable of the image is empty for PID 1, and it is stopped by the signal it knows",
)
async def test_an_image_sets_nothing_for_pid_1(
    engine: DockerRuntime, make_image: MakeImage
) -> None:
    name = make_image(
        "ENV LD_PRELOAD=/nowhere/evil.so LD_AUDIT=/nowhere/audit.so PYTHONHOME=/nowhere",
        "ENV NVIDIA_VISIBLE_DEVICES=all",
        "STOPSIGNAL SIGUSR1",
    )
    with anyio.fail_after(PATIENCE):
        async with engine.open(ContainerSpec(image=name)) as container:
            assert await answers(container)
            assert container.wire.last_words == b""  # else the loader complains of both
            seen = await engine.engine.inspect(container.name)
    assert seen is not None
    config = seen["Config"]
    assert isinstance(config, dict)
    evil = ("LD_PRELOAD", "LD_AUDIT", "PYTHONHOME", "NVIDIA_VISIBLE_DEVICES")
    assert not [row for row in config["Env"] if row.startswith(evil) and not row.endswith("=")]
    assert config["StopSignal"] in ("SIGTERM", "15")


@attack(
    "images",
    "have a disk without a limit by VOLUME, beside and above what is mounted",
    "something empty that cannot be written to is there instead; our own mounts are as ever",
)
async def test_a_volume_of_an_image_is_no_disk(
    engine: DockerRuntime, make_image: MakeImage
) -> None:
    name = make_image(
        "RUN mkdir -m 1777 /data /var/lib/x && chmod 1777 /home",
        'VOLUME ["/data/", "/home", "/home/agent", "/var/lib/x"]',
    )
    places = ("/data", "/home", "/var/lib/x")
    tries = "; ".join(f"echo x > {place}/filled && echo {place}" for place in places)
    with anyio.fail_after(PATIENCE):
        async with engine.open(ContainerSpec(image=name)) as container:
            done = await container.run(Launch(argv=("sh", "-c", f"{tries}; touch {HOME}/ours")))
    assert done.stdout == b""
    assert done.stderr.count(b"Read-only file system") == len(places), done.stderr
    assert done.code == 0


@attack(
    "images",
    "put code into PID 1: /etc/ld.so.preload; a link to the agent's home where PID 1's files are "
    "or where something is mounted; a volume inside a mount; labels of ours and of Podman's",
    "refused with a sentence, before anything of the image has run",
)
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN echo /usr/lib/evil.so > /etc/ld.so.preload", r"has a /etc/ld\.so\.preload"),
        (f"RUN mv /opt /usr/opt; ln -s {HOME} /opt", rf"/opt leads to {HOME}"),
        (f"RUN ln -sf {HOME}/python3 /usr/bin/python3", rf"python3 leads to {HOME}/python3"),
        (f"RUN rm -r {HOME} && ln -s /etc {HOME}", rf"{HOME} is a link to /etc"),
        ("RUN rm -r /tmp && ln -s /opt/orchestrator /tmp", "/tmp is a link to /opt/orchestrator"),
        ("RUN rm -r /tmp && touch /tmp", "/tmp is no directory"),
        (f"VOLUME {HOME}/.cache", f"a VOLUME {HOME}/.cache, inside {HOME}"),
        ("LABEL orchestrator.owner=me", "the label 'orchestrator.owner'"),
        ("LABEL io.containers.capabilities=SETUID", "the label 'io.containers.capabilities'"),
    ],
)
async def test_an_image_that_reaches_for_pid_1_is_refused(
    engine: DockerRuntime, make_image: MakeImage, line: str, why: str
) -> None:
    name = make_image(line)
    with anyio.fail_after(PATIENCE):
        with pytest.raises(SpecRefused, match=why):
            async with engine.open(ContainerSpec(image=name)):
                pass
        assert name not in str(await engine.list())


@attack(
    "images",
    "shut the agent out of its own scratch space: a /tmp of mode 0755 in the image",
    "the mode asked for counts; where an OCI runtime takes the image's, it is refused and said",
)
async def test_scratch_space_that_an_image_shuts_is_noticed(
    engine: DockerRuntime, make_image: MakeImage
) -> None:
    name, refused = make_image("RUN chmod 0755 /tmp"), ""
    with anyio.fail_after(PATIENCE):
        try:
            async with engine.open(ContainerSpec(image=name)) as container:
                done = await container.run(Launch(argv=("touch", "/tmp/mine")))
                assert done.code == 0, done.stderr
        except SpecRefused as exc:
            refused = str(exc)
    assert not refused or "the agent cannot write to /tmp" in refused


@attack(
    "images",
    "leave a link in a kept home where a parent of a mount was, so that it is mounted over PID 1",
    "the way to a mount inside the home is looked at before every start: refused",
)
async def test_a_mount_in_a_kept_home_is_not_led_astray(
    engine: DockerRuntime, image: str, ground: Path
) -> None:
    (ground / "library").mkdir(exist_ok=True)
    bind = Bind(source=str(ground / "library"), target=f"{HOME}/project/orchestrator")
    tmp = (Tmpfs(target="/tmp"),)
    spec = ContainerSpec(image=image, mounts=(Volume(target=HOME), bind), tmpfs=tmp)
    move = f"mv {HOME}/project {HOME}/other && ln -s /opt {HOME}/project"

    async def start_twice() -> None:
        for _ in range(2):
            async with engine.keep("astray", spec) as container:
                done = await container.run(Launch(argv=("sh", "-c", move)))
                assert done.code == 0, done.stderr

    refused = f"{HOME}/project is a link to /opt|mount it elsewhere"
    try:
        with anyio.fail_after(PATIENCE), pytest.raises(SpecRefused, match=refused):
            await start_twice()
    finally:
        await engine.forget("astray")


FLOOD = """
import json, sys
skip = json.dumps(["skip", "x" * 100_000, "special"]).encode()
while True:
    sys.stdout.buffer.write(len(skip).to_bytes(4, "big") + skip)
"""


class Flooding(LocalBox):
    """A box whose program for comparing was replaced by one that lists without end."""

    def spawn(self, launch: Launch) -> AbstractAsyncContextManager[LocalProgram]:
        if "compare" in launch.argv:
            launch = Launch(argv=("python3", "-c", FLOOD))
        return super().spawn(launch)


@attack(
    "helpers of the orchestrator",
    "list a thousand million things that were left out of the changes, as the helper would",
    "the host stops to read after 32 MiB of names and has kept ten of them; no change counts",
)
async def test_a_listing_without_end_is_cut(tmp_path: Path) -> None:
    root, copy, box = make(tmp_path / "project", {"file": "x"}), tmp_path / "copy", Flooding()
    copy.mkdir()
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(box, root, target=str(copy))
        tracemalloc.start()
        try:
            changes = await collect(
                box, snapshot, tmp_path / "kept", at_work=True, target=str(copy)
            )
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 16 * MIB, peak
    assert (changes.complete, changes.changes) == (False, ())
    assert "their names take more than 32 MiB" in changes.warnings[-1]
    assert len(str(changes.warnings)) < 10_000


LONG_NAMES = """
import os
for depth in range(15):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
for number in range(12000):
    os.close(os.open(f"{number:0200}", os.O_CREAT))
"""


@attack(
    "helpers of the orchestrator",
    "have the helper itself send 47 MB of names: 12,000 files in a path of 4 kB",
    "the host stops to read after 32 MiB; the run ends with a warning, and nothing is applied",
)
async def test_names_without_end_are_cut(harness: Harness) -> None:
    text = base64.b64encode(LONG_NAMES.encode()).decode()
    spoils = await work(harness, f"echo {text} | base64 -d | python3 -")
    assert spoils.result.status == "completed"
    assert "their names take more than 32 MiB" in str(spoils.result.warnings)
    assert len(spoils.result.model_dump_json()) < 100_000


@attack(
    "processes and resources",
    "use up the inodes of the engine's disk with empty files",
    "each counts for 4 KiB at least: the run ends as disk_full",
)
async def test_empty_files_fill_a_disk(harness: Harness) -> None:
    make_files = "import os\nfor n in range(8000): os.close(os.open(f'e{n}', os.O_CREAT))"
    script = f'python3 -c "{make_files}"; sleep 60'
    result = (await work(harness, script, resources={"disk_mb": 16})).result
    assert (result.status, result.reason) == ("failed", "disk_full"), result


F_OFD_SETLK = 37


@attack(
    "processes and resources",
    "read who has locked which file, and who has keys, on the whole machine",
    "/proc/locks and /proc/key-users are empty inside, as are those that engines close",
)
async def test_locks_and_keys_of_others_are_not_seen(closed: Rig, tmp_path: Path) -> None:
    with (tmp_path / "locked").open("w") as file:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(file, F_OFD_SETLK, lock)
        inode = os.fstat(file.fileno()).st_ino
        assert str(inode) in Path("/proc/locks").read_text()
        said = await closed.sh("cat /proc/locks /proc/key-users /proc/keys /proc/timer_list")
    assert said == ""


@attack(
    "processes and resources",
    "hold up the host's programs by leases on files of the workspace, whichever way they are asked",
    "EPERM: there are no leases inside, and no directory notification",
)
async def test_there_are_no_leases(closed: Rig) -> None:
    code = """
import fcntl
fd = os.open("/tmp/leased", os.O_CREAT | os.O_RDONLY, 0o600)
tricks = [ctypes.c_ulong(number) for number in (1024, 0x100000400, 0xFFFFFFFF00000400)]
say([attempt(c("syscall", 72, fd, trick, fcntl.F_RDLCK)) for trick in tricks]
    + [attempt(lambda: fcntl.fcntl(os.open("/tmp", 0), fcntl.F_NOTIFY, 2))])
"""
    assert await closed.python(code) == ["EPERM"] * 4


@attack(
    "processes and resources",
    "have the host's own program for crashes run, as root, on a core of the agent's making",
    "the limit for cores is 1, at which no kernel runs it, and to set another is not done",
)
async def test_no_core_is_dumped_to_the_host(closed: Rig) -> None:
    code = """
new, read = (ctypes.c_ulong * 2)(0, 0), (ctypes.c_ulong * 2)()
def limit(how):
    attempt(how)
    libc.syscall(302, 0, 4, None, read)
    return [*read]
high = ctypes.c_ulong(0x100000004)
say([limit(c("syscall", 302, 0, 4, new, None)), limit(c("syscall", 160, 4, new)),
     limit(c("syscall", 302, 0, high, new, None)), limit(c("syscall", 160, high, new)),
     limit(c("setrlimit", 4, new)), limit(c("syscall", 302, os.getpid(), 4, new, read))])
"""
    assert await closed.python(code) == [[1, 1]] * 6
    assert await closed.sh("ulimit -c 0 && echo and goes on") == "and goes on\n"


@attack(
    "processes and resources",
    "take the huge pages that the host has set aside, and memory that it cannot take back",
    "EPERM by each way: mmap, memfd_create, shmget, memfd_secret",
)
async def test_huge_pages_of_the_host_stay_its_own(closed: Rig) -> None:
    answers = await closed.tries(
        "syscall(9, 0, ctypes.c_ulong(1 << 21), 3, 0x40022, -1, 0)",
        "syscall(9, 0, ctypes.c_ulong(1 << 21), 3, ctypes.c_ulong(0x100040022), -1, 0)",
        "syscall(9, 0, ctypes.c_ulong(1 << 30), 3, 0x78040022, -1, 0)",
        "syscall(319, b'x', 4)",
        "syscall(29, 0, 1 << 21, 0o5600)",
        "syscall(447, 0)",
    )
    assert set(answers.values()) == {"EPERM"}, answers


@attack(
    "processes and resources",
    "make message queues, watch the machine's pressure, load kernel modules by ioctl",
    "EROFS, ENOENT and EPERM: what is counted by user or loaded for all is not there",
)
async def test_queues_pressure_and_modules_are_out_of_reach(closed: Rig) -> None:
    answers = await closed.tries(
        "lambda: os.open('/dev/mqueue/x', os.O_CREAT | os.O_RDWR, 0o600)",
        "lambda: os.open('/proc/pressure/cpu', os.O_RDWR)",
        *(
            f"syscall(16, libc.socket(2, 1, 0), {number}, bytes(64))"
            for number in ("0x8940", "0x8941", "0x8982", "0x89A0", "ctypes.c_ulong(0x100008940)")
        ),
    )
    assert [*answers.values()] == ["EROFS", "ENOENT", *["EPERM"] * 5], answers


@attack(
    "processes and resources",
    "have the kernel write out all that the machine has in memory, again and again",
    "sync and syncfs say that it was done, and do nothing: even for a file that is not open",
)
async def test_an_agent_does_not_sync_the_machine(closed: Rig) -> None:
    assert await closed.tries("syscall(162)", "syscall(306, -1)") == {
        "syscall(162)": "WORKED",
        "syscall(306, -1)": "WORKED",
    }
