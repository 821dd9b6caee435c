"""Whose failure was it: what engine and wire said -> an error or a verdict, by value."""

from __future__ import annotations

import pytest

from orchestrator.containers.failure import (
    ProfileRefused,
    classify,
    engine_error,
    start_error,
)
from orchestrator.domain.container import Ending
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


@pytest.mark.parametrize(
    ("ending", "whose"),
    [
        (Ending(how="closed"), None),
        (Ending(how="closed", exit_code=0), None),
        (Ending(how="malformed", detail="unknown frame type 71"), "machinery"),
        (Ending(how="silent"), "engine"),
        (Ending(how="eof"), "engine"),
        (Ending(how="eof", exit_code=w.EXIT_WIRE_CLOSED), "engine"),
        (Ending(how="eof", exit_code=w.EXIT_CRASHED), "machinery"),
        (Ending(how="eof", exit_code=w.EXIT_MALFORMED), "machinery"),
        (Ending(how="eof", exit_code=w.EXIT_LEASE), "machinery"),
        (Ending(how="eof", exit_code=w.EXIT_LIFETIME), "agent"),
        (Ending(how="eof", exit_code=w.EXIT_STOPPED), "engine"),
        (Ending(how="eof", exit_code=137), "engine"),
        (Ending(how="eof", exit_code=137, out_of_memory=True), "memory"),
        (Ending(how="eof", exit_code=0, out_of_memory=True), "engine"),
        (Ending(how="eof", exit_code=3), "machinery"),
    ],
)
def test_an_ending_is_somebodys(ending: Ending, whose: str | None) -> None:
    failure = classify(ending)
    assert (failure and failure.whose) == whose


@pytest.mark.parametrize(
    ("status", "message", "error", "says"),
    [
        # Docker 20.10.24
        (404, "No such image: nope:1", ImageMissing, "orchestrator images build"),
        (
            400,
            'invalid mount config for type "bind": bind source path does not exist: /nope',
            MountRefused,
            "must exist on the engine's machine",
        ),
        (
            409,
            'Conflict. The container name "/x" is already in use by container "ab".',
            NameTaken,
            "try again when it has ended",
        ),
        (400, "Minimum memory limit allowed is 6MB", MemoryTooSmall, "raise it"),
        (400, "Unknown runtime specified runsc", SpecRefused, "`docker info` lists the runtimes"),
        (
            400,
            'OCI runtime create failed: exec: "/nope": stat /nope: no such file or directory',
            SpecRefused,
            "build agent images on",
        ),
        (
            500,
            "string SCMP_ACT_NONSENSE is not a valid action for seccomp: unknown",
            ProfileRefused,
            "SCMP_ACT_NONSENSE",
        ),
        (
            400,
            "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
            SpecRefused,
            "will not make this container: Range of CPUs",
        ),
        (
            400,
            "invalid reference format: repository name must be lowercase",
            SpecRefused,
            "will not make this container: invalid reference",
        ),
        (
            400,
            "invalid mount config for type \"bind\": 'x' mount path must be absolute",
            SpecRefused,
            "must be absolute",
        ),
        (
            400,
            'OCI runtime create failed: exec: "python3": executable file not found in $PATH',
            SpecRefused,
            "build agent images on",
        ),
        (500, "Decoding seccomp profile failed: invalid character", ProfileRefused, "seccomp"),
        (404, "No such image: seccomp-profile:1", ImageMissing, "pull it"),
        (500, "something\n  new", EngineRefused, "something new"),
        (409, "something in the way", EngineConflict, "in the way"),
    ],
)
def test_what_the_engine_says_becomes_the_error_of_whoever_can_act(
    status: int, message: str, error: type[OrchestratorError], says: str
) -> None:
    made = engine_error(status, message)
    assert type(made) is error
    assert says in str(made)


@pytest.mark.parametrize(
    ("ending", "error", "says"),
    [
        (Ending(how="eof", exit_code=137), MemoryTooSmall, "memory limit of 8 MiB"),
        (Ending(how="eof", exit_code=1, out_of_memory=True), MemoryTooSmall, "raise the limit"),
        (Ending(how="malformed", detail="it speaks 9"), SpecRefused, "it speaks 9"),
        (Ending(how="closed"), EngineRefused, "did not answer in time, and was ended; try again"),
        (
            Ending(how="eof", exit_code=2, last_words="a\npython3: can't open file\n"),
            SpecRefused,
            "exit code 2): python3: can't open file",
        ),
    ],
)
def test_a_container_that_never_said_hello_is_explained(
    ending: Ending, error: type[OrchestratorError], says: str
) -> None:
    made = start_error("agent:1", 8 * 2**20, ending)
    assert type(made) is error
    assert says in str(made)
