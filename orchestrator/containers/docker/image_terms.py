"""What an image says of itself -> what a container of it must not get from it. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from orchestrator.containers.labels import LABEL_PREFIX
from orchestrator.domain import Frozen
from orchestrator.domain.container import ContainerSpec
from orchestrator.errors import SpecRefused

OUR_IMAGES_LABELS = frozenset(LABEL_PREFIX + name for name in ("image", "digest", "cli.license"))
"""Written on the images that we build, and so on what others build on them."""

ENGINE_LABELS = ("io.containers.", "io.podman.")
"""What Podman obeys on a container: one of them takes capabilities from PID 1."""

VARIABLE = re.compile(r"[\w.-]+", re.ASCII)


class ImageTerms(Frozen):
    """An image by its id, since a name may be given to another one at any time."""

    id: str
    variables: tuple[str, ...] = ()
    """Names of its ENV. PID 1 gets none of them: LD_PRELOAD would be run by root."""
    volumes: tuple[str, ...] = ()
    """Its VOLUMEs: each would be a disk without a limit that the agent can write."""


def image_terms(name: str, inspected: Mapping[str, Any]) -> ImageTerms:
    """From the answer to GET /images/NAME/json; SpecRefused for what cannot be put right."""
    config = inspected.get("Config") or {}
    for label in config.get("Labels") or {}:
        ours = label.startswith(LABEL_PREFIX) and label not in OUR_IMAGES_LABELS
        if ours or label.startswith(ENGINE_LABELS):
            raise SpecRefused(
                f"the image {name} has the label {label[:100]!r}, which says how containers are "
                "treated; build it without"
            )
    variables = {str(row).partition("=")[0] for row in config.get("Env") or ()}
    for variable in variables:
        if not VARIABLE.fullmatch(variable):
            raise SpecRefused(
                f"the image {name} sets a variable called {variable[:100]!r}, which cannot be "
                "taken away; build it without"
            )
    volumes = {_shortest(name, str(path)) for path in config.get("Volumes") or {}}
    return ImageTerms(
        id=str(inspected["Id"]), variables=tuple(sorted(variables)), volumes=tuple(sorted(volumes))
    )


def covered_volumes(image: ImageTerms, spec: ContainerSpec) -> tuple[str, ...]:
    """Those that something empty is to be mounted over; where we mount, ours is there instead."""
    targets = [each.target for each in (*spec.mounts, *spec.tmpfs)]
    for volume in image.volumes:
        for target in targets:
            if is_below(volume, target):
                raise SpecRefused(
                    f"the image {spec.image} has a VOLUME {volume}, inside {target}, which is "
                    "mounted from outside; build it without"
                )
    return tuple(volume for volume in image.volumes if volume not in targets)


def is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _shortest(name: str, volume: str) -> str:
    """As engines write it: without a slash at its end, and so on."""
    path = posixpath.normpath("/" + volume.lstrip("/"))
    if not volume.startswith("/") or path == "/" or not path.isprintable():
        raise SpecRefused(
            f"the image {name} has a VOLUME {volume[:100]!r}, which is no path to a directory in "
            "it; build it without"
        )
    return path
