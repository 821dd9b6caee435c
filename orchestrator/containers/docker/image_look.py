"""A look at the files of an image, through a container that was made and not started.

An engine follows the links of an image when it mounts something. Where /opt is a link into the
agent's kept home, what the agent left there would be run as PID 1.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection

import docker

from orchestrator.containers.docker.create import WARDEN
from orchestrator.containers.docker.image_terms import is_below
from orchestrator.domain import Frozen
from orchestrator.errors import EngineRefused, SpecRefused

GO_DIRECTORY, GO_LINK = 1 << 31, 1 << 27
"""Bits of a mode as Go writes it, and so the engine."""

PRELOADED = "/etc/ld.so.preload"
"""Libraries that the loader puts into every program, PID 1 included."""

NEEDED_BY_WARDEN = (WARDEN[0], WARDEN[-1], PRELOADED, "/lib", "/lib64", "/usr/lib")
"""What PID 1 is made of. Links in an image are usual here (/lib, python3), but none may lead to
where the agent writes."""


class SeenPath(Frozen):
    """What is at a path of an image; nothing, if it has neither kind nor size."""

    is_there: bool = False
    is_directory: bool = False
    is_open: bool = False
    """Everybody may write there."""
    size: int = 0
    leads_to: str = ""
    """Where a link ends, in the container."""


class ImageLook:
    """Blocks; one for each container that is looked into."""

    def __init__(self, api: docker.APIClient, container: str, image: str) -> None:
        self._api = api
        self._container = container
        self._image = image
        self._seen: dict[str, SeenPath] = {}

    def shut(self, targets: Collection[str]) -> tuple[str, ...]:
        """Directories of the image that not everybody may write to; some OCI runtimes give their
        mode to what is mounted there.
        """
        seen = {target: self._look(target) for target in sorted(targets)}
        return tuple(path for path, each in seen.items() if each.is_there and not each.is_open)

    def check(self, targets: Collection[str]) -> None:
        """SpecRefused if something would be mounted elsewhere than at these targets, or if PID 1
        would be made of what is mounted there.
        """
        for target in sorted(targets):
            for path in _upwards(target):
                seen = self._look(path)
                if seen.is_there and not seen.is_directory:
                    what = f"a link to {seen.leads_to}" if seen.leads_to else "no directory"
                    raise SpecRefused(
                        f"in the image {self._image}, {path} is {what}, so that nothing can be "
                        f"mounted at {target}; make it a directory"
                    )
        for needed in NEEDED_BY_WARDEN:
            for path in _upwards(needed):
                end = self._look(path).leads_to or path
                if any(end == target or is_below(end, target) for target in targets):
                    raise SpecRefused(
                        f"in the image {self._image}, {path} leads to {end}, where the agent's "
                        "files are; PID 1 needs it in the image itself"
                    )
        if self._look(PRELOADED).size or self._look(PRELOADED).leads_to:
            raise SpecRefused(
                f"the image {self._image} has a {PRELOADED}, which puts code into PID 1; build it "
                "without"
            )

    def _look(self, path: str) -> SeenPath:
        if path not in self._seen:
            self._seen[path] = self._ask(path)
        return self._seen[path]

    def _ask(self, path: str) -> SeenPath:
        # docker-py has no call for this one: it would get the whole archive.
        url = f"{self._api.base_url}/v{self._api.api_version}/containers/{self._container}/archive"
        answer = self._api.head(url, params={"path": path}, timeout=self._api.timeout)
        told = answer.headers.get("X-Docker-Container-Path-Stat", "")
        if answer.status_code == 404 and not told:  # Podman tells of a link that leads nowhere
            return SeenPath()
        if answer.status_code not in (200, 404):
            raise EngineRefused(
                f"the engine does not tell what is at {path} in the image {self._image} "
                f"({answer.status_code})"
            )
        return read_stat(told)


def read_stat(header: str) -> SeenPath:
    """The engine's answer to HEAD /containers/ID/archive."""
    try:
        row = json.loads(base64.b64decode(header))
        mode, size, link = int(row["mode"]), int(row["size"]), str(row["linkTarget"])
    except (ValueError, KeyError, TypeError) as exc:
        raise EngineRefused("the engine does not tell what is in an image") from exc
    return SeenPath(
        is_there=True,
        is_directory=bool(mode & GO_DIRECTORY),
        is_open=bool(mode & 0o002),
        size=0 if mode & GO_DIRECTORY else size,
        leads_to=(link or "?") if mode & GO_LINK else "",
    )


def _upwards(path: str) -> list[str]:
    """Every directory on the way to a path, from the top, and the path itself."""
    names = path.strip("/").split("/")
    return ["/" + "/".join(names[:count]) for count in range(1, len(names) + 1)]
