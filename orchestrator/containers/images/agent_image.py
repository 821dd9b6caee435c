"""The agent image: named by a digest of all that goes into it, so that it is built only once.

What is on the engine under that name was made of exactly these inputs; finding it takes
milliseconds. Old ones stay until they are pruned, since a kept container may still need them.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import docker.errors

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.file_lock import file_lock
from orchestrator.containers.images.base_image import base_candidates, ensure_base, image_exists
from orchestrator.containers.images.claude_binary import (
    CLAUDE_VERSION,
    FILE_CHUNK_BYTES,
    Progress,
    arch_of,
    checksum_of,
    fetch_claude,
    own_claude,
    own_digest,
)
from orchestrator.domain import Frozen
from orchestrator.errors import ImageBuildFailed, ImageMissing
from orchestrator.settings import Settings
from orchestrator.shipped import PACKAGE, shipped_images

REPOSITORIES = "subagent-orchestrator/"
REPOSITORY = REPOSITORIES + "agent"
KIND_LABEL = "orchestrator.image"
"""Which of our images it is: "agent" or "base". Inherited by whatever others build on ours."""
DIGEST_LABEL = "orchestrator.digest"
"""The digest of the inputs. Set last, so that what a failed build leaves does not have it."""

DIGEST_CHARS = 12
"""Long enough to tell two images apart, short enough to read in `docker ps`."""

BUILD_SILENCE_SECONDS = 600
"""A build step that says nothing for so long is given up."""

BUILD_LOCK_SECONDS = 1800
"""How long to wait for another orchestrator that is building already."""

LEFTOVER_SECONDS = 2 * BUILD_LOCK_SECONDS
"""So old, a part of an image is not one that another process is building on right now."""

LOG_TAIL_LINES = 20
BUILD_LINE_CHARS = 240
"""How much of a failed build's log an error repeats."""

STEP_CHARS = 48
"""A build step's command in a progress line, which is to fit a terminal with its times."""


class ImageInputs(Frozen):
    """All that goes into the agent image."""

    dockerfile: str
    warden: str
    claude: str
    """The checksum of the executable."""
    base: str
    arch: str


class BuiltImage(Frozen):
    """One of our images on the engine."""

    tag: str
    kind: str
    image_id: str
    created_seconds: int
    """When it was made, in seconds since 1970."""
    size_bytes: int
    in_use: bool
    """Whether a container was made of it, running or not."""


def image_tag(inputs: ImageInputs) -> str:
    """The name of the image made of these inputs; equal inputs, equal name."""
    digest = hashlib.sha256(inputs.model_dump_json().encode()).hexdigest()
    return f"{REPOSITORY}:{digest[:DIGEST_CHARS]}"


def current_tags(engine: Engine, settings: Settings) -> tuple[str, ...]:
    """The names that today's agent image may have: one for each base it may be built on."""
    if settings.agent_image:
        return (settings.agent_image,)
    with engine.translated():
        arch = str(engine.api.version()["Arch"])
    claude = _claude_checksum(settings, arch)
    return tuple(
        image_tag(_inputs(base=base, arch=arch, claude=claude))
        for base in base_candidates(settings)
    )


def find_agent_image(engine: Engine, settings: Settings) -> str:
    """The agent image to use now, or a sentence that says how to get it."""
    tags = current_tags(engine, settings)
    for tag in tags:
        if image_exists(engine, tag):
            return tag
    if settings.agent_image:
        raise ImageMissing(
            f"ORCHESTRATOR_AGENT_IMAGE={settings.agent_image} is not on the engine; "
            "pull or build it, or unset the variable"
        )
    raise ImageMissing("the agent image is not on the engine; run `orchestrator images build`")


def build_agent_image(engine: Engine, settings: Settings, progress: Progress) -> str:
    """The agent image, built if it is not there: its tag. Blocks; several may call it at once.

    `progress` hears nothing of an image that is there.
    """
    try:
        return find_agent_image(engine, settings)
    except ImageMissing:
        if settings.agent_image:
            raise
    progress("the agent image is not there yet; it is made once, in a minute or two")
    with _one_at_a_time(settings, progress):
        try:
            return find_agent_image(engine, settings)
        except ImageMissing:
            return _build(engine, settings, progress)


def image_id(engine: Engine, name: str) -> str:
    """What a name stands for now; "" if nothing has it. Blocks."""
    with engine.translated():
        try:
            return str(engine.api.inspect_image(name)["Id"])  # type: ignore[no-untyped-call]  # in types-docker
        except docker.errors.ImageNotFound:
            return ""


def list_images(engine: Engine) -> tuple[BuiltImage, ...]:
    """Our images on the engine, newest first. Images that others built on ours are not ours."""
    with engine.translated():
        found = engine.api.images(filters={"label": KIND_LABEL})
        used = {str(c["ImageID"]) for c in engine.api.containers(all=True)}
    ours = [
        BuiltImage(
            tag=tag,
            kind=str(image["Labels"][KIND_LABEL]),
            image_id=str(image["Id"]),
            created_seconds=int(image["Created"]),
            size_bytes=int(image["Size"]),
            in_use=str(image["Id"]) in used,
        )
        for image in found
        for tag in _our_tags(engine, image)
    ]
    return tuple(sorted(ours, key=lambda image: (-image.created_seconds, image.tag)))


