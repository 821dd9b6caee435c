"""Attacks on files: the container's own system, and what is handed back of a copied workspace."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.domain.task import Task
from orchestrator.errors import ApplyRefused, MountRefused
from tests.attacks.mark import attack
from tests.attacks.rig import Rig
from tests.attacks.spoils import OUTSIDE, Spoils, contents, work
from tests.engine.harness import Harness

REFUSED = {"EPERM", "EACCES", "EROFS", "ENOENT", "EBUSY"}


@attack(
    "files, links and archives",
    "remount the root filesystem writable, or mount something over it",
    "EPERM for mount, umount, the new mount calls, pivot_root and chroot",
)
async def test_nothing_can_be_mounted(closed: Rig) -> None:
    answers = await closed.tries(
        "c('mount', None, b'/', None, 32, None)",
        "c('mount', b'none', b'/mnt', b'tmpfs', 0, None)",
        "c('mount', b'proc', b'/tmp', b'proc', 0, None)",
        "c('umount2', b'/proc/sys', 2)",
        "syscall(428, -100, b'/', 1)",  # open_tree
        "syscall(430, b'tmpfs', 0)",  # fsopen
        "syscall(442, -100, b'/', 0, None, 0)",  # mount_setattr
        "syscall(155, b'/tmp', b'/tmp')",  # pivot_root
        "lambda: os.chroot('/tmp')",
    )
    assert set(answers.values()) == {"EPERM"}, answers
    assert "touch: " in await closed.sh("touch /x /usr/x /opt/x")


@attack(
    "files, links and archives",
    "make device nodes of the host's disks and memory",
    "EPERM for mknod of block and character devices; the ones in /dev are harmless",
)
async def test_no_device_can_be_made(closed: Rig) -> None:
    answers = await closed.tries(
        "lambda: os.mknod('/tmp/sda', 0o60666, os.makedev(8, 0))",
        "lambda: os.mknod('/tmp/vda', 0o60666, os.makedev(254, 0))",
        "lambda: os.mknod('/tmp/mem', 0o20666, os.makedev(1, 1))",
        "lambda: os.mknod('/dev/shm/kmsg', 0o20666, os.makedev(1, 11))",
    )
    devices = await closed.sh("find /dev -type b; find /dev -type c -not -path '/dev/pts/*'")
    assert set(answers.values()) == {"EPERM"}, answers
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    assert {Path(line).name for line in devices.splitlines()} <= harmless


@attack(
    "files, links and archives",
    "write anywhere but to scratch space",
    "refused everywhere, PID 1's own program included",
)
async def test_nothing_but_scratch_space_can_be_written(closed: Rig) -> None:
    places = "/ /usr /usr/bin /etc /opt/orchestrator /var/tmp /run /mnt /workspace /dev /proc /sys"
    done = await closed.sh(f"for d in {places}; do touch $d/x 2>/dev/null && echo $d; done; true")

    assert done == ""


KERNEL = (
    *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches"),
    *("/proc/sysrq-trigger", "/proc/irq/0/smp_affinity", "/sys/kernel/uevent_helper"),
    *("/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    *(
        "/sys/fs/cgroup/memory.max",
        "/sys/power/state",
        "/sys/kernel/mm/hugepages",
        "/proc/1/cgroup",
    ),
)


@attack(
    "files, links and archives",
    "write to the kernel's switches: core_pattern, release_agent, sysrq, cgroup limits",
    "read-only, closed or not there; core_pattern on the host is what it was",
)
async def test_the_kernels_switches_cannot_be_written(closed: Rig) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    answers = await closed.tries(*(f"lambda: open({path!r}, 'w').write('|/x')" for path in KERNEL))
    assert set(answers.values()) <= {*REFUSED, "EISDIR"}, answers
    assert Path("/proc/sys/kernel/core_pattern").read_text() == pattern


@attack(
    "files, links and archives",
    "read the kernel's memory and messages: kcore, kallsyms, kmsg, keys, timer_list",
    "closed, or empty files in their place",
)
async def test_the_kernels_memory_cannot_be_read(closed: Rig) -> None:
    places = (
        *("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/dev/mem"),
        *("/dev/kmsg", "/proc/kmsg", "/sys/firmware/acpi"),
    )
    code = f"""
