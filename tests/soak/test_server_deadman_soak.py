"""An orchestrator whose servers are in the middle of calls, killed (kill -9). SOAK_KILLS."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.labels import STATE
from orchestrator.domain.container import TOOLS_URL
from tests.engine.harness import bash
from tests.engine.servers.stage import LAST, MISCHIEF, SERVER, use
from tests.engine.test_secrets import new_key
from tests.soak.deadman import Engine, Trial, open_engine, summary, watch_it_go
from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, Stage, on_stage

KILLS = int(os.environ.get("SOAK_KILLS", "30"))

GONE_SECONDS = 2.0
"""What we promise: so long after the orchestrator is killed, no container of a server is left."""

SPREAD_SECONDS = 0.5
"""Over so long after the last container runs, kills are spread: in greetings, in calls."""

FLOOD = json.dumps({"jsonrpc": "2.0", "method": "notifications/nothing"})

CALLS: dict[str, tuple[str, str, dict[str, object]]] = {
    "waits": ("run", "slow", {"seconds": 3600}),
    "hangs": ("project", "hang", {}),
    "floods": ("run", "raw", {"lines": [FLOOD] * 2000}),
}
"""By server: who shares it, and what it is asked when the orchestrator is killed."""

pytestmark = pytest.mark.timeout(0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


async def test_a_killed_orchestrator_leaves_no_server_two_seconds_later(
    engine: Engine, tmp_path: Path
) -> None:
    trials: list[Trial] = []
    async with on_stage(tmp_path, engine.image) as stage:
        for name, (share, *_) in CALLS.items():
            home = stage.agents / "servers" / name
            home.mkdir(parents=True)
            (home / "server.py").write_text(MISCHIEF)
            (home / "server.yaml").write_text(json.dumps(SERVER | {"share": share}))
            stage.env["ORCHESTRATOR_SECRET_TOKEN"] = new_key()
            await anyio.run_process([COMMAND, "servers", "pin", name, "--yes"], env=stage.env)
        stage.add_agent(
            "caller",
            bash(f"{' '.join(map(_call, CALLS))} wait"),
            LAST,
            mcp_servers=[use("*", name=name) for name in CALLS],
            permissions={"allow": ["Bash"]},
        )
        assert stage.runtime is not None
        label = f"{STATE}={stage.runtime.owner.state}"
        for number in range(KILLS):
            trial = _killed(engine, stage, label, SPREAD_SECONDS * number / KILLS)
            trials.append(trial)
            load = os.getloadavg()[0]
            print(f"{number + 1}/{KILLS}: gone {trial.seconds:.2f} s, load {load:.1f}", flush=True)
    print(summary(trials))
    late = [trial for trial in trials if trial.left or trial.seconds > GONE_SECONDS]
    assert late == []


def _call(server: str) -> str:
    """A call by curl: the CLI would wait for one before it makes the next."""
    _, tool, arguments = CALLS[server]
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return f"curl -s {TOOLS_URL}/{server} -d {shlex.quote(json.dumps(message))} &"


def _killed(engine: Engine, stage: Stage, label: str, after_seconds: float) -> Trial:
    """Run the agent until all its servers are there, kill the orchestrator, watch them go."""
    argv, count = [COMMAND, "run", "caller", "Go."], len(CALLS) + 1  # and the agent's own
    null = subprocess.DEVNULL
    with subprocess.Popen(argv, env=stage.env, stdout=null, stderr=null, text=True) as process:
        try:
            until = time.monotonic() + PATIENCE
            while _running(engine, label) < count:
                assert process.poll() is None, "the run has ended"
                assert time.monotonic() < until, "the servers do not start"
                time.sleep(0.02)
            time.sleep(after_seconds)
            return watch_it_go(engine, process, "killed", label, "orchestrator.server", count)
        finally:
            process.kill()


def _running(engine: Engine, label: str) -> int:
    return sum(row["State"] == "running" for row in engine.containers(label).values())
