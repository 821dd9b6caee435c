"""Archives that a caller sends as its workspace: what is in them is data, and that caller's."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.domain.container import MIB
from orchestrator.errors import CopyRefused, MountRefused
from orchestrator.workspace.archives.tar_reader import EXTENDED_BYTES, TarLimits, tar_entries
from orchestrator.workspace.archives.uploads import MOST_UPLOADS, TREE, UPLOAD_SECONDS, Uploads
from tests.attacks.mark import attack

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"x", **fields: object) -> Entry:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    info.size = len(data) if info.isreg() else 0
    return info, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> Entry:
    return entry(name, type=kind, linkname=target)


def tar(*entries: Entry) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def pieces(data: bytes, size: int = 700) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path / "uploads", MIB)


def send(uploads: Uploads, data: bytes, *, owner: str = "main", gzipped: bool = False) -> Path:
    upload = uploads.add(owner, pieces(data), gzipped=gzipped)
    return uploads.tree(owner, upload.workspace)


def outside(uploads: Uploads, tmp_path: Path) -> list[str]:
    """What is there besides the folder of uploads, and files in that."""
    return sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file())


def test_a_tree_comes_out_as_it_was_sent(uploads: Uploads) -> None:
    long = "d/" * 60 + "n" * 200
    data = tar(
        entry("./", type=tarfile.DIRTYPE),
        entry("run.sh", b"#!/bin/sh\n", mode=0o755, mtime=1_000_000),
        entry("sub/", type=tarfile.DIRTYPE, mode=0o500),
        entry("sub/ünïcode", b"y" * 3000),
        entry(long, b"deep"),
        link("up", "../elsewhere"),
    )
    tree = send(uploads, data)
    assert (tree / "run.sh").read_bytes() == b"#!/bin/sh\n"
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
    assert int((tree / "run.sh").stat().st_mtime) == 1_000_000
    assert (tree / "sub/ünïcode").read_bytes() == b"y" * 3000
    assert (tree / long).read_bytes() == b"deep"
    assert (tree / "up").readlink() == Path("../elsewhere")
    assert send(uploads, gzip.compress(data), gzipped=True) == tree


@attack(
    "files, links and archives",
    "send an archive whose names lead out of the workspace",
    "the whole archive is refused, and nothing of it stays",
)
@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../../x", "a//x", "x\0y", "a/./x", "n" * 256, "d/" * 200 + "x"]
)
def test_names_that_lead_out(name: str, uploads: Uploads, tmp_path: Path) -> None:
    with pytest.raises(CopyRefused):
        send(uploads, tar(entry("fine"), _pax("path", name), entry("x")))
    assert outside(uploads, tmp_path) == []


def _pax(keyword: str, value: str) -> Entry:
    """A header for the next entry, with a value that the library would not write."""
    text = f" {keyword}={value}\n".encode()
    size = len(text) + len(str(len(text) + 3))
    line = b"%d%s" % (size, text)
    line = line if len(line) == size else b"%d%s" % (size + 1, text)
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, len(line)
    return info, line


@attack(
    "files, links and archives",
    "send an archive with a link, and a file that goes through it",
    "refused: no entry goes through another but a directory",
)
@pytest.mark.parametrize("target", ["/tmp", "..", "real"])
def test_a_file_through_a_link(target: str, uploads: Uploads, tmp_path: Path) -> None:
    folder = entry("real/", type=tarfile.DIRTYPE)
    with pytest.raises(CopyRefused, match="no directory"):
        send(uploads, tar(folder, link("way", target), entry("way/stolen")))
    with pytest.raises(CopyRefused, match="more than once"):
        send(uploads, tar(link("way", target), entry("way")))
    assert outside(uploads, tmp_path) == []


@attack(
    "files, links and archives",
    "send an archive with a device, a FIFO, a hard link or an unknown entry",
    "the whole archive is refused",
)
@pytest.mark.parametrize(
    "kind",
    [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE, b"S", b"M", b"7", b"V"],
)
def test_what_is_no_file(kind: bytes, uploads: Uploads, tmp_path: Path) -> None:
    with pytest.raises(CopyRefused, match="odd"):
        send(uploads, tar(entry("fine"), link("odd", "fine", kind)))
    assert outside(uploads, tmp_path) == []


def _bomb() -> bytes:
    return gzip.compress(tar(entry("zeros", bytes(4 * MIB))))


def _after_the_end() -> bytes:
    return gzip.compress(tar(entry("x")) + bytes(8 * MIB))


def _long_header() -> bytes:
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, EXTENDED_BYTES + 1
    return gzip.compress(info.tobuf() + bytes(2 * EXTENDED_BYTES))


def _empty_directories() -> bytes:
    return gzip.compress(tar(*(entry(f"d{n}/", b"", type=tarfile.DIRTYPE) for n in range(257))))


def _directories_that_paths_imply() -> bytes:
    return gzip.compress(tar(*(entry("/".join([f"d{n}"] * 50), b"") for n in range(6))))


def _headers_in_a_row() -> bytes:
    return gzip.compress(tar(*[_pax("comment", "x")] * 5, entry("x")))


def _says_less() -> bytes:
    return gzip.compress(tar(_pax("size", "0"), entry("x", b"y" * 600)))


@attack(
    "files, links and archives",
    "send an archive that unfolds to more than may be sent",
    "refused as soon as it is too much, whatever it is too much of",
)
@pytest.mark.parametrize(
    ("made", "why"),
    [
        (_bomb, "more than 1 MiB"),
        (_after_the_end, "larger than what it may hold"),
        (_long_header, "a header of the archive is too long"),
        (_empty_directories, "counted as 4 KiB"),
        (_directories_that_paths_imply, "counted as 4 KiB"),
        (_headers_in_a_row, "too many headers in a row"),
        (_says_less, "no tar archive"),
    ],
)
def test_bombs(made: Callable[[], bytes], why: str, uploads: Uploads, tmp_path: Path) -> None:
    with pytest.raises(CopyRefused, match=why):
        send(uploads, made(), gzipped=True)
    assert outside(uploads, tmp_path) == []


def test_more_entries_than_may_be() -> None:
    header = entry("d/", type=tarfile.DIRTYPE)[0].tobuf()
    with pytest.raises(CopyRefused, match="more than 10 files"):
        list(tar_entries(pieces(header * 11), TarLimits(bytes=MIB, entries=10)))


@pytest.mark.parametrize("cut", [1, 511, 513, 1500])
def test_half_an_archive_is_none(cut: int, uploads: Uploads, tmp_path: Path) -> None:
    whole = tar(entry("a", b"z" * 900))
    with pytest.raises(CopyRefused):
        send(uploads, whole[:cut])
    with pytest.raises(CopyRefused):
        send(uploads, gzip.compress(whole)[:-5], gzipped=True)
    with pytest.raises(CopyRefused):
        send(uploads, os.urandom(4096))
    assert outside(uploads, tmp_path) == []


@attack(
    "files, links and archives",
    "name the upload of another caller, or the path of it",
    "there is no such upload, as if it were not there",
)
def test_the_upload_of_another_caller(uploads: Uploads) -> None:
    tree = send(uploads, tar(entry("secret")), owner="main")
    workspace = tree.parent.name
    assert uploads.find("other", workspace) is None
    assert not uploads.remove("other", workspace)
    with pytest.raises(MountRefused, match="no upload"):
        uploads.tree("other", workspace)
    assert uploads.is_of("main", tree)
    assert not uploads.is_of("other", tree)
    assert not uploads.is_of("main", tree.parent.parent / ".." / TREE)
    for name in ("..", "", "w" + "0" * 63, f"{workspace}/../{workspace}", workspace.upper()):
        assert uploads.find("main", name) is None
    assert (tree / "secret").exists()


def test_uploads_go_when_nobody_asks_for_them(tmp_path: Path) -> None:
    now = 1e9
    uploads = Uploads(tmp_path / "uploads", MIB, lambda: now)
    first = send(uploads, tar(entry("first")))
    used = send(uploads, tar(entry("used")))
    now += UPLOAD_SECONDS - 1
    kept = send(uploads, tar(entry("kept")))
    now += 2
    uploads.tidy(in_use={used})
    assert [first.exists(), used.exists(), kept.exists()] == [False, True, True]


def test_those_not_asked_for_longest_make_room(tmp_path: Path) -> None:
    now = 1e9
    uploads = Uploads(tmp_path / "uploads", MIB, lambda: now)
    trees = []
    for number in range(MOST_UPLOADS + 1):
        now += 1
        trees.append(send(uploads, tar(entry(f"n{number}"))))
    assert [tree.exists() for tree in trees] == [False] + [True] * MOST_UPLOADS
    large = [tar(entry("large", os.urandom(MIB - 5000))) for _ in range(5)]
    for data in large:
        now += 1
        send(uploads, data)
    assert len(list((tmp_path / "uploads").glob("*/w*/tree/large"))) == 4
    in_use = set((tmp_path / "uploads").glob("*/w*/tree"))
    more = pieces(tar(entry("more", bytes(MIB - 4096))))
    with pytest.raises(CopyRefused, match="wait for some"):
        uploads.add("main", more, gzipped=False, in_use=lambda: in_use)


def test_a_run_that_begins_while_an_archive_comes_keeps_its_tree(tmp_path: Path) -> None:
    now = 1e9
    uploads = Uploads(tmp_path / "uploads", MIB, lambda: now)
    trees = []
    for number in range(MOST_UPLOADS):
        now += 1
        trees.append(send(uploads, tar(entry(f"n{number}"))))
    in_use: set[Path] = set()

    def coming() -> Iterator[bytes]:
        yield from pieces(tar(entry("new")))
        in_use.add(trees[0])

    with pytest.raises(CopyRefused, match="wait for some"):
        uploads.add("main", coming(), gzipped=False, in_use=lambda: in_use)
    assert trees[0].exists()
