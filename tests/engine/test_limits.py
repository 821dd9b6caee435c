"""Limits that are hit: each has a name, whether the CLI lives to tell of it or not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from orchestrator.containers import exhaustion
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.exhaustion import DiskWatch, Hit, Strain, ask, hits
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import MIB, WORKSPACE, ContainerSpec, Launch, Limits, Volume
from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.engine.flood import Flood
from orchestrator.engine.record import Record
from orchestrator.store.runs import Store
from tests.engine.harness import Harness, Steps, bash

PATIENCE = 240

CLI = "for p in /proc/[0-9]*; do grep -qa 'stream-jso[n]' $p/cmdline 2>/dev/null && "
"""Then what is done to it, by its $p; then "; done"."""

HOLD = "tail -f /dev/null"

TWO_TO_THREE = {"old_string": "two", "new_string": "three"}


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


def warnings(harness: Harness) -> list[str]:
    return [event.text for event in harness.events if event.kind == "warning"]


# What the CLI writes


async def test_a_cli_that_writes_too_much_is_output_limit(harness: Harness) -> None:
    flood = f"{CLI} yes junk > $p/fd/1; done; {HOLD}"
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(flood)], resources={"output_mb": 1})

    assert (result.status, result.reason) == ("failed", "output_limit"), result
    assert "resources.output_mb" in result.message


async def test_of_a_flood_of_events_a_few_are_kept_and_the_rest_counted(harness: Harness) -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "me again"}]}
    line = json.dumps({"type": "assistant", "message": said})
    flood = f"{CLI} yes '{line}' | head -n 5000 > $p/fd/1; done; echo done"
    with anyio.fail_after(PATIENCE):
        result = await harness.run(
            [bash(flood), {"text": "still here"}], resources={"events_per_second": 20}
        )

    assert (result.status, result.result) == ("completed", "still here"), result
    dropped = [int(text.split()[0]) for text in warnings(harness) if "came too fast" in text]
    kept = [event for event in harness.events if event.text == "me again"]
    # Seconds are counted by another clock than the one that events are dated by.
    assert max(Counter(int(event.at) for event in kept).values()) <= 2 * 20
    assert dropped
    assert 4000 < sum(dropped) + len(kept) <= 5010
    assert "model_request" in harness.kinds()


def test_chatter_does_not_hide_what_the_gateway_saw_or_how_it_ended() -> None:
    now = [7.0]
    flood = Flood(2, lambda: now[0])
    flood.dropped("text")

    assert [flood.keeps("text") for _ in range(4)] == [True, True, False, False]
    assert [flood.keeps("egress_denied") for _ in range(3)] == [True, True, False]
    assert flood.keeps("ended")
    assert flood.dropped("text") == 0  # the second is not over
    now[0] = 8.1
    assert (flood.dropped("text"), flood.dropped("text")) == (3, 0)
    assert [flood.keeps("text") for _ in range(3)] == [True, True, False]
    assert flood.dropped("ended") == 1


def test_connections_do_not_hide_what_the_model_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood = Flood(2)
    assert [flood.keeps("egress_denied") for _ in range(3)] == [True, True, False]
    assert flood.keeps("model_request")
    monkeypatch.setattr("orchestrator.engine.record.MAX_EVENTS", 5)
    told: list[Event] = []
    with closing(Store(tmp_path / "runs.sqlite", "o1")) as store:
        record = Record("r1", store, [told.append])
        for _ in range(10):
            record.note("egress", "GET a.example:443")
        record.note("model_request", "200 m")
    kinds = Counter(event.kind for event in told)
    assert kinds == {"egress": 5, "warning": 1, "model_request": 1}


# Processes, memory, scratch space


def forks(count: int) -> str:
    """A command that leaves so many processes behind, or as many as there may be."""
    code = (
        "import os, time\\n"
        f"for _ in range({count}):\\n"
        "    try:\\n"
        "        if os.fork() == 0: time.sleep(500)\\n"
        "    except OSError: pass\\n"
    )
    return f"""printf "{code}" > /tmp/forks.py; python3 /tmp/forks.py > /dev/null 2>&1"""


async def test_a_cli_that_dies_where_processes_ran_out_is_pids_exhausted(
    harness: Harness,
) -> None:
    # No process can be started once they have run out: bash knows by then whom to kill.
    dies = f"{CLI} cli=${{p#/proc/}}; done; {forks(200)}; kill -9 $cli; {HOLD}"
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(dies)], resources={"pids": 96})

    assert (result.status, result.reason) == ("failed", "pids_exhausted"), result
    assert "raise resources.pids" in result.message


async def test_what_ran_out_is_told_beside_the_answer(harness: Harness) -> None:
    """Memory of a child, scratch space, and processes: the last, since then none can be started."""
    hog = "python3 -c 'x = [bytearray(1_000_000) for _ in range(4000)]'"
    write, run = forks(200).split("; ")
    steps: Steps = [
        bash(f"{hog}; echo died"),
        bash(f"{write}; head -c 100M /dev/zero > /tmp/fill; {run}; echo done"),
        {"text": "as far as I could"},
    ]
    small = {"memory_mb": 640, "scratch_mb": 32, "pids": 96}
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, resources=small)

    assert (result.status, result.result) == ("completed", "as far as I could"), result
    told = {text.partition(":")[0]: text for text in warnings(harness)}
    assert "of 640 MiB" in told["oom_killed"]
    assert "raise resources.memory_mb" in told["oom_killed"]
    full = "no room is left in /tmp (32 MiB); raise resources.scratch_mb"
    assert full in told["disk_full"]
    assert "the limit of 96 processes and threads was reached" in told["pids_exhausted"]


async def test_a_cli_that_dies_where_the_disk_is_full_is_disk_full(harness: Harness) -> None:
    dies = (
        "head -c 100M /dev/zero > ~/fill; head -c 100M /dev/zero > /tmp/fill; "
        f"{CLI} kill -9 ${{p#/proc/}}; done; {HOLD}"
    )
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(dies)], resources={"scratch_mb": 32})

    assert (result.status, result.reason) == ("failed", "disk_full"), result
    assert "/tmp (32 MiB), /home/agent (32 MiB)" in result.message


async def test_a_container_that_wants_for_nothing_says_so(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            assert await ask(container) == Strain()
        assert await ask(container) == Strain()  # nor does one that has ended say anything


async def test_where_no_process_can_be_started_that_is_the_answer(
    runtime: DockerRuntime, image: str
) -> None:
    spec = ContainerSpec(image=image, limits=Limits(pids=16))
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            code = "import os, signal\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"
            async with container.spawn(Launch(argv=("python3", "-c", code))):
                while not (strain := await ask(container)).no_process:
                    pass  # until the bomb has gone off
                await container.kill_all()

    (hit,) = hits(strain, spec)
    assert hit.reason == "pids_exhausted"
    assert "not one more can be started" in hit.message


def test_the_gravest_limit_comes_first_and_old_news_is_left_out() -> None:
    spec = ContainerSpec(image="x")
    before = Strain(oom_kills=1, pids_refused=4)
    now = Strain(oom_kills=3, pids_refused=4, full=("/workspace",))

    assert [hit.reason for hit in hits(now, spec)] == ["oom_killed", "pids_exhausted", "disk_full"]
    assert hits(now.since(before), spec) == (
        Hit(
            reason="oom_killed",
            message="memory ran out: of 2048 MiB, which scratch space counts against, none was "
            "left 2 times, and a process was killed; raise resources.memory_mb",
        ),
        Hit(
            reason="disk_full",
            message="no room is left in /workspace; make room on the engine's disk",
        ),
    )
    assert hits(Strain(), spec) == ()


# A copied workspace


@pytest.fixture
def copied(image: str) -> ContainerSpec:
    return ContainerSpec(image=image, mounts=(Volume(target=WORKSPACE),))


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exhaustion, "LOOK_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(exhaustion, "LOOK_SHARE", 1.0)


async def watched(container: Container, script: str) -> Hit:
    """What the watcher says while the agent runs a script in its workspace."""
    launch = Launch(argv=("bash", "-c", script), cwd=WORKSPACE)
    async with container.spawn(launch):
        return await DiskWatch(container, 16 * MIB).until_full()


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    "script",
    [
        f"head -c 20M /dev/zero > a; {HOLD}",
        f"mkdir -p a/b; for n in 1 2 3 4 5; do head -c 4M /dev/zero > a/b/$n; done; {HOLD}",
        f"exec 9> a; rm a; head -c 20M /dev/zero >&9; {HOLD}",  # removed, and still open
        f"mkdir a; head -c 40M /dev/zero > a/b; chmod 0 a; {HOLD}",  # not to be looked into
    ],
)
async def test_a_workspace_that_grows_too_large_is_disk_full(
    runtime: DockerRuntime, copied: ContainerSpec, script: str
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime.open(copied) as container:
            hit = await watched(container, script)

    assert hit.reason == "disk_full"
    assert "of at most 16 MiB; raise resources.disk_mb" in hit.message


async def test_two_names_count_once_and_other_file_systems_not_at_all(
    runtime: DockerRuntime, copied: ContainerSpec
) -> None:
    script = "head -c 10M /dev/zero > a; ln a b; ln -s /usr c; head -c 20M /dev/zero > /tmp/d"
    with anyio.fail_after(PATIENCE):
        async with runtime.open(copied) as container:
            await container.run(Launch(argv=("bash", "-c", script), cwd=WORKSPACE))
            use = await exhaustion._disk_use(container, 16 * MIB, (WORKSPACE,))

    assert use is not None
    assert 10 * MIB <= use.used < 11 * MIB
    assert use.hidden == 0


@pytest.mark.usefixtures("_quick")
async def test_what_cannot_be_counted_is_not_let_grow(
    runtime: DockerRuntime, copied: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exhaustion, "COUNT", "import os; os.kill(os.getpid(), 9)")
    with anyio.fail_after(PATIENCE):
        async with runtime.open(copied) as container:
            hit = await DiskWatch(container, 16 * MIB).until_full()

    assert hit.reason == "disk_full"
    assert "could not be counted 5 times in a row" in hit.message


@pytest.mark.usefixtures("_quick")
async def test_a_run_whose_copied_workspace_grows_too_large_is_disk_full(
    harness: Harness, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "note").write_text("remember the milk")
    task = Task(agent="worker", prompt="Grow.", workspace=project)
    steps: Steps = [bash(f"head -c 40M /dev/zero > fill; {HOLD}")]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, task, workspace="copy", resources={"disk_mb": 16})

    assert (result.status, result.reason) == ("failed", "disk_full"), result
    assert "of at most 16 MiB; raise resources.disk_mb" in result.message


# System calls


PTRACE = "python3 -c 'import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))'"
"""What engines allow, and we do not."""


async def test_a_run_has_our_system_calls_unless_agent_md_leaves_them_to_the_engine(
    harness: Harness,
) -> None:
    steps: Steps = [
        bash(f"{PTRACE}; grep Seccomp: /proc/self/status"),
        {"text": "{last_tool_result}"},
    ]
    with anyio.fail_after(PATIENCE):
        strict = await harness.run(steps)
        loose = await harness.run(steps, seccomp="engine")

    assert isinstance(strict.result, str)
    assert isinstance(loose.result, str)
    assert strict.result.split() == ["-1", "Seccomp:", "2"]
    assert loose.result.split() == ["0", "Seccomp:", "2"]


async def test_the_cli_and_its_tools_work_with_our_system_calls(
    harness: Harness, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "note").write_text("remember the milk")
    threads = (
        "python3 -c 'import concurrent.futures as f; "
        "print(sum(f.ThreadPoolExecutor(8).map(abs, range(100))))'"
    )
    git = "git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m x"
    steps: Steps = [
        {"tool": "Write", "input": {"file_path": "/workspace/a.txt", "content": "one two"}},
        {"tool": "Edit", "input": {"file_path": "/workspace/a.txt", **TWO_TO_THREE}},
        {"tool": "Read", "input": {"file_path": "/workspace/a.txt"}},
        {"tool": "Grep", "input": {"pattern": "milk", "path": "/workspace"}},
        {"tool": "Glob", "input": {"pattern": "*.txt", "path": "/workspace"}},
        bash(f"cat a.txt; {threads}; ({git} && git log --oneline | wc -l); rg -c milk; jq -n 1"),
        {"text": "{last_tool_result}"},
    ]
    task = Task(agent="worker", prompt="Work.", workspace=project)
    tools = ["Bash", "Write", "Edit", "Read", "Grep", "Glob"]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, task, workspace="copy", permissions={"allow": tools})

    assert (result.status, result.denied_tools) == ("completed", ()), result
    assert isinstance(result.result, str)
    assert result.result.split() == ["one", "three4950", "1", "note:1", "1"]
    failed = [e for e in harness.events if e.kind == "tool_result" and e.data["is_error"]]
    assert failed == []
