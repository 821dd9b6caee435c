"""Where a repository keeps its git directory, and a copy of it that stands alone.

A linked worktree and a submodule have a file called .git that names a directory elsewhere. It is
believed only if that directory names them in turn: otherwise an agent that writes such a
file into a workspace could have any repository of this machine handed to the next one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.domain import Frozen
from orchestrator.workspace.git.config import read_config, safe_config, without_any_credentials
from orchestrator.workspace.git.index import tracked_paths
from orchestrator.workspace.paths import FILE, FOLDER, Root
from orchestrator.workspace.reading.pack import Packer, shown

MAX_POINTER_BYTES = 8192
MAX_CONFIG_BYTES = 1024 * 1024
MAX_INDEX_BYTES = 64 * 1024 * 1024
MAX_ALTERNATES = 8
"""Other repositories whose objects one may borrow."""

OWN_FILES = frozenset(
    (
        *("HEAD", "index", "MERGE_MSG", "MERGE_MODE", "AUTO_MERGE", "SQUASH_MSG", "ORIG_HEAD"),
        *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD"),
    )
)
OWN_FOLDERS = frozenset(("rebase-merge", "rebase-apply"))
SHARED_FILES = frozenset(("packed-refs", "shallow"))
SHARED_FOLDERS = frozenset(("objects", "refs", "logs", "reftable"))
"""What is copied. Hooks, configuration and all that we do not know stay where they are."""

TEXTS = frozenset(("logs", "MERGE_MSG", "SQUASH_MSG"))
"""What of it tells of addresses: after `git pull https://me:secret@host/x`, the reflog has that."""

MAX_TEXT_BYTES = 16 * 1024 * 1024
"""Of one of them; it is held in memory to be looked through."""

NOT_COPIED = frozenset(("alternates", "http-alternates"))
"""Where objects are that a repository borrows: paths of this machine, addresses of others."""

Allowed = Callable[[Path], bool]
"""Whether a directory outside the workspace may be read for it."""


class GitDir(Frozen):
    """A repository's git directory, and the one that it shares with other worktrees."""

    own: Path
    shared: Path


def find_git_dir(root: Root, path: str, allowed: Allowed) -> GitDir | str:
    """What a .git (no symbolic link) below `root` stands for; a sentence if it cannot be used."""
    place = root.path / path
    if _is_folder(root, place):
        return GitDir(own=place, shared=place)
    named = _first_line(root, place)
    if not named.startswith("gitdir:"):
        return "it is neither a directory nor the name of one"
    try:
        own = (place.parent / named.removeprefix("gitdir:").strip()).resolve(strict=True)
        common = _first_line(root, own / "commondir")
        shared = (own / common).resolve(strict=True) if common else own
    except (OSError, RuntimeError, ValueError):
        return "it names a git directory that is not there"
    outside = [folder for folder in (own, shared) if not folder.is_relative_to(root.path)]
    for folder in outside:
        if not allowed(folder):
            return f"its git directory {folder} may not be shown to agents"
    if outside and not _points_back(root, own, shared, place):
        return (
            f"its git directory {own} does not name it in turn; if it was moved, "
            "`git worktree repair` mends that"
        )
    return GitDir(own=own, shared=shared)


def _points_back(root: Root, own: Path, shared: Path, place: Path) -> bool:
    if shared != own:
        back = _first_line(root, own / "gitdir")
        return own.parent == shared / "worktrees" and _same(own / back, place)
    settings = [
        *read_config(_text(root, own / "config", MAX_CONFIG_BYTES)),
        *read_config(_text(root, own / "config.worktree", MAX_CONFIG_BYTES)),
    ]
    trees = [s.value for s in settings if (s.section, s.key) == ("core", "worktree")]
    return bool(trees) and _same(own / trees[-1], place.parent)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.resolve(strict=True) == other.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return False


def pack_git(packer: Packer, root: Root, path: str, allowed: Allowed) -> Iterator[bytes]:
    """Put a git directory of its own at `path`, which holds no way out of the copy."""
    found = find_git_dir(root, path, allowed)
    if isinstance(found, str):
        packer.left_out.add(f"since {found}", path)
        return
    if not _is_file(root, found.own / "HEAD"):
        packer.left_out.add("since it is no git directory", path)
        return
    config = read_config(_text(root, found.shared / "config", MAX_CONFIG_BYTES))
    packer.folder(path, 0o755, track=False)
    packer.text(f"{path}/config", safe_config(config).encode(errors="replace"))
    packer.folder(f"{path}/info", 0o755, track=False)
    packer.text(f"{path}/info/exclude", _text(root, found.shared / "info/exclude").encode())
    copy = _Copy(packer, root, path)
    yield from copy.some(found.own, OWN_FILES, OWN_FOLDERS)
    if found.shared != found.own:
        for folder in ("logs", "refs"):
            yield from copy.folder(found.own / folder, f"{path}/{folder}")
    yield from copy.some(found.shared, SHARED_FILES, SHARED_FOLDERS)
    for folder in ("objects", "refs"):
        copy.made(f"{path}/{folder}")
    yield from _borrowed(
        copy, found.shared / "objects", lambda it: it.is_relative_to(root.path) or allowed(it)
    )


