"""What the orchestrator has made on this machine for this user, and how all of it is removed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.images.agent_image import BuiltImage, list_images, remove_images
from orchestrator.containers.images.fetching import Progress
from orchestrator.containers.labels import ContainerInfo
from orchestrator.domain import Frozen
from orchestrator.errors import OperatorError
from orchestrator.settings import Settings
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionRows

STATE_NAMES = (
    *("id", "owners", "kept", "texts", "trust", "changes", "memory", "oauth", "pruned"),
    *("runs.sqlite*", "reports", "orchestrator-report-*.txt"),
    *("snapshots", "uploads", "sent", "http"),
)
"""What is ours in a state directory. The operator may have named a directory that holds more."""

CACHE_NAMES = ("claude", "packages", "images.lock")
"""And in a cache directory."""


class Openers(NamedTuple):
    """What is looked through is opened for as long as that takes, and not made by looking."""

    runtime: Callable[[], AbstractAsyncContextManager[DockerRuntime]]
    engine: Callable[[], AbstractContextManager[Engine]]
    store: Callable[[], AbstractContextManager[Store]]


class Folder(Frozen):
    """A directory of this user's, with what is ours in it."""

    path: Path
    bytes: int


class Inventory(Frozen):
    """All that can be removed."""

    containers: tuple[ContainerInfo, ...] = ()
    volumes: tuple[str, ...] = ()
    """Files of sessions."""
    images: tuple[BuiltImage, ...] = ()
    state: Folder | None = None
    """Runs, sessions, trust, audit; None where there is none."""
    cache: Folder | None = None
    """Downloads."""

    @property
    def is_empty(self) -> bool:
        return self == Inventory()


async def take_inventory(settings: Settings, opens: Openers) -> Inventory:
    """What there is. Nothing is changed, and nothing made."""
    state = _folder(settings.state_dir, STATE_NAMES)
    if not (settings.state_dir / "id").is_file():  # no orchestrator has used that directory
        state = None
    cache = _folder(settings.cache_dir, CACHE_NAMES)
    if state is None:  # without a record, no container is known to be this user's
        with opens.engine() as engine:
            images = await anyio.to_thread.run_sync(list_images, engine)
        return Inventory(images=images, cache=cache)
    async with opens.runtime() as runtime:
        return Inventory(
            containers=await runtime.list(),
            volumes=await runtime.volumes(await _kept(opens, runtime)),
            images=await anyio.to_thread.run_sync(list_images, runtime.engine),
            state=state,
            cache=cache,
        )


async def remove_all(
    settings: Settings,
    opens: Openers,
    found: Inventory,
    progress: Progress,
) -> tuple[str, ...]:
    """Remove what was found; what stays, and why. OperatorError while an orchestrator runs."""
    stays = []
    if found.state is not None:
        async with opens.runtime() as runtime:
            _check_alone(settings, runtime)
            for key in await _kept(opens, runtime):
                await runtime.forget(key)
            for info in await runtime.list():
                progress(f"removing {info.name}")
                await runtime.engine.remove(info.id)
    if found.images:
        with opens.engine() as engine:
            tags = [image.tag for image in found.images]
            progress(f"removing {', '.join(tags)}")
            used = await anyio.to_thread.run_sync(remove_images, engine, tags)
        stays += [f"{tag}: a container that is not yours is made of it" for tag in used]
    for folder, names in ((found.state, STATE_NAMES), (found.cache, CACHE_NAMES)):
        if folder is not None:
            progress(f"removing {folder.path}")
            stays += _emptied(folder.path, names)
    return tuple(stays)


def _check_alone(settings: Settings, runtime: DockerRuntime) -> None:
    """OperatorError if another orchestrator of this user runs."""
    owner = runtime.owner
    names = [path.stem for path in (settings.state_dir / "owners").glob("*.lock")]
    if any(name != owner.id and owner.alive(name) for name in names):
        raise OperatorError(
            "an orchestrator of yours is at work: end each `orchestrator serve` (close the "
            "clients that started it) and each `orchestrator run`, then call again"
        )


async def _kept(opens: Openers, runtime: DockerRuntime) -> tuple[str, ...]:
    """What the engine knows the sessions by: those of the record, and those that have a container
    without being in it.
    """
    with opens.store() as store:
        rows = await SessionRows(store, "").all()
    listed = [info.key for info in await runtime.list() if info.kind == "kept"]
    return tuple(dict.fromkeys((*(row.kept for row in rows), *listed)))


def _folder(path: Path, names: tuple[str, ...]) -> Folder | None:
    found = [each for name in names for each in path.glob(name)]
    return Folder(path=path, bytes=sum(map(_bytes, found))) if found else None


def _bytes(path: Path) -> int:
    files = [path] if not path.is_dir() or path.is_symlink() else path.rglob("*")
    return sum(file.lstat().st_size for file in files if not file.is_dir() or file.is_symlink())


def _emptied(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Remove what is ours in a folder, and the folder if nothing else is in it: what stays."""
    try:
        for path in (each for name in names for each in folder.glob(name)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        others = sorted(path.name for path in folder.iterdir())
        if not others:
            folder.rmdir()
    except OSError as exc:
        raise OperatorError(f"{exc.filename or folder} cannot be removed: {exc.strerror}") from exc
    return [f"{folder}: it holds {', '.join(others[:3])}, which is not ours"] if others else []
