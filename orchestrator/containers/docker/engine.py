"""Settings -> a container engine that answers. docker-py blocks; `Engine.call` is where it does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
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
import urllib3.exceptions

from orchestrator.containers.failure import engine_error
from orchestrator.domain import Frozen
from orchestrator.errors import EngineRefused, EngineUnreachable, OrchestratorError
from orchestrator.settings import Settings

CALL_SECONDS = 60
"""One call to the engine: a hung OCI runtime blocks `start` for ever otherwise."""

OLDEST_API = "1.40"
"""Docker 19.03 and Podman 4: only to ask which version an engine speaks."""

CALL_THREADS = 32
"""Blocking calls under way at once. anyio's own limit of 40 is shared with all other threads."""

ENGINE_ADDRESSES = ("unix://", "tcp://", "http://", "https://")
"""How an engine's address begins; docker-py knows others, which need programs or break off."""

SHOWN_WHY_CHARS = 200
"""Of what a library says about an address that does not answer."""

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
        except (
            docker.errors.DockerException,
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,  # of an answer that is read piece by piece
        ) as exc:
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

    async def inspect(self, container: str) -> dict[str, object] | None:
        """What the engine says of a container, by name or id; None if there is none."""
        try:
            found = await self.call(self.api.inspect_container, container)
        except EngineRefused as exc:
            if _is_gone(exc):
                return None
            raise
        return dict(found)

    async def remove(self, container: str) -> None:
        """Remove a container by force; one that is gone or going already is as good."""
        try:
            await self.call(self.api.remove_container, container, force=True, v=True)
        except EngineRefused as exc:
            if not _is_gone(exc):
                raise

    async def remove_volume(self, name: str) -> None:
        """Remove a volume; one that is gone already is as good."""
        try:
            await self.call(self.api.remove_volume, name, force=True)
        except EngineRefused as exc:
            if not _is_gone(exc):
                raise

    def close(self) -> None:
        self.api.close()


def connect(settings: Settings) -> Engine:
    """The first engine that answers, or a sentence that says where we looked."""
    failures: dict[str, Exception] = {}
    for address in settings.engine_candidates:
        try:
            _try_socket(address)
            return Engine(address, _client(address, settings.tls_dir), settings.tls_dir)
        except (docker.errors.DockerException, OSError) as exc:  # requests' errors are OSErrors
            failures[address] = exc
    raise EngineUnreachable(no_engine(failures))


def no_engine(failures: Mapping[str, Exception]) -> str:
    """What an operator is told who has no engine: where it was looked for, and what was found."""
    tried = "".join(f"\n  {address}: {_why_not(exc)}" for address, exc in failures.items())
    forbidden = [address for address, exc in failures.items() if isinstance(exc, PermissionError)]
    if not forbidden:
        advice = "start Docker or Podman, or set DOCKER_HOST"
        return f"no container engine answers; {advice}. Tried:{tried}"
    if "podman" in forbidden[0]:
        return (
            "Podman runs, but not for you: systemctl --user enable --now podman.socket gives you "
            f"your own. Tried:{tried}"
        )
    return (
        "Docker runs, but you may not use it: sudo usermod -aG docker $USER, then log in again. "
        f"(Members of that group can become root here.) Tried:{tried}"
    )


def _why_not(exc: BaseException) -> str:
    """The system's own words, however deep libraries have wrapped them."""
    within = (exc.__cause__, exc.__context__, *exc.args, getattr(exc, "reason", None))
    for inner in within:
        if isinstance(inner, BaseException) and (found := _why_not(inner)):
            return found
    if isinstance(exc, requests.exceptions.RequestException | urllib3.exceptions.HTTPError):
        return "" if within[0] or within[1] else "no answer that makes sense"
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    return str(exc).splitlines()[0][:SHOWN_WHY_CHARS] if str(exc) else type(exc).__name__


def _try_socket(address: str) -> None:
    """Raise OSError unless a server listens; docker-py would leave the socket open."""
    if not address.startswith(ENGINE_ADDRESSES):
        raise docker.errors.DockerException(f"write {' or '.join(ENGINE_ADDRESSES[:2])}")
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.connect(address.removeprefix("unix://"))


def _client(address: str, tls_dir: Path | None) -> docker.APIClient:
    # Not version="auto", which leaves a socket open when no engine answers.
    tls = _tls(tls_dir)
    first = docker.APIClient(address, version=OLDEST_API, timeout=CALL_SECONDS, tls=tls)
    try:
        version = str(first.version(api_version=False)["ApiVersion"])
    finally:
        first.close()
    return docker.APIClient(address, version=version, timeout=CALL_SECONDS, tls=tls)


def _tls(tls_dir: Path | None) -> docker.tls.TLSConfig | bool:
    if tls_dir is None:
        return False
    return docker.tls.TLSConfig(
        client_cert=(str(tls_dir / "cert.pem"), str(tls_dir / "key.pem")),
        ca_cert=str(tls_dir / "ca.pem"),
        verify=True,
    )


def _is_gone(exc: OrchestratorError) -> bool:
    text = str(exc).lower()
    signs = ("no such container", "no such volume", "already in progress", "no container with")
    return any(sign in text for sign in signs)
