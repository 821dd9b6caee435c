"""Changes -> a diff that `git apply` takes, made here and without git: one hunk for each file.

For what is saved while an agent is at work. A git inside would run beside it, and could be made to
write a patch that does not tell what the changes are.
"""

from __future__ import annotations

import base64
import hashlib
import re
import string
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import takewhile

from orchestrator.domain.container import MIB
from orchestrator.workspace.changes.collected import PATCH, UTF8_PATCH, Changes, State
from orchestrator.workspace.changes.patch import Unmade, is_text, moved, open_new, without_patch
from orchestrator.workspace.paths import Root

PLAIN_PATCH_BYTES = 8 * MIB
"""Of all contents, old and new; of more there is a patch when the run has ended."""

CONTEXT = 3
"""Lines around a change."""

BINARY_LINE = 52
"""Bytes of a binary patch in one line, whose first letter says how many they are."""

LINE_LENGTHS = (string.ascii_uppercase + string.ascii_lowercase).encode()

LINE = re.compile(rb"[^\n]*\n|[^\n]+")

PatchFile = tuple[bytes, bytes]
"""Mode and content."""


def write_plain_patch(changes: Changes) -> Changes:
    """Write the patch beside the changes; without one, a warning says why. Blocks."""
    try:
        patch = b"".join(_patch(changes))
    except (Unmade, OSError) as exc:
        return without_patch(changes, str(exc))
    (changes.folder / PATCH).write_bytes(patch)
    (changes.folder / UTF8_PATCH).unlink(missing_ok=True)
    return changes.model_copy(update={"patch_bytes": len(patch)})


def _patch(changes: Changes) -> Iterator[bytes]:
    if sum(change.old.size + change.new.size for change in changes.changes) > PLAIN_PATCH_BYTES:
        raise Unmade(f"the files have more than {PLAIN_PATCH_BYTES // MIB} MiB")
    with Root(changes.root) as root:
        for change in changes.changes:
            old = _file(change.path, change.old, partial(root.open_file, change.path))
            new = _file(change.path, change.new, partial(open_new, changes, root, change))
            if old is not None and new is not None and change.old.kind != change.new.kind:
                yield from _diff(change.path, old, None)  # as git does
                old = None
            yield from _diff(change.path, old, new)


def _file(path: str, state: State, opener: Callable[[], int]) -> PatchFile | None:
    """What git would know of it; nothing of a directory."""
    if state.kind == "symlink":
        return b"120000", state.target.encode()
    if state.kind != "file":
        return None
    try:
        with open(opener(), "rb") as file:
            content = file.read(state.size + 1)
    except OSError as exc:
        raise Unmade(moved(path)) from exc
    if hashlib.sha256(content).hexdigest() != state.sha256:
        raise Unmade(moved(path))
    return b"100755" if state.mode & 0o100 else b"100644", content


def _diff(path: str, old: PatchFile | None, new: PatchFile | None) -> Iterator[bytes]:
    if old == new:
        return
    before, after = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    yield b"diff --git %s %s\n" % (before, after)
    if old is None and new is not None:
        yield b"new file mode %s\n" % new[0]
    elif new is None and old is not None:
        yield b"deleted file mode %s\n" % old[0]
    elif old is not None and new is not None and old[0] != new[0]:
        yield b"old mode %s\nnew mode %s\n" % (old[0], new[0])
    was, now = old[1] if old else b"", new[1] if new else b""
    if was != now and not (is_text(was) and is_text(now)):
        ids = (_git_id(old), _git_id(new))
        kept = b" " + new[0] if old and new and old[0] == new[0] else b""
        yield b"index %s..%s%s\nGIT binary patch\n" % (*ids, kept)
        yield from (*_literal(now), *_literal(was))
    elif was != now:
        nothing = b"/dev/null"
        yield b"--- %s\n+++ %s\n" % (before if old else nothing, after if new else nothing)
        yield from _hunk(LINE.findall(was), LINE.findall(now))


def _hunk(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    """From the first line that differs to the last: no search, which a stranger could make slow."""
    same = _alike(old, new)
    after = _alike(reversed(old[same:]), reversed(new[same:]))
    first, gone, come = max(0, same - CONTEXT), len(old) - after, len(new) - after
    below = old[gone : gone + CONTEXT]
    sizes = (gone + len(below) - first, come + len(below) - first)
    places = [number for size in sizes for number in (first + 1 if size else 0, size)]
    yield b"@@ -%d,%d +%d,%d @@\n" % tuple(places)
    parts = ((b" ", old[first:same]), (b"-", old[same:gone]), (b"+", new[same:come]), (b" ", below))
    for sign, lines in parts:
        for line in lines:
            whole = line.endswith(b"\n")
            yield sign + line + (b"" if whole else b"\n\\ No newline at end of file\n")


def _git_id(file: PatchFile | None) -> bytes:
    """By which git knows what to put a binary patch on."""
    if file is None:
        return b"0" * 40
    head = b"blob %d\0" % len(file[1])
    return hashlib.sha1(head + file[1], usedforsecurity=False).hexdigest().encode()


def _literal(content: bytes) -> Iterator[bytes]:
    """A whole content, as git writes it: so many bytes, deflated, in lines of base 85."""
    yield b"literal %d\n" % len(content)
    packed = zlib.compress(content)
    for at in range(0, len(packed), BINARY_LINE):
        part = packed[at : at + BINARY_LINE]
        yield LINE_LENGTHS[len(part) - 1 : len(part)] + base64.b85encode(part, pad=True) + b"\n"
    yield b"\n"


def _alike(old: Iterable[bytes], new: Iterable[bytes]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _quoted(name: str) -> bytes:
    """As git has a name that would not stay in its place."""
    raw = name.encode()
    if not re.search(rb'[\x00-\x20\x7f"\\]', raw):
        return raw
    return b'"%s"' % re.sub(rb'[\x00-\x1f\x7f"\\]', lambda odd: b"\\%03o" % odd[0][0], raw)
