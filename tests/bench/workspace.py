"""What a workspace costs that is copied: into its container, and what changed out again."""

from __future__ import annotations

import base64
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import anyio.to_thread

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import WORKSPACE, Launch, Volume
from orchestrator.workspace.transfer import collect, copy_in
from tests.bench.row import Row, ratio_at_most
from tests.bench.stage import Stage

FILES = 5000
FILE_BYTES = 5000
"""With git's copy of them, some 50 MB."""

CHANGED = 20

GIT_SECONDS = 120

MEGABYTE = 1_000_000


async def workspace(stage: Stage) -> tuple[Row, ...]:
    """Against `cp -a` and `docker cp`: a copy that the tree on the host does not depend on."""
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as folder:
        root, kept = Path(folder, "project"), Path(folder, "kept")
        await anyio.to_thread.run_sync(_make, root)
        size = count = 0
        for _ in range(stage.times(5, 2)):
            mounts = (Volume(target=WORKSPACE),)
            wanted = stage.spec.model_copy(update={"mounts": mounts})
            async with stage.runtime.open(wanted) as container:
                began = time.perf_counter()
                snapshot = await copy_in(container, root)
                seconds["in"].append(time.perf_counter() - began)
                size, count = snapshot.total_bytes, snapshot.total_count
                await _change(container)
                began = time.perf_counter()
                changes = await collect(container, snapshot, kept)
                seconds["out"].append(time.perf_counter() - began)
                assert len(changes.files) == CHANGED, changes
                assert changes.patch_path is not None, changes.warnings
            plain_in, plain_out = await _plain(stage, root, Path(folder))
            seconds["plain in"].append(plain_in)
            seconds["plain out"].append(plain_out)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    return (
        Row(
            name=f"a workspace of {count:,} files and {size / MEGABYTE:.0f} MB copied in",
            against="cp -a and docker cp",
            unit="s",
            ours=middle["in"],
            theirs=middle["plain in"],
            target=ratio_at_most(1.0),
        ),
        Row(name="files copied in", unit="/s", ours=count / middle["in"]),
        Row(name="bytes copied in", unit="MB/s", ours=size / MEGABYTE / middle["in"]),
        Row(
            name=f"{CHANGED} changed files out of it, and a patch",
            against="docker cp of all of it",
            unit="s",
            ours=middle["out"],
            theirs=middle["plain out"],
            target=ratio_at_most(1.0),
        ),
    )


def _make(root: Path) -> None:
    """A repository of files that do not compress well, packed as git packs it sooner or later."""
    for number in range(FILES):
        path = root / f"{number % 10}/{number % 100}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.encodebytes(os.urandom(FILE_BYTES * 3 // 4)))
    author = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
    commit = (*author, "commit", "-q", "-m", "all")
    for args in (("init", "-q"), ("add", "-A"), commit, ("gc", "-q")):
        subprocess.run(["git", *args], cwd=root, check=True, timeout=GIT_SECONDS)


async def _change(container: Container) -> None:
    script = f"for n in $(seq 0 {CHANGED - 1}); do echo changed >> $((n % 10))/$n/$n.txt; done"
    done = await container.run(Launch(argv=("sh", "-ec", script), cwd=WORKSPACE))
    assert done.code == 0, done.stderr


async def _plain(stage: Stage, root: Path, folder: Path) -> tuple[float, float]:
    """Seconds in and out with the tools that everybody has."""
    argv = (stage.docker, "run", "--detach", "--rm", "--volume", WORKSPACE)
    started = await anyio.run_process(
        (*argv, "--entrypoint", "sleep", stage.image, "600"), check=True
    )
    name = started.stdout.decode().strip()
    copy, back = folder / "copy", folder / "back"
    try:
        into = await stage.seconds(("cp", "-a", str(root), str(copy)))
        into += await stage.seconds((stage.docker, "cp", f"{copy}/.", f"{name}:{WORKSPACE}"))
        out = await stage.seconds((stage.docker, "cp", f"{name}:{WORKSPACE}/.", str(back)))
    finally:
        await stage.seconds((stage.docker, "rm", "--force", "--volumes", name))
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(back, ignore_errors=True)
    return into, out