def read(path):
    try:
        with open(path, "rb") as file: return len(file.read(100))
    except OSError as exc: return errno.errorcode[exc.errno]
say({{p: read(p) for p in {places!r}}})
"""
    answers = await closed.python(code)
    assert {value for value in answers.values() if value != 0} <= {*REFUSED, "EISDIR"}, answers


@attack(
    "files, links and archives",
    "open files of the host by handle, past all mounts (shocker)",
    "EPERM for both calls; no path of the host is read",
)
async def test_no_file_can_be_opened_by_its_handle(closed: Rig) -> None:
    answers = await closed.tries(
        "syscall(303, -100, b'/', bytes(128), bytes(8), 0)",
        "syscall(304, 3, bytes(128), 0)",
    )
    assert set(answers.values()) == {"EPERM"}, answers


ARCHIVE = """
import io, tarfile
made = io.BytesIO()
with tarfile.open(fileobj=made, mode="w") as tar:
    for name, kind, mode, link in (
        ("root-shell", tarfile.REGTYPE, 0o4755, ""), ("disk", tarfile.BLKTYPE, 0o666, ""),
        ("../../../../etc/cron.d/evil", tarfile.REGTYPE, 0o644, ""),
        ("/usr/bin/evil", tarfile.REGTYPE, 0o755, ""),
        ("way-out", tarfile.SYMTYPE, 0o777, "/proc/1/root"),
        ("way-out/evil", tarfile.REGTYPE, 0o644, ""),
    ):
        row = tarfile.TarInfo(name); row.type, row.mode, row.linkname = kind, mode, link
        row.uid = row.gid = 0; row.devmajor, row.devminor = 8, 0
        tar.addfile(row, io.BytesIO())
os.makedirs("/tmp/in", exist_ok=True)
open("/tmp/evil.tar", "wb").write(made.getvalue())
os.system("tar -xpPf /tmp/evil.tar -C /tmp/in 2>/dev/null")
rows = {n: os.lstat(f"/tmp/in/{n}") for n in os.listdir("/tmp/in")}
say([{n: [oct(r.st_mode), r.st_uid] for n, r in rows.items()},
    [p for p in ("/etc/cron.d/evil", "/usr/bin/evil", "/evil") if os.path.exists(p)]])
