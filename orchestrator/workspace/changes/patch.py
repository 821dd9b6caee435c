"""Changes -> a diff that `git apply` takes, made by the container's git from what we send it.

The host's git never sees what an agent wrote. The one inside gets two trees through `fast-import`
in a repository of its own: no working tree, so no filters and no attributes that could hide a
change, and no configuration but ours.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.domain.container import File, Launch
from orchestrator.errors import OrchestratorError
from orchestrator.workspace.box import Box, Chunks, Odd, Reader, nothing, talk
from orchestrator.workspace.changes.collected import PATCH, UTF8_PATCH, Change, Changes, State
from orchestrator.workspace.paths import FILE, Root
from orchestrator.workspace.reading.pack import BATCH, shown

PATCH_SECONDS = 120.0
"""For git, from beginning to end; a run does not wait longer for its patch."""

TIDY_SECONDS = 10.0
"""For git's scratch directory to be removed; in a session, the agent would find it."""

MAX_PATCH_BYTES = 64 * 1024 * 1024
"""No reader gets through more, and it is held in memory."""

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
}

DIFF = (
    *("git", "-c", "core.quotePath=false", "diff-tree", "-r", "-p", "--binary"),
    *("--full-index", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


class Unmade(Exception):
    """There will be no patch; says why."""


async def make_patch(box: Box, changes: Changes, scratch: str) -> Changes:
    """Write the patch beside the changes; without one, a warning says why."""
    try:
        with anyio.fail_after(PATCH_SECONDS):
            size = await _make(box, changes, f"{scratch}/.orchestrator-{secrets.token_hex(8)}")
    except TimeoutError:
        why = f"git took longer than {PATCH_SECONDS:.0f} s"
    except (Unmade, Odd, OrchestratorError, OSError) as exc:
        why = str(exc)
    else:
        return changes.model_copy(update={"patch_bytes": size})
    return without_patch(changes, why)


def without_patch(changes: Changes, why: str) -> Changes:
    told = (*changes.warnings, f"there is no patch: {why}; the changed files are kept")
    return changes.model_copy(update={"warnings": told})


async def _make(box: Box, changes: Changes, repository: str) -> int:
    settings = {**ENVIRONMENT, "GIT_DIR": repository}
    make = ("git", "init", "--quiet", "--bare", "--template=", repository)
    no_text: set[str] = set()

    async def diff(rules: bytes, name: str) -> int:
        parts: list[bytes] = []

        async def keep(reader: Reader) -> None:
            await reader.all_of(parts, MAX_PATCH_BYTES)

        argv = (*DIFF, _renames(changes), "refs/heads/old", "refs/heads/new")
        placed = File(path=f"{repository}/info/attributes", content=rules)
        launch = Launch(argv=argv, env=settings, files=(placed,))
        await talk(box, launch, no_input(), keep)
        return await anyio.to_thread.run_sync(_write, changes.folder / name, parts)

    try:
        await talk(box, Launch(argv=make, env=ENVIRONMENT), no_input(), nothing)
        add = Launch(argv=("git", "fast-import", "--quiet", "--done"), env=settings)
        await talk(box, add, import_stream(changes, no_text), nothing)
        if no_text:
            await diff(attributes(no_text), UTF8_PATCH)
        return await diff(attributes(()), PATCH)
    finally:
        with anyio.move_on_after(TIDY_SECONDS, shield=True):
            await talk(box, Launch(argv=("rm", "-rf", repository)), no_input(), nothing)


def _renames(changes: Changes) -> str:
    """`git apply` (2.39) does not see that a renamed symbolic link is gone, and refuses what is
    new below it: "affected file 'a/b' is beyond a symbolic link".
    """
    links_gone = any(
        change.old.kind == "symlink" and change.new.kind != "symlink" for change in changes.changes
    )
    return "--no-renames" if links_gone else "-M"


def _write(path: Path, parts: list[bytes]) -> int:
    with path.open("wb") as file:
        file.writelines(parts)
        return file.tell()


def no_input() -> Chunks:
    """For a program that reads nothing."""
    yield from ()


def attributes(no_text: Collection[str]) -> bytes:
    """What git is told of the files: nothing that is said in them counts, and these are no text."""
    lines = [b"* !diff !text !eol\n"]
    for path in sorted(no_text):
        pattern = re.sub(r"([*?\[\\])", r"\\\1", f"/{path}")
        lines.append(b"%s -diff\n" % _quoted(pattern))
    return b"".join(lines)


def is_text(content: bytes) -> bool:
    """Whether it can be shown in a patch that is UTF-8."""
    try:
        return b"\0" not in content and bool(content.decode() or True)
    except UnicodeDecodeError:
        return False


def import_stream(changes: Changes, no_text: set[str]) -> Chunks:
    """Two commits for `git fast-import`: what was touched, as it was and as it is. Paths of what is
    not UTF-8 are added to `no_text`.

    Unmade if the workspace is not what the snapshot says any more: a patch against that would be
    of no use.
    """
    buffer = bytearray()
    told = [c for c in changes.changes if _in_git(c.old) or _in_git(c.new)]
    with Root(changes.root) as root:
        buffer += _commit("old", 1)
        for change in told:
            if _in_git(change.old):
                old = partial(root.open_file, change.path)
                yield from _add(buffer, change.path, change.old, old, no_text)
        buffer += _commit("new", 2) + b"from :1\n"
        for change in told:
            if _in_git(change.old) and not _in_git(change.new):
                buffer += b"D %s\n" % _quoted(change.path)
        for change in told:
            if _in_git(change.new):
                new = partial(open_new, changes, root, change)
                yield from _add(buffer, change.path, change.new, new, no_text)
    buffer += b"done\n"
    yield bytes(buffer)


def _in_git(state: State) -> bool:
    return state.kind in ("file", "symlink")  # git knows no directories


def open_new(changes: Changes, root: Root, change: Change) -> int:
    """The kept content; of a file whose mode alone has changed, the workspace's."""
    kept = changes.object_path(change.new.sha256)
    if change.new.sha256 == change.old.sha256 and not kept.exists():
        return root.open_file(change.path)
    return os.open(kept, FILE)


def _add(
    buffer: bytearray, path: str, state: State, opener: Callable[[], int], no_text: set[str]
) -> Iterator[bytes]:
    if state.kind == "symlink":
        target = state.target.encode()
        buffer += b"M 120000 inline %s\ndata %d\n%s\n" % (_quoted(path), len(target), target)
        return
    mode = b"100755" if state.mode & 0o100 else b"100644"
    buffer += b"M %s inline %s\ndata %d\n" % (mode, _quoted(path), state.size)
    sha, size, decoder = hashlib.sha256(), 0, codecs.getincrementaldecoder("utf-8")()
    try:
        fd = opener()
    except OSError as exc:
        raise Unmade(moved(path)) from exc
    try:
        while data := os.read(fd, BATCH):
            sha.update(data)
            size += len(data)
            if size > state.size:
                break
            if path not in no_text and not _goes_on(decoder, data):
                no_text.add(path)
            buffer += data
            if len(buffer) >= BATCH:
                yield bytes(buffer)
                buffer.clear()
    finally:
        os.close(fd)
    if (size, sha.hexdigest()) != (state.size, state.sha256):
        raise Unmade(moved(path))
    if path not in no_text and not _goes_on(decoder, b"", last=True):
        no_text.add(path)
    buffer += b"\n"


def _goes_on(decoder: codecs.IncrementalDecoder, data: bytes, *, last: bool = False) -> bool:
    try:
        decoder.decode(data, last)
    except UnicodeDecodeError:
        return False
    return True


def moved(path: str) -> str:
    return f"{shown(path)} has changed in the workspace since it was copied"


def _commit(name: str, mark: int) -> bytes:
    who = b"committer orchestrator <orchestrator@localhost> 0 +0000"
    return b"commit refs/heads/%s\nmark :%d\n%s\ndata 0\n" % (name.encode(), mark, who)


def _quoted(path: str) -> bytes:
    raw = path.encode()
    for byte, escape in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        raw = raw.replace(byte, escape)
    return b'"%s"' % raw