def tracked_below(root: Root, path: str, allowed: Allowed) -> frozenset[str] | None:
    """What the repository of a .git tracks, as paths below `root`; None if that is not known."""
    found = find_git_dir(root, path, allowed)
    if isinstance(found, str):
        return None
    try:
        with os.fdopen(root.open_real(found.own / "index", FILE), "rb") as file:
            data = file.read(MAX_INDEX_BYTES + 1)
    except OSError:
        return None
    config = _text(root, found.shared / "config", MAX_CONFIG_BYTES)
    sha256 = "objectformat" in config.lower() and "sha256" in config.lower()
    tracked = tracked_paths(data, sha256=sha256) if len(data) <= MAX_INDEX_BYTES else None
    folder = path.rpartition("/")[0]
    return tracked if tracked is None or not folder else frozenset(f"{folder}/{t}" for t in tracked)


def _borrowed(copy: _Copy, objects: Path, allowed: Allowed) -> Iterator[bytes]:
    """Objects that a repository takes from others: copied too, since nothing may point outside."""
    waiting, seen = [objects], {objects}
    while waiting:
        at = waiting.pop()
        for line in _text(copy.root, at / "info/alternates").splitlines():
            if not line or line.startswith("#"):
                continue
            try:
                other = (at / line).resolve(strict=True)
            except (OSError, RuntimeError, ValueError):
                continue
            if other in seen:
                continue
            if len(seen) > MAX_ALTERNATES or not allowed(other):
                why = f"since {other} may not be shown to agents; git will miss some history"
                copy.packer.left_out.add(why, f"{shown(copy.path)}/objects of another repository")
                continue
            seen.add(other)
            waiting.append(other)
            yield from copy.folder(other, f"{copy.path}/objects")


class _Copy:
    """Directories of the host, one over another: what came first stays."""

    def __init__(self, packer: Packer, root: Root, path: str) -> None:
        self.packer = packer
        self.root = root
        self.path = path
        self._seen: set[str] = set()

    def made(self, path: str) -> None:
        if path not in self._seen:
            self._seen.add(path)
            self.packer.folder(path, 0o755, track=False)

    def some(self, source: Path, files: frozenset[str], folders: frozenset[str]) -> Iterator[bytes]:
        """What is named so, and nothing else."""
        fd = self.root.open_real(source)
        try:
            for name in sorted(os.listdir(fd)):
                if name in files or (name.startswith("sharedindex.") and "index" in files):
                    yield from self._file(fd, name, f"{self.path}/{name}")
                elif name in folders:
                    yield from self._folder(fd, name, f"{self.path}/{name}")
        finally:
            os.close(fd)

    def folder(self, source: Path, path: str) -> Iterator[bytes]:
        try:
            fd = self.root.open_real(source.parent)
        except OSError:
            return
        try:
            yield from self._folder(fd, source.name, path)
        finally:
            os.close(fd)

    def _folder(self, above: int, name: str, path: str) -> Iterator[bytes]:
        try:
            fd = os.open(name, FOLDER, dir_fd=above)
        except OSError:
            return  # no directory, or a link to one
        try:
            self.made(path)
            for row in sorted(os.listdir(fd)):
                below = f"{path}/{row}"
                if row.endswith(".lock") or row.startswith("tmp_") or row in NOT_COPIED:
                    continue
                kind = stat.S_IFMT(os.stat(row, dir_fd=fd, follow_symlinks=False).st_mode)
                if kind == stat.S_IFDIR:
                    yield from self._folder(fd, row, below)
                elif kind == stat.S_IFREG:
                    yield from self._file(fd, row, below)
        except FileNotFoundError:
            pass  # git on the host is tidying up: what it removes, it has elsewhere
        finally:
            os.close(fd)

    def _file(self, folder: int, name: str, path: str) -> Iterator[bytes]:
        if path in self._seen:
            return
        self._seen.add(path)
        if path.removeprefix(f"{self.path}/").split("/")[0] in TEXTS:
            self._text(folder, name, path)
        else:
            yield from self.packer.file(path, name, folder, track=False)
        if self.packer.full:
            yield self.packer.take()

    def _text(self, folder: int, name: str, path: str) -> None:
        """Without the passwords that may be in it."""
        try:
            with open(os.open(name, FILE, dir_fd=folder), "rb") as file:
                data = file.read(MAX_TEXT_BYTES + 1)
        except OSError as exc:
            self.packer.left_out.add(f"could not be read ({exc.strerror})", path)
            return
        if len(data) > MAX_TEXT_BYTES:
            why = "since it is too long to be looked through for passwords"
            self.packer.left_out.add(why, path)
            return
        self.packer.text(path, without_any_credentials(data))


def _first_line(root: Root, path: Path) -> str:
    return _text(root, path).partition("\n")[0].strip()


def _text(root: Root, path: Path, most: int = MAX_POINTER_BYTES) -> str:
    """The beginning of a small file; empty if there is none."""
    try:
        fd = root.open_real(path, FILE)
    except (OSError, ValueError):
        return ""
    try:
        return os.read(fd, most).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _is_folder(root: Root, path: Path) -> bool:
    return _is_there(root, path, FOLDER)


def _is_file(root: Root, path: Path) -> bool:
    return _is_there(root, path, FILE)


def _is_there(root: Root, path: Path, flags: int) -> bool:
    try:
        fd = root.open_real(path, flags)
    except (OSError, ValueError):
        return False
    try:
        return flags == FOLDER or stat.S_ISREG(os.fstat(fd).st_mode)
    finally:
        os.close(fd)