"""


@attack(
    "files, links and archives",
    "unpack an archive with devices, root's set-user-ID programs, absolute and .. names",
    "nothing but the agent's own files in its scratch space; none is root's, none is a device",
)
async def test_an_archive_unpacks_into_scratch_space_only(closed: Rig) -> None:
    made, elsewhere = await closed.python(ARCHIVE)
    assert elsewhere == []
    assert "disk" not in made
    assert {owner for _, owner in made.values()} == {1000}


@attack(
    "files, links and archives",
    "run a set-user-ID program, or look for a capability, of a file too, or a second group",
    "none is there; no_new_privs would make the bit worthless, and a seccomp filter is on",
)
async def test_no_program_gives_more_rights(closed: Rig) -> None:
    found = await closed.sh("find / -xdev -perm /6000 -type f 2>/dev/null; getcap -r / 2>/dev/null")
    make = "cp /bin/bash /tmp/b; chmod 6755 /tmp/b 2> /dev/null && echo set"
    gained = await closed.sh(f"{make}; /tmp/b -p -c 'id -u; id -g'")
    lines = (await closed.sh("cat /proc/self/status")).splitlines()
    status = dict(line.split(":", 1) for line in lines)
    assert (found, gained) == ("", "1000\n1000\n")
    held = ("CapInh", "CapPrm", "CapEff", "CapAmb")
    assert [int(status[name], 16) for name in held] == [0, 0, 0, 0]
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Groups"].split() in ([], ["1000"])
    set_ids = await closed.tries("lambda: os.setuid(0)", "lambda: os.setresgid(0, 0, 0)")
    assert set(set_ids.values()) == {"EPERM"}


# What is handed back of a copy


@attack(
    "files, links and archives",
    "leave a symbolic link to a host file for the program that reads the copy back",
    "the link is told as a link, the file behind it is not read; applying is refused, by name",
)
async def test_a_link_in_a_copy_is_not_followed(linked: Spoils) -> None:
    kept = b"".join(contents(linked.kept).values())
    assert {file.path for file in linked.result.changed_files} >= {"stolen", "up/outside"}
    assert OUTSIDE.encode() not in kept
    assert b"root:x:0:0" not in kept
    assert OUTSIDE not in repr(linked.result)
    with pytest.raises(ApplyRefused, match="stolen is a new symbolic link that leads out"):
        linked.apply()
    assert contents(linked.project) == linked.before


@attack(
    "files, links and archives",
    "swap a directory for a link that leads out, with files waiting behind it",
    "applying is refused as a whole; neither the workspace nor what the link points to changes",
)
async def test_a_directory_that_became_a_link_is_refused(linked: Spoils) -> None:
    with pytest.raises(ApplyRefused, match="folder is a new symbolic link that leads out"):
        linked.apply()
    assert contents(linked.project) == linked.before
    assert contents(linked.outside) == {"secret.txt": OUTSIDE.encode()}


@attack(
    "files, links and archives",
    "leave FIFOs and sockets, so that the program that reads them waits for ever",
    "left out with a warning; the copy is read back to its end",
)
async def test_special_files_are_left_out(spoiled: Spoils) -> None:
    paths = {file.path for file in spoiled.result.changed_files}
    assert not paths & {"fifo", "socket"}
    assert "special files" in spoiled.told
    assert spoiled.result.status == "completed"


@attack(
    "files, links and archives",
    "use names that are commands, options, line breaks or no text at all",
    "names are data: files of these names appear, nothing is run, what is no text is left out",
)
async def test_names_are_only_names(spoiled: Spoils, tmp_path: Path) -> None:
    paths = {file.path for file in spoiled.result.changed_files}
    assert {"-rf", "$(touch pwned)", "new\nline", "; touch pwned"} <= paths
    assert "not UTF-8" in spoiled.told
    target = spoiled.applied_to(tmp_path)
    assert (target / "-rf").read_text() == "x\n"
    assert (target / "$(touch pwned)").exists()
    assert not list(target.rglob("pwned"))


@attack(
    "files, links and archives",
    "hand back a set-user-ID program, or a file with no rights at all",
    "only whether it can be run is taken over; what the agent locked is read all the same",
)
async def test_special_bits_are_not_handed_back(spoiled: Spoils, tmp_path: Path) -> None:
    target = spoiled.applied_to(tmp_path)
    assert (target / "tool").stat().st_mode & 0o7000 == 0
    assert (target / "tool").stat().st_mode & 0o022 == 0
    assert (target / "locked").stat().st_mode & 0o777 == 0o644
    assert (target / "locked").read_text() == "x\n"


@attack(
    "files, links and archives",
    "hand back hard links, so that one file changes with another",
    "each comes back as a file of its own",
)
async def test_hard_links_come_back_as_files(spoiled: Spoils, tmp_path: Path) -> None:
    target = spoiled.applied_to(tmp_path)
    assert (target / "twin").read_text() == "keep\n"
    assert (target / "twin").stat().st_nlink == 1


@attack(
    "files, links and archives",
    "have changes applied through a parent that is a link by then",
    "refused: no step follows a link; what it points to stays as it is",
)
async def test_nothing_is_applied_through_a_linked_parent(spoiled: Spoils, tmp_path: Path) -> None:
    target, away = spoiled.copy_to(tmp_path), spoiled.outside.parent / f"away-{tmp_path.name}"
    shutil.move(target / "folder", away)
    (target / "folder").symlink_to(away)
    before = contents(away)
    with pytest.raises(ApplyRefused, match="folder"):
        spoiled.apply(target)
    assert contents(away) == before
    assert not (target / "-rf").exists()


@attack(
    "files, links and archives",
    "hand back a file of a terabyte that takes no room (sparse)",
    "no more than resources.disk_mb is read; the changes are marked as not complete",
)
async def test_a_sparse_giant_is_not_read_to_its_end(harness: Harness, tmp_path: Path) -> None:
    spoils = await work(harness, "echo x > small; truncate -s 1T giant", resources={"disk_mb": 16})
    assert "larger than 16 MiB" in spoils.told, spoils.told
    size = sum(path.stat().st_size for path in spoils.kept.rglob("*"))
    assert size < 32 * 1024 * 1024
    with pytest.raises(ApplyRefused, match="not complete"):
        spoils.apply()
    assert contents(spoils.project) == spoils.before


@attack(
    "files, links and archives",
    "hand back more files than a person looks through",
    "the listing is cut at its limit; the changes are marked as not complete",
)
async def test_a_flood_of_files_is_cut(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.workspace.transfer.MAX_CHANGES", 1000)
    flood = "python3 -c \"import os; [os.symlink('x', f'f{n}') for n in range(3000)]\""
    spoils = await work(harness, flood)
    assert "more than 1,000 things are new" in spoils.told, spoils.told
    with pytest.raises(ApplyRefused, match="not complete"):
        spoils.apply()
    assert contents(spoils.project) == spoils.before


@attack(
    "files, links and archives",
    "fill the host's disk through a copied workspace",
    "the run ends as disk_full at resources.disk_mb, and the copy goes with its container",
)
async def test_a_copy_that_grows_is_ended(harness: Harness) -> None:
    spoils = await work(
        harness, "head -c 200M /dev/zero > big; tail -f /dev/null", resources={"disk_mb": 16}
    )
    assert (spoils.result.status, spoils.result.reason) == ("failed", "disk_full")
    assert contents(spoils.project) == spoils.before


@attack(
    "files, links and archives",
    "plant a link in a writable workspace and have it named as the next workspace",
    "MountRefused: links are resolved before they are judged",
)
async def test_a_planted_link_is_no_workspace(harness: Harness) -> None:
    spoils = await work(harness, "ln -s /etc way-out; ln -s / root", workspace="rw")
    assert (spoils.project / "way-out").is_symlink()
    for name in ("way-out", "root"):
        task = Task(agent="worker", prompt="x", workspace=spoils.project / name)
        for mode in ("ro", "copy"):
            with pytest.raises(MountRefused):
                await harness.run([{"text": "in"}], task, workspace=mode)


@attack(
    "files, links and archives",
    "write to a workspace that is shown read-only, by every way into it",
    "EROFS; no file of it changes",
)
async def test_a_read_only_workspace_stays_as_it_is(harness: Harness) -> None:
    command = (
        "touch x greeting.txt; echo x >> greeting.txt; chmod 777 greeting.txt; rm -f greeting.txt; "
        "mv greeting.txt y; ln greeting.txt z; truncate -s 0 greeting.txt; mount -o remount,rw "
        "/workspace; python3 -c \"import os; os.utime('greeting.txt')\"; true"
    )
    spoils = await work(harness, command, workspace="ro")
    assert spoils.result.status == "completed"
    assert "Read-only file system" in str(spoils.result.result)
    assert contents(spoils.project) == spoils.before
    assert (spoils.project / "greeting.txt").stat().st_nlink == 1
