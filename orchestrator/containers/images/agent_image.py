"""The images that agents run in, one for each runner: named by a digest of all that goes into it,
so that each is built only once.

All of them are built on one image that they share: Debian, what an agent works with, the warden.
What is on the engine under a name was made of exactly these inputs; finding it takes milliseconds.
Old ones stay until they are pruned, since a kept container may still need them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import docker.errors

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.file_lock import file_lock
from orchestrator.containers.images.base_image import base_candidates, ensure_base, image_exists
from orchestrator.containers.images.build import (
    KIND_LABEL,
    build_image,
    remove_image,
    remove_old_leftovers,
    text_file,
)
from orchestrator.containers.images.cli_parts import (
    IMAGE_RUNNERS,
    cli_checksums,
    cli_files,
    pinned_runners,
)
from orchestrator.containers.images.fetching import Progress, arch_of
from orchestrator.domain import Frozen
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.errors import ImageMissing
from orchestrator.settings import Settings
from orchestrator.shipped import PACKAGE, shipped_images

REPOSITORIES = "subagent-orchestrator/"
COMMON = "common"
"""What all runners' images are built on, and its kind. Theirs is "agent"."""

DIGEST_CHARS = 12
"""Long enough to tell two images apart, short enough to read in `docker ps`."""

BUILD_LOCK_SECONDS = 1800
"""How long to wait for another orchestrator that is building already."""


class ImageInputs(Frozen):
    """All that goes into an image."""

    repository: str
    """The runner, or COMMON."""
    dockerfile: str
    programs: tuple[str, ...]
    """Checksums of what is copied in, or the warden's text."""
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
    return f"{REPOSITORIES}{inputs.repository}:{digest[:DIGEST_CHARS]}"


def current_tags(engine: Engine, settings: Settings, runner: str) -> tuple[str, ...]:
    """The names that today's image of a runner may have: one for each base it may be built on."""
    if settings.agent_image and runner == DEFAULT_RUNNER:
        return (settings.agent_image,)
    arch = _arch(engine)
    return tuple(
        image_tag(_runner_inputs(settings, runner, image_tag(_common_inputs(base, arch)), arch))
        for base in base_candidates(settings)
    )


def runners_here(engine: Engine) -> tuple[str, ...]:
    """The runners that this engine can have an image for."""
    return pinned_runners(arch_of(_arch(engine)))


def all_current_tags(engine: Engine, settings: Settings) -> frozenset[str]:
    """Of all runners, and what they are built on."""
    arch = _arch(engine)
    tags = {image_tag(_common_inputs(base, arch)) for base in base_candidates(settings)}
    for runner in runners_here(engine):
        tags.update(current_tags(engine, settings, runner))
    return frozenset(tags)


def find_agent_image(engine: Engine, settings: Settings, runner: str) -> str:
    """The image to use now for a runner's agents, or a sentence that says how to get it."""
    for tag in current_tags(engine, settings, runner):
        if image_exists(engine, tag):
            return tag
    if settings.agent_image and runner == DEFAULT_RUNNER:
        raise ImageMissing(
            f"ORCHESTRATOR_AGENT_IMAGE={settings.agent_image} is not on the engine; "
            "pull or build it, or unset the variable"
        )
    raise ImageMissing(
        f"the image for {runner} is not on the engine; run `{build_command(runner)}`"
    )


def images_found(engine: Engine, settings: Settings) -> dict[str, str]:
    """Runner -> its image; "" for one that is not there."""
    found = dict.fromkeys(IMAGE_RUNNERS, "")
    for runner in runners_here(engine):
        with suppress(ImageMissing):
            found[runner] = find_agent_image(engine, settings, runner)
    return found


def build_command(runner: str) -> str:
    """What to type to have a runner's image."""
    return "orchestrator images build" + ("" if runner == DEFAULT_RUNNER else f" --runner {runner}")


def build_agent_image(engine: Engine, settings: Settings, runner: str, progress: Progress) -> str:
    """A runner's image, built if it is not there: its tag. Blocks; several may call it at once.

    `progress` hears nothing of an image that is there.
    """
    try:
        return find_agent_image(engine, settings, runner)
    except ImageMissing:
        if settings.agent_image and runner == DEFAULT_RUNNER:
            raise
    progress(f"the image for {runner} is not there yet; it is made once, in a minute or two")
    with _one_at_a_time(settings, progress):
        try:
            return find_agent_image(engine, settings, runner)
        except ImageMissing:
            return _build(engine, settings, runner, progress)


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
    """Remove images of ours but bases, those to keep and those in use: what was removed."""
    with _one_at_a_time(settings, progress):
        removed = [
            image
            for image in list_images(engine)
            if image.kind in ("agent", COMMON) and image.tag not in keep and not image.in_use
            if remove_image(engine, image.tag)
        ]
        remove_old_leftovers(engine)
    return tuple(removed)


def remove_images(engine: Engine, names: Iterable[str]) -> tuple[str, ...]:
    """Remove images, and what failed builds left: those that stay, since a container uses them."""
    used = tuple(name for name in names if not remove_image(engine, name))
    remove_old_leftovers(engine)
    return used


def _one_at_a_time(settings: Settings, progress: Progress) -> AbstractContextManager[None]:
    lock = settings.cache_dir / "images.lock"
    return file_lock(lock, BUILD_LOCK_SECONDS, lambda: progress("waiting for another build"))


def _arch(engine: Engine) -> str:
    with engine.translated():
        return str(engine.api.version()["Arch"])


def _common_inputs(base: str, arch: str) -> ImageInputs:
    return ImageInputs(
        repository=COMMON,
        dockerfile=_dockerfile(COMMON),
        programs=(_warden().read_text(),),
        base=base,
        arch=arch,
    )


def _runner_inputs(settings: Settings, runner: str, base: str, arch: str) -> ImageInputs:
    return ImageInputs(
        repository=runner,
        dockerfile=_dockerfile(runner),
        programs=cli_checksums(settings, runner, arch_of(arch)),
        base=base,
        arch=arch,
    )


def _dockerfile(name: str) -> str:
    return (shipped_images() / name / "Dockerfile").read_text()


def _warden() -> Path:
    return PACKAGE / "wire" / "warden.py"


def _build(engine: Engine, settings: Settings, runner: str, progress: Progress) -> str:
    arch = _arch(engine)
    common_inputs = _common_inputs(ensure_base(engine, settings, progress), arch)
    common = image_tag(common_inputs)
    inputs = _runner_inputs(settings, runner, common, arch)
    tag = image_tag(inputs)
    programs = cli_files(settings, runner, arch_of(arch), progress)
    if not image_exists(engine, common):
        files = [
            text_file("Dockerfile", common_inputs.dockerfile),
            text_file("warden.py", _warden().read_text()),
        ]
        build_image(engine, common, common_inputs.base, files, progress)
    dockerfile = text_file("Dockerfile", inputs.dockerfile)
    build_image(engine, tag, common, chain((dockerfile,), programs), progress)
    return tag


def _our_tags(engine: Engine, image: dict[str, Any]) -> set[str]:
    """Ours, as we say them. Podman puts a host before each, though it finds it without one."""
    found = set()
    for tag in image.get("RepoTags") or ():
        before, ours, rest = str(tag).rpartition(REPOSITORIES)
        if ours and (not before or image_id(engine, ours + rest) == image["Id"]):
            found.add(ours + rest)
    return found
