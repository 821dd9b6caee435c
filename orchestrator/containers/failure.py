"""Whose failure was it? Pure: what the engine and the wire said -> an error, or a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable

from orchestrator.domain.container import Ending, Failure
from orchestrator.errors import (
    EngineConflict,
    EngineRefused,
    ImageMissing,
    MemoryTooSmall,
    MountRefused,
    NameTaken,
    OrchestratorError,
    SpecRefused,
)
from orchestrator.wire import warden as w

KILLED_CODE = 137
"""The exit code of a PID 1 that SIGKILL ended: 128 + 9."""

ENGINE_TEXT_CHARS = 500
"""Of what an engine says; one that does not like a profile may say all of it."""


class ProfileRefused(SpecRefused):
    """The engine took everything but the seccomp profile."""


def engine_error(status: int, message: str) -> OrchestratorError:
    """An HTTP status and text of the engine -> the error of the person who can act on it."""
    whole = " ".join(message.split())
    text = whole[:ENGINE_TEXT_CHARS]
    for pattern, make in _KNOWN:
        if re.search(pattern, whole, re.IGNORECASE):
            return make(text)
    if status == 409:
        return EngineConflict(f"the engine says no, since something is in the way: {text}")
    return EngineRefused(f"the engine refused ({status}): {text}")


def start_error(image: str, memory_bytes: int, ending: Ending) -> OrchestratorError:
    """A container that ended before its warden said hello -> the error that explains it."""
    if ending.out_of_memory or ending.exit_code == KILLED_CODE:
        return MemoryTooSmall(
            f"a container of {image} was killed before it was ready: a memory limit of "
            f"{memory_bytes // 2**20} MiB is too small for it; raise the limit"
        )
    if ending.how == "closed":
        return EngineRefused(
            f"a container of {image} was started, but did not answer in time, and was ended; try "
            "again with fewer at once, or build the image on ours if it never answers"
        )
    if ending.how == "malformed":
        return SpecRefused(f"{image} does not work with this orchestrator: {ending.detail}")
    said = f": {ending.last_words.strip().splitlines()[-1]}" if ending.last_words.strip() else ""
    return SpecRefused(
        f"{image} did not start our program, the container's PID 1 (exit code {ending.exit_code})"
        f"{said}; "
        "build agent images on the one that `orchestrator images build` makes"
    )


def classify(ending: Ending) -> Failure | None:
    """A container that ended -> whose failure that was; None when it was asked to."""
    if ending.how == "closed":
        return None
    if ending.how == "malformed":
        return Failure(
            whose="machinery",
            message=f"the container did not keep to the protocol ({ending.detail}) and was ended; "
            "its image may be of another version: `orchestrator images build` makes a new one",
        )
    if ending.how == "silent":
        return Failure(
            whose="engine",
            message="the container stopped answering and was ended; the engine may be overloaded",
        )
    if ending.exit_code == KILLED_CODE and ending.out_of_memory:
        return Failure(
            whose="memory",
            message="the container ran out of memory and was ended by the kernel; raise its limit",
        )
    whose_and_what = _EXIT_CODES.get(ending.exit_code)
    if whose_and_what is None:
        words = f": {ending.last_words.strip()[-300:]}" if ending.last_words.strip() else ""
        return Failure(
            whose="machinery",
            message=f"the container ended by itself with exit code {ending.exit_code}{words}",
        )
    whose, what = whose_and_what
    return Failure.model_validate({"whose": whose, "message": what})


_EXIT_CODES: dict[int | None, tuple[str, str]] = {
    None: ("engine", "the engine went away, and the container with it"),
    w.EXIT_WIRE_CLOSED: ("engine", "the engine closed the connection to the container"),
    w.EXIT_CRASHED: (
        "machinery",
        "our program in the container crashed; this is a bug of the orchestrator",
    ),
    w.EXIT_MALFORMED: (
        "machinery",
        "our program in the container was sent what it cannot read; this is a bug of ours",
    ),
    w.EXIT_LEASE: ("machinery", "the orchestrator was silent for longer than the lease"),
    w.EXIT_LIFETIME: ("agent", "the container reached the end of its lifetime"),
    w.EXIT_STOPPED: ("engine", "the container was stopped from outside"),
    KILLED_CODE: ("engine", "the container was killed from outside"),
}


def _image_missing(text: str) -> OrchestratorError:
    return ImageMissing(f"{text}; build ours with `orchestrator images build`, or pull it")


def _mount_missing(text: str) -> OrchestratorError:
    return MountRefused(f"{text}; the directory must exist on the engine's machine")


def _spec_refused(text: str) -> OrchestratorError:
    return SpecRefused(f"the engine will not make this container: {text}")


def _profile_refused(text: str) -> OrchestratorError:
    return ProfileRefused(f"the engine does not take this seccomp profile: {text}")


def _unknown_runtime(text: str) -> OrchestratorError:
    return SpecRefused(
        f"the engine will not make this container: {text}; `docker info` lists the runtimes it "
        "has. Add this one to the engine's configuration, or take `runtime` out of agent.md"
    )


def _no_warden(text: str) -> OrchestratorError:
    return SpecRefused(
        f"the image cannot run our program, PID 1 of the container: {text}; "
        "build agent images on the one that `orchestrator images build` makes"
    )


def _too_small(text: str) -> OrchestratorError:
    return MemoryTooSmall(f"the memory limit is too small to start anything: {text}; raise it")


def _name_taken(text: str) -> OrchestratorError:
    return NameTaken(f"{text}; another run is using that container, try again when it has ended")


_KNOWN: tuple[tuple[str, Callable[[str], OrchestratorError]], ...] = (
    # The first that matches counts. Above each: the call that Docker 20.10.24 answers so, and its
    # text, as recorded in tests/containers/test_failure.py. Alternatives that are not named were
    # seen from Podman 4.3 and are in no test.
    #
    # On create, "No such image: nope:1".
    (r"no such image|image not known|unable to find image", _image_missing),
    # On create, 'invalid mount config for type "bind": bind source path does not exist: /nope'.
    (r"bind source path does not exist|statfs .*no such file", _mount_missing),
    # On create, 'Conflict. The container name "/x" is already in use by container "ab".'
    (r"name .* is already in use|is already in use by container", _name_taken),
    # On create, "Minimum memory limit allowed is 6MB".
    (r"minimum memory limit|oom-kill|out of memory|memory limit.*too low", _too_small),
    # On start, from runc: 'exec: "python3": executable file not found in $PATH'; of a path,
    # 'exec: "/nope": stat /nope: no such file or directory'.
    (r"executable file not found|exec: .*no such file", _no_warden),
    # On create, "Unknown runtime specified runsc".
    (r"unknown or invalid runtime|unknown runtime|runtime .* not found", _unknown_runtime),
    # On start, "Decoding seccomp profile failed: ...", and from runc "string SCMP_ACT_NONSENSE is
    # not a valid action for seccomp: unknown". Podman 5.4.2 says the latter on attach, which is
    # where it makes the container (tests/containers/docker/test_engine_differences.py).
    (
        r"seccomp (profile|filter|is not|not supp)|init seccomp|seccomp: |seccomp_(load|init|rule)",
        _profile_refused,
    ),
    # On create, each: "invalid mount config for type ...", "Range of CPUs is from 0.01 to 2.00,
    # ...", "invalid reference format: repository name must be lowercase".
    (r"invalid mount config|range of cpus|invalid reference", _spec_refused),
)