def prune_images(
    engine: Engine, settings: Settings, keep: Collection[str], progress: Progress
) -> tuple[BuiltImage, ...]:
    """Remove our agent images but those to keep and those in use: what was removed."""
    with _one_at_a_time(settings, progress):
        removed = [
            image
            for image in list_images(engine)
            if image.kind == "agent" and image.tag not in keep and not image.in_use
            if _remove(engine, image.tag)
        ]
        _remove_old_leftovers(engine)
    return tuple(removed)


def remove_images(engine: Engine, names: Iterable[str]) -> tuple[str, ...]:
    """Remove images, and what failed builds left: those that stay, since a container uses them."""
    used = tuple(name for name in names if not _remove(engine, name))
    _remove_old_leftovers(engine)
    return used


def _one_at_a_time(settings: Settings, progress: Progress) -> AbstractContextManager[None]:
    lock = settings.cache_dir / "images.lock"
    return file_lock(lock, BUILD_LOCK_SECONDS, lambda: progress("waiting for another build"))


def build_context(files: Iterable[tuple[str, bytes | Path, int]]) -> Iterator[bytes]:
    """(name, content, mode)s -> a tar archive, piece by piece: 366 MB need not fit in memory.

    Times and owners are fixed, so that equal files hit the engine's build cache.
    """
    for name, content, mode in files:
        info = tarfile.TarInfo(name)
        info.mode = mode
        info.size = content.stat().st_size if isinstance(content, Path) else len(content)
        yield info.tobuf(tarfile.GNU_FORMAT)
        if isinstance(content, bytes):
            yield content
        else:
            with content.open("rb") as file:
                while chunk := file.read(FILE_CHUNK_BYTES):
                    yield chunk
        yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def step_line(text: str) -> str | None:
    """A line of the build log -> a short line of progress, if it begins a step."""
    # Docker writes "Step 3/9 : RUN ...", Podman "STEP 3/9: RUN ...".
    match = re.match(r"step (\d+/\d+) ?: (.*)", text.strip(), re.IGNORECASE)
    if not match:
        return None
    command = " ".join(match[2].split())
    short = command if len(command) <= STEP_CHARS else command[: STEP_CHARS - 1] + "…"
    return f"step {match[1]}: {short}"


def _inputs(*, base: str, arch: str, claude: str) -> ImageInputs:
    return ImageInputs(
        dockerfile=_dockerfile().read_text(),
        warden=_warden().read_text(),
        claude=claude,
        base=base,
        arch=arch,
    )


def _dockerfile() -> Path:
    return shipped_images() / "agent" / "Dockerfile"


def _warden() -> Path:
    return PACKAGE / "wire" / "warden.py"


def _claude_checksum(settings: Settings, arch: str) -> str:
    if settings.claude_binary:
        return own_digest(own_claude(settings.claude_binary, arch_of(arch)))
    return checksum_of(settings.claude_version or CLAUDE_VERSION, arch_of(arch))


def _build(engine: Engine, settings: Settings, progress: Progress) -> str:
    with engine.translated():
        arch = str(engine.api.version()["Arch"])
    base = ensure_base(engine, settings, progress)
    claude = settings.claude_binary or fetch_claude(
        settings.cache_dir, settings.claude_version or CLAUDE_VERSION, arch_of(arch), progress
    )
    inputs = _inputs(base=base, arch=arch, claude=_claude_checksum(settings, arch))
    tag = image_tag(inputs)
    context = build_context(
        (
            ("Dockerfile", inputs.dockerfile.encode(), 0o644),
            ("warden.py", inputs.warden.encode(), 0o644),
            ("claude", claude, 0o755),
        )
    )
    progress(f"building {tag}")
    parts: set[str] = set()
    try:
        _run_build(engine, tag, base, context, progress, parts)
    except BaseException:
        _remove_leftovers(engine, lambda image: _short_id(image) in parts)
        raise
    return tag


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


def _our_tags(engine: Engine, image: dict[str, Any]) -> set[str]:
    """Ours, as we say them. Podman puts a host before each, though it finds it without one."""
    found = set()
    for tag in image.get("RepoTags") or ():
        before, ours, rest = str(tag).rpartition(REPOSITORIES)
        if ours and (not before or image_id(engine, ours + rest) == image["Id"]):
            found.add(ours + rest)
    return found


def _remove(engine: Engine, name: str) -> bool:
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


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""The old builder writes in red what a step says on its stderr."""

_PART = re.compile(r"---> ([0-9a-f]{12})\b")


def _short_id(image: Mapping[str, Any]) -> str:
    return str(image["Id"]).removeprefix("sha256:")[:12]


def _remove_old_leftovers(engine: Engine) -> None:
    old = time.time() - LEFTOVER_SECONDS
    _remove_leftovers(engine, lambda image: int(image["Created"]) < old)


def _remove_leftovers(engine: Engine, which: Callable[[Mapping[str, Any]], bool]) -> None:
    """What failed builds left: no name, our first label, and not our last one."""
    filters = {"dangling": True, "label": f"{KIND_LABEL}=agent"}
    with engine.translated():
        found = engine.api.images(filters=filters)
    for image in found:
        if DIGEST_LABEL not in (image.get("Labels") or {}) and which(image):
            _remove(engine, str(image["Id"]))
