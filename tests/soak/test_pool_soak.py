"""1,000 claims and returns on the real engine, with faults. SOAK_CLAIMS, SOAK_SEED, SOAK_RESTART.

With SOAK_RESTART=1, SOAK_RESTART_COMMAND (such as `systemctl restart docker`) is a fault as well.
"""

from __future__ import annotations

import gc
import os
import random
import shlex
import subprocess
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from orchestrator.containers.docker.engine import CALL_THREADS
from orchestrator.containers.docker.runtime import DockerRuntime
from tests.engine.spares.pool_storm import Storm
from tests.engine.spares.test_pool import docker_stage

CLAIMS = int(os.environ.get("SOAK_CLAIMS", "1000"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
RESTART = os.environ.get("SOAK_RESTART") == "1"
RESTART_COMMAND = shlex.split(os.environ.get("SOAK_RESTART_COMMAND", "systemctl restart docker"))

STORM_SECONDS = 3600
RESTART_SECONDS = 120

pytestmark = [
    pytest.mark.timeout(0),
    # docker-py leaves a socket to the collector when no engine answers.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


async def restart() -> None:
    run = partial(subprocess.run, RESTART_COMMAND, check=True, timeout=RESTART_SECONDS)
    await anyio.to_thread.run_sync(run)


def _descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_thousand_claims_with_faults_leave_no_leak_and_reuse_nothing(
    runtime: DockerRuntime, image: str
) -> None:
    descriptors = _descriptors()
    storm = Storm(docker_stage(runtime, image), SEED, restart if RESTART else None)
    try:
        with anyio.fail_after(STORM_SECONDS):
            began = anyio.current_time()
            state = await storm.blow(CLAIMS)
    except BaseException as exc:
        exc.add_note(f"to see it again: SOAK_SEED={SEED}")
        raise
    seconds = anyio.current_time() - began
    print(f"\n{CLAIMS} claims in {seconds:.0f} s: {state.model_dump()}")
    print(f"{storm.refused} refused, {storm.lost} lost to a kill while in use")
    assert _descriptors() <= descriptors + CALL_THREADS  # connections to the engine, kept
