"""Settings -> a container engine that answers. docker-py blocks; `Engine.call` is where it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
import docker
import docker.errors
import docker.tls
import requests.exceptions

from orchestrator.containers.failure import engine_error
from orchestrator.domain import Frozen
from orchestrator.errors import EngineUnreachable
from orchestrator.settings import Settings

CALL_SECONDS = 60
"""One call to the engine: a hung OCI runtime blocks `start` for ever otherwise."""

CALL_THREADS = 32
"""Blocking calls under way at once. anyio's own limit of 40 is shared with everybody else."""

P = ParamSpec("P")
T = TypeVar("T")


class EngineInfo(Frozen):
    """An engine, as it describes itself."""

    address: str
    version: str
    api_version: str
    """Of its API, as spoken with us."""


class Engine:
    """An engine that answered, and the one door for blocking calls to it."""

    def __init__(self, address: str, api: docker.APIClient, tls_dir: Path | None = None) -> None:
        self.address = address
        self.api = api
        self.tls_dir = tls_dir
        self._limiter = anyio.CapacityLimiter(CALL_THREADS)

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking docker-py call in a thread; its exceptions come out as ours.

        It is not abandoned when cancelled: half a `create` would leave a container behind.
        """
        with self.translated():
            return await anyio.to_thread.run_sync(
                partial(function, *args, **kwargs), limiter=self._limiter
            )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """docker-py's exceptions come out as ours; for code that may block, such as a build."""
        try:
            yield
        except docker.errors.APIError as exc:
            raise engine_error(exc.status_code or 500, str(exc.explanation or exc)) from exc
        except (docker.errors.DockerException, requests.exceptions.RequestException) as exc:
            raise self.unreachable(exc) from exc

    def unreachable(self, why: object) -> EngineUnreachable:
        return EngineUnreachable(
            f"the container engine at {self.address} does not answer ({why}); "
            "is it running? `docker version` tells"
        )

    async def about(self) -> EngineInfo:
        """Ask the engine what it is."""
        said = await self.call(self.api.version)
        return EngineInfo(
            address=self.address, version=str(said["Version"]), api_version=self.api.api_version
        )

    def close(self) -> None:
        self.api.close()


def connect(settings: Settings) -> Engine:
    """The first engine that answers, or a sentence that says where we looked."""
    failures: list[str] = []
    for address in settings.engine_candidates:
        socket = address.removeprefix("unix://")
        if address.startswith("unix://") and not Path(socket).exists():
            failures.append(f"{address}: no such socket")
            continue
        try:
            api = docker.APIClient(
                base_url=address, version="auto", timeout=CALL_SECONDS, tls=_tls(settings.tls_dir)
            )
        except (docker.errors.DockerException, requests.exceptions.RequestException) as exc:
            failures.append(f"{address}: {exc}")
            continue
        return Engine(address, api, settings.tls_dir)
    raise EngineUnreachable(
        "no container engine answers; start Docker or Podman, or set DOCKER_HOST. Tried:\n  "
        + "\n  ".join(failures)
    )


def _tls(tls_dir: Path | None) -> docker.tls.TLSConfig | bool:
    if tls_dir is None:
        return False
    return docker.tls.TLSConfig(
        client_cert=(str(tls_dir / "cert.pem"), str(tls_dir / "key.pem")),
        ca_cert=str(tls_dir / "ca.pem"),
        verify=True,
    )
