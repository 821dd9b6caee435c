"""Attacks on processes and time; those on limits alone are in test_limits."""

from __future__ import annotations

import json

import anyio
import pytest

from orchestrator.domain.task import Task
from tests.attacks.canary import Canary
from tests.attacks.mark import attack
from tests.attacks.rig import PATIENCE, TOOLS, Rig, staged
from tests.engine.harness import Harness, bash

CLI = "for p in /proc/[0-9]*; do grep -qa 'stream-jso[n]' $p/cmdline 2>/dev/null && "
"""Then what is done to it, by its $p; then "; done"."""


@attack(
    "processes and resources",
    "leave 2,000 orphans that no process waits for",
    "PID 1 reaps them as they die: no zombie stays, and the container answers",
)
async def test_orphans_are_reaped(closed: Rig) -> None:
    code = """
for n in range(2000):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
def zombies():
    found = 0
    for name in os.listdir("/proc"):
        try: found += name.isdigit() and open(f"/proc/{name}/stat").read().split(")")[1][1] == "Z"
        except OSError: pass
    return found
while left := zombies(): os.sched_yield()
say(left)
"""
    assert await closed.python(code) == 0
    assert await closed.answers()


@attack(
    "processes and resources",
    "kill every process one can (kill -9 -1)",
    "the CLI dies with the rest and the run ends as cli_crashed; PID 1 is not one's to kill",
)
async def test_killing_everything_ends_ones_own_run(harness: Harness, closed: Rig) -> None:
    kill = "python3 -c 'import os; os.kill(-1, 9)'"
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(kill), {"text": "alive"}])
    assert (result.status, result.reason) == ("failed", "cli_crashed"), result
    assert await closed.answers()


@attack(
    "processes and resources",
    "stop the CLI and sleep past the deadline",
    "timed_out: the container is ended from outside, whatever still sleeps in it",
)
@pytest.mark.waits
async def test_sleeping_for_ever_ends_at_the_deadline(harness: Harness, closed: Rig) -> None:
    sleep = f"setsid sleep 1000 & {CLI} kill -STOP ${{p#/proc/}}; done; sleep 1000"
    task = Task(agent="worker", prompt="x", timeout_seconds=20)
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(sleep), {"text": "late"}], task)
    assert (result.status, result.reason) == ("timed_out", "deadline"), result
    assert await closed.answers()


@attack(
    "processes and resources",
    "flood the record with made-up events, written to the CLI's output",
    "so many a second are kept and the rest counted; the run goes on to its answer",
)
async def test_a_flood_of_events_is_counted_and_not_kept(harness: Harness) -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "me again"}]}
    line = json.dumps({"type": "assistant", "message": said})
    flood = f"{CLI} yes '{line}' | head -n 5000 > $p/fd/1; done; echo done"
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(flood), {"text": "{last_tool_result}"}])
    assert (result.status, result.result) == ("completed", "done")
    assert len(harness.events) < 1000
    assert any("came too fast" in event.text for event in harness.events)


@attack(
    "processes and resources",
    "write without end to the CLI's output",
    "the run ends as output_limit; what is kept of it is bounded",
)
async def test_output_without_end_is_cut(harness: Harness, closed: Rig) -> None:
    flood = f"{CLI} yes junk > $p/fd/1; done; tail -f /dev/null"
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(flood)], resources={"output_mb": 1})
    assert (result.status, result.reason) == ("failed", "output_limit"), result
    assert len(repr(harness.events)) < 2 * 1024 * 1024
    assert await closed.answers()


COUNTED = """
import fcntl
def until_refused(what, most):
    try:
        for n in range(most): what()
    except OSError as exc: return errno.errorcode[exc.errno]
    return "WORKED"
held = []
def instance():
    fd = libc.inotify_init1(0)
    if fd < 0: raise OSError(ctypes.get_errno(), "inotify")
    held.append(fd)
def pipe():
    held.extend(os.pipe()); fcntl.fcntl(held[-1], 1031, 1 << 20)
a, b = socket.socketpair(); a.setblocking(False); root = os.open("/", 0)
def in_flight():
    socket.send_fds(a, [b"x"], [root] * 200)
say([until_refused(instance, 5000), until_refused(pipe, 900), until_refused(in_flight, 5000)])
sys.stdout.flush(); sys.stdin.read()
"""


@attack(
    "processes and resources",
    "use up what the kernel counts by user id: inotify, pipes, descriptors in flight",
    "not defended between agents of one uid: they run out together, with errors. Wires, wardens "
    "and gateways go on, and a run of another agent completes meanwhile",
)
async def test_what_is_counted_by_user_runs_out_and_others_go_on(
    harness: Harness, canary: Canary, closed: Rig
) -> None:
    async with staged(harness, canary) as rig:
        launch = rig.launch("python3", "-c", TOOLS + COUNTED)
        with anyio.fail_after(PATIENCE):
            async with rig.container.spawn(launch) as attacker:
                said = json.loads(await attacker.stdout.read())
                assert "WORKED" not in said, said
                assert await closed.answers()
                result = await harness.run([bash("echo fine"), {"text": "{last_tool_result}"}])
    assert (result.status, result.result) == ("completed", "fine"), result


@attack(
    "processes and resources",
    "take all processors with more spinning threads than there are",
    "the limit on processors holds; the neighbour and the warden answer meanwhile",
)
async def test_spinning_hurts_no_other_run(harness: Harness, canary: Canary, closed: Rig) -> None:
    code = "import os\nfor _ in range(6): os.fork()\nprint('x', flush=True)\nwhile True: pass"
    async with staged(harness, canary, resources={"cpus": 0.5}) as rig:
        with anyio.fail_after(PATIENCE):
            async with rig.container.spawn(rig.launch("python3", "-c", code)) as spinning:
                await spinning.stdout.read()
                assert await closed.answers()
                assert await rig.answers()
