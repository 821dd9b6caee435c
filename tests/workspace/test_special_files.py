"""Sockets, FIFOs and devices of a directory: found, or the directory is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.domain.container import Bind, Cover
from orchestrator.errors import MountRefused
from orchestrator.workspace import special_files
from orchestrator.workspace.special_files import covers, in_a_sentence
from tests.workspace.trees import make


def shown(root: Path, *, read_only: bool = True) -> Bind:
    status = root.stat()
    identity = f"{status.st_dev}:{status.st_ino}"
    return Bind(source=str(root), read_only=read_only, identity=identity)


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def found(*binds: Bind) -> dict[str, str]:
    return {cover.target: cover.what for cover in covers(binds)}


def test_each_is_found_wherever_it_is_and_no_link_is_followed(tmp_path: Path) -> None:
    root = make(tmp_path / "project", {"a/b/file": "", ".git/HEAD": "x"})
    outside = make(tmp_path / "outside", {})
    listen(root / "top.sock")
    listen(root / ".git/fsmonitor--daemon.ipc")
    os.mkfifo(root / "a/b/pipe")
    listen(outside / "else.sock")
    (root / "link").symlink_to(outside)
    (root / "sock-link").symlink_to(outside / "else.sock")
    assert found(shown(root)) == {
        "/workspace/top.sock": "socket",
        "/workspace/.git/fsmonitor--daemon.ipc": "socket",
        "/workspace/a/b/pipe": "FIFO",
    }


def test_what_is_mounted_over_itself_is_looked_through_once_and_what_is_outside_too(
    tmp_path: Path,
) -> None:
    root = make(tmp_path / "project", {"sub/.git/HEAD": "x"})
    outside = make(tmp_path / "outside", {})
    listen(root / "sub/.git/ipc")
    listen(outside / "ipc")
    over = Bind(source=str(root / "sub/.git"), target="/workspace/sub/.git")
    beside = Bind(source=str(outside), target=str(outside))
    alone = Bind(source=str(make(tmp_path / "more", {"file": ""}) / "file"), target="/workspace/f")
    assert found(shown(root), over, beside, alone) == {
        "/workspace/sub/.git/ipc": "socket",
        f"{outside}/ipc": "socket",
    }


@pytest.mark.parametrize("made", [listen, os.mkfifo])
def test_one_that_takes_the_place_of_another_is_another(
    tmp_path: Path, made: Callable[[Path], None]
) -> None:
    root = make(tmp_path / "project", {})
    made(root / "it")
    (before,) = covers([shown(root)])
    os.utime(root / "it")  # as using a FIFO does
    assert covers([shown(root)]) == (before,)
    (root / "it").unlink()
    made(root / "it")
    (after,) = covers([shown(root)])
    assert (after.target, after.over != before.over) == (before.target, True)


def test_too_many_too_deep_and_too_wide_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = make(tmp_path / "many", {})
    for number in range(special_files.MAX_COVERS + 1):
        os.mkfifo(many / str(number))
    with pytest.raises(MountRefused, match="more than 64 sockets, FIFOs and devices"):
        covers([shown(many)])
    deep = make(tmp_path / "deep", {"/".join("d" * 130) + "/file": ""})
    with pytest.raises(MountRefused, match="use `workspace: copy`, which leaves such files out"):
        covers([shown(deep)])
    monkeypatch.setattr(special_files, "MAX_SEARCHED_FOLDERS", 3)
    with pytest.raises(MountRefused, match="too many to look for sockets in"):
        covers([shown(make(tmp_path / "wide", {f"{n}/file": "" for n in range(3)}))])


@pytest.mark.parametrize("name", [b"\xff.sock", b"\xff/in"])
def test_one_that_cannot_be_named_to_an_engine_is_refused(tmp_path: Path, name: bytes) -> None:
    root = make(tmp_path / "project", {})
    path = os.path.join(os.fsencode(root), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(MountRefused, match="cannot be covered under that name"):
        covers([shown(root)])


def test_one_in_the_place_of_a_git_directory_is_refused(tmp_path: Path) -> None:
    root = make(tmp_path / "project", {})
    listen(root / ".git")
    over = Bind(source=str(root / ".git"), target="/workspace/.git")
    with pytest.raises(MountRefused, match="cannot be covered under that name"):
        covers([shown(root, read_only=False), over])


def test_another_directory_in_its_place_is_not_looked_through(tmp_path: Path) -> None:
    root, other = make(tmp_path / "project", {}), make(tmp_path / "other", {})
    wanted = shown(root)
    root.rename(tmp_path / "away")
    other.rename(root)
    with pytest.raises(MountRefused, match="another directory has just taken its place"):
        covers([wanted])


CLOSED = """
import os, sys
from tests.workspace.test_special_files import shown, found
from orchestrator.errors import MountRefused
from pathlib import Path
os.setresgid(1000, 1000, 1000); os.setgroups([]); os.setresuid(1000, 1000, 1000)
for read_only in (True, False):
    try:
        print(found(shown(Path(sys.argv[1]), read_only=read_only)))
    except MountRefused as exc:
        print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="has to become another user")
@pytest.mark.parametrize(
    ("root_of", "closed_by", "said"),
    [
        (1000, 1000, ["{}", "refused"]),  # who could chmod it where it is writable
        (1000, 0, ["{}", "{}"]),  # closed to the agent as well
        (1001, 1001, ["refused", "refused"]),  # the agent is that other user
    ],
)
def test_a_directory_that_only_an_agent_could_look_into_is_refused(
    root_of: int, closed_by: int, said: list[str]
) -> None:
    with TemporaryDirectory() as folder:  # pytest's own are closed to other users
        Path(folder).chmod(0o755)
        root = make(Path(folder) / "project", {"closed/file": ""})
        os.chown(root, root_of, root_of)
        os.chown(root / "closed", closed_by, closed_by)
        (root / "closed").chmod(0o000 if closed_by == 1000 else 0o700)
        argv = (sys.executable, "-c", CLOSED, str(root))
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == said, done.stderr


def test_they_are_named_in_one_line() -> None:
    names = [Cover(target=f"/workspace/{n}\n", what="FIFO") for n in range(12)]
    assert in_a_sentence(names).startswith("'/workspace/0\\n' (FIFO), ")
    assert in_a_sentence(names).endswith(" and 2 more")
