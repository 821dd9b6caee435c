"""A directory of this machine, packed, sent, and changes applied to it: no server is needed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from orchestrator.client.packing import SentPlaces, apply_here, packed_tree
from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain.container import MIB
from orchestrator.errors import ApplyRefused, MountRefused
from orchestrator.workspace.archives.kept_changes import changes_tar, take_changes
from orchestrator.workspace.archives.uploads import Uploads
from orchestrator.workspace.changes.collected import (
    OBJECTS,
    Change,
    Changes,
    State,
    make_folder,
    save_changes,
)

URL = "http://127.0.0.1:1"


@pytest.fixture
def policy(tmp_path: Path) -> MountPolicy:
    return MountPolicy(roots=(tmp_path,), home=Path("/nowhere"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src/main.py").write_text("print(1)\n")
    (root / "run.sh").write_text("true\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src")
    (root / ".gitignore").write_text("*.log\n.env\n")
    (root / ".env").write_text("KEY=secret\n")
    (root / "big.bin").write_bytes(b"\xff" * MIB)
    return root


def test_a_directory_arrives_as_it_is_without_what_git_ignores(
    project: Path, policy: MountPolicy, tmp_path: Path
) -> None:
    uploads = Uploads(tmp_path / "uploads", 10 * MIB)
    with packed_tree(project, policy) as packed:
        upload = uploads.add("main", iter([packed.file.read_bytes()]), gzipped=True)
    tree = uploads.tree("main", upload.workspace)
    assert upload.workspace == packed.workspace
    assert (upload.files, upload.bytes) == (packed.files, packed.bytes)
    assert sorted(str(p.relative_to(tree)) for p in tree.rglob("*")) == [
        *(".gitignore", "big.bin", "link", "run.sh", "src", "src/main.py"),
    ]
    assert (tree / "src/main.py").read_text() == "print(1)\n"
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tree / "link").readlink() == Path("src")


def test_the_same_directory_is_the_same_upload_and_another_is_not(
    project: Path, policy: MountPolicy, tmp_path: Path
) -> None:
    with packed_tree(project, policy) as first, packed_tree(project, policy) as again:
        assert first.workspace == again.workspace
    twin = tmp_path / "twin"
    project.rename(twin)
    with packed_tree(twin, policy) as moved:
        assert moved.workspace != first.workspace
    (twin / "run.sh").write_text("false\n")
    with packed_tree(twin, policy) as changed:
        assert changed.workspace != moved.workspace


def test_what_no_container_may_see_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    policy = MountPolicy(roots=(tmp_path,), home=tmp_path / "home")
    for place in (tmp_path / "home", tmp_path / "home/.ssh", Path("/etc")):
        with pytest.raises(MountRefused), packed_tree(place, policy):
            pass


def test_only_a_directory_that_was_sent_is_known(
    project: Path, policy: MountPolicy, tmp_path: Path
) -> None:
    sent = SentPlaces(tmp_path / "state")
    with packed_tree(project, policy) as packed:
        sent.remember(URL, packed)
    assert sent.root(URL, packed.workspace) == project
    assert sent.root("http://127.0.0.1:2", packed.workspace) is None
    assert sent.root(URL, "w" + "0" * 64) is None
    assert sent.root(URL, "../x") is None


# Changes, from a server that need not be believed


def kept(folder: Path, *changes: Change, contents: tuple[bytes, ...] = ()) -> Changes:
    made = Changes(root=Path("/server/uploads/x/tree"), changes=changes, folder=folder)
    make_folder(folder)
    for content in contents:
        (folder / OBJECTS / sha256(content).hexdigest()).write_bytes(content)
    save_changes(made)
    return made


def written(path: str, content: bytes) -> Change:
    new = State(kind="file", mode=0o644, size=len(content), sha256=sha256(content).hexdigest())
    return Change(path=path, old=State(), new=new)


def test_changes_are_applied_here_and_not_where_the_server_says(
    project: Path, policy: MountPolicy, tmp_path: Path
) -> None:
    there = kept(tmp_path / "r1", written("new.txt", b"hello\n"), contents=(b"hello\n",))
    here = take_changes(changes_tar(there), tmp_path / "got/r1")
    applied = apply_here(here, project, policy)
    assert [file.path for file in applied.files] == ["new.txt"]
    assert (project / "new.txt").read_text() == "hello\n"


def test_what_acts_on_this_machine_needs_a_word_whatever_the_server_says_of_it(
    project: Path, policy: MountPolicy, tmp_path: Path
) -> None:
    folder = Change(path=".vscode", old=State(), new=State(kind="dir", mode=0o755))
    change = written(".vscode/tasks.json", b"{}")
    there = kept(tmp_path / "r1", folder, change, contents=(b"{}",))
    here = take_changes(changes_tar(there), tmp_path / "got/r1")
    with pytest.raises(ApplyRefused, match="act on this machine"):
        apply_here(here, project, policy)
    assert not (project / ".vscode").exists()
    apply_here(here, project, policy, allow_acting=True)
    assert (project / ".vscode/tasks.json").exists()


def test_a_content_that_is_not_what_its_name_says_is_refused(
    project: Path, policy: MountPolicy, tmp_path: Path
) -> None:
    there = kept(tmp_path / "r1", written("new.txt", b"hello\n"), contents=(b"hello\n",))
    (there.folder / OBJECTS / sha256(b"hello\n").hexdigest()).write_bytes(b"other\n")
    here = take_changes(changes_tar(there), tmp_path / "got/r1")
    with pytest.raises(ApplyRefused, match="damaged"):
        apply_here(here, project, policy)


def test_what_is_no_change_is_not_taken(tmp_path: Path) -> None:
    there = kept(tmp_path / "r1", written("new.txt", b"x"), contents=(b"x",))
    (there.folder / "manifest.json").write_text('{"root": "/", "changes": [{"path": "../x"}]}')
    with pytest.raises(ApplyRefused, match="cannot be read"):
        take_changes(changes_tar(there), tmp_path / "got/r1")
    with pytest.raises(ApplyRefused, match="no changes that can be read"):
        take_changes(iter([b"no tar" * 100]), tmp_path / "got/r2")
