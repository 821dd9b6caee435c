"""One build of an image on the engine: what it is given, what it tells, what it leaves behind."""

from __future__ import annotations

import re
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import docker.errors

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.images.base_image import image_exists
from orchestrator.containers.images.fetching import Progress, chunks_of
from orchestrator.errors import ImageBuildFailed

KIND_LABEL = "orchestrator.image"
"""Which of our images it is: "agent", "common" or "base". What others build on ours inherits it."""
DIGEST_LABEL = "orchestrator.digest"
"""The digest of the inputs. Set last, so that what a failed build leaves does not have it: a build
on an image that has one begins by emptying it.
"""

BUILD_SILENCE_SECONDS = 600
"""A build step that says nothing for so long is given up."""

LEFTOVER_SECONDS = 3600
"""So old, a part of an image is not one that another process is building on right now."""

LOG_TAIL_LINES = 20
BUILD_LINE_CHARS = 240
"""How much of a failed build's log an error repeats."""

STEP_CHARS = 48
"""A build step's command in a progress line, which is to fit a terminal with its times."""


class ContextFile(NamedTuple):
    """A file that a build is given."""

    name: str
    size: int
    chunks: Iterable[bytes]
    mode: int = 0o644


def text_file(name: str, text: str) -> ContextFile:
    content = text.encode()
    return ContextFile(name, len(content), (content,))


def path_file(name: str, path: Path, mode: int) -> ContextFile:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from chunks_of(file)

    return ContextFile(name, path.stat().st_size, chunks(), mode)


def build_context(files: Iterable[ContextFile]) -> Iterator[bytes]:
    """Files -> a tar archive, piece by piece: 366 MB need not fit in memory.

    Times and owners are fixed, so that equal files hit the engine's build cache.
    """
    for file in files:
        info = tarfile.TarInfo(file.name)
        info.mode, info.size = file.mode, file.size
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from file.chunks
        yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def build_image(
    engine: Engine, tag: str, base: str, files: Iterable[ContextFile], progress: Progress
) -> None:
    """Build an image on a base and name it; a build that fails leaves nothing. Blocks."""
    progress(f"building {tag}")
    parts: set[str] = set()
    try:
        _run_build(engine, tag, base, build_context(files), progress, parts)
    except BaseException:
        _remove_leftovers(engine, lambda image: _short_id(image) in parts)
        raise


def step_line(text: str) -> str | None:
    """A line of the build log -> a short line of progress, if it begins a step that takes time."""
    # Docker writes "Step 3/9 : RUN ...", Podman "STEP 3/9: RUN ...".
    match = re.match(r"step (\d+/\d+) ?: (RUN|COPY|ADD) (.*)", text.strip(), re.IGNORECASE)
    if not match:
        return None
    command = " ".join(match[3].split())
    if "apt-get " in command:
        return f"step {match[1]}: install Debian packages"
    said = f"{match[2]} {command}"
    short = said if len(said) <= STEP_CHARS else said[: STEP_CHARS - 1] + "…"
    return f"step {match[1]}: {short}"


def remove_image(engine: Engine, name: str) -> bool:
    """Remove an image; already gone is success, in use after all is not."""
    with engine.translated():
        try:
            engine.api.remove_image(name)
        except docker.errors.ImageNotFound:
            return True
        except docker.errors.APIError as exc:
            if exc.status_code == 409:
                return False
            raise
    return True


def remove_old_leftovers(engine: Engine) -> None:
    old = time.time() - LEFTOVER_SECONDS
    _remove_leftovers(engine, lambda image: int(image["Created"]) < old)


def _run_build(
    engine: Engine,
    tag: str,
    base: str,
    context: Iterator[bytes],
    progress: Progress,
    parts: set[str],
) -> None:
    """Build; the images that come about on the way are noted in `parts`, by their short ids."""
    log: deque[str] = deque(maxlen=LOG_TAIL_LINES)
    with engine.translated():
        events = engine.api.build(
            fileobj=context,  # type: ignore[arg-type]  # requests streams an iterator
            custom_context=True,
            decode=True,
            tag=tag,
            buildargs={"BASE": base},
            labels={DIGEST_LABEL: tag.rpartition(":")[2]},
            rm=True,
            forcerm=True,
            timeout=BUILD_SILENCE_SECONDS,
        )
        failure = ""
        for event in events:  # to the end, after an error too: half read, its connection stays open
            parts.update(_PART.findall(str(event.get("stream") or "")))
            failure = failure or str(event.get("error") or "")
            _note(event, log, progress)
    if failure:
        raise ImageBuildFailed(
            f"the image build failed: {_shortened(failure)}. If it could not fetch "
            "packages, see that builds on this engine reach the network (its DNS, and its proxy "
            f"settings); then build again. Its last words:\n{_tail(log)}"
        )
    if not image_exists(engine, tag):
        raise ImageBuildFailed(f"the engine built no {tag}. Its last words:\n" + _tail(log))


def _note(event: dict[str, Any], log: deque[str], progress: Progress) -> None:
    """One event of the build: a piece of its log, which may begin a step."""
    text = _COLOUR.sub("", str(event.get("stream") or "")).rstrip()
    log.extend(_shortened(line) for line in text.splitlines() if line.strip())
    step = step_line(text)
    if step:
        progress(step)


def _shortened(text: str) -> str:
    """The beginning and the end, which say what it was and what came of it."""
    words = " ".join(text.split())
    if len(words) <= BUILD_LINE_CHARS:
        return words
    return f"{words[: BUILD_LINE_CHARS * 2 // 3]} … {words[-BUILD_LINE_CHARS // 3 :]}"


def _tail(log: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in log)


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""The old builder writes in red what a step says on its stderr."""

_PART = re.compile(r"---> ([0-9a-f]{12})\b")


def _short_id(image: Mapping[str, Any]) -> str:
    return str(image["Id"]).removeprefix("sha256:")[:12]


def _remove_leftovers(engine: Engine, which: Callable[[Mapping[str, Any]], bool]) -> None:
    """What failed builds left: no name, our first label, and not our last one."""
    filters = {"dangling": True, "label": KIND_LABEL}
    with engine.translated():
        found = engine.api.images(filters=filters)
    for image in found:
        if not (image.get("Labels") or {}).get(DIGEST_LABEL) and which(image):
            remove_image(engine, str(image["Id"]))
