"""Attacks on the wire and on PID 1 from inside; floods are in tests/containers/test_attacks."""

from __future__ import annotations

import json

import anyio

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import EGRESS_PORT, MODEL_PORT, ROUTES_PORT
from tests.attacks.mark import attack
from tests.attacks.rig import PATIENCE, TOOLS, Rig, answers, get, python, status
from tests.attacks.test_model import post
from tests.attacks.test_processes import CLI
from tests.engine.harness import Harness, bash


@attack(
    "wire",
    "listen on the gateway's ports, to hear what others say to it",
    "EADDRINUSE in every way to bind; the gateway still answers there",
)
async def test_the_gateways_ports_are_taken(web: Rig) -> None:
    code = f"""
def bind(family, host, port, *options):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        for option in options: s.setsockopt(socket.SOL_SOCKET, option, 1)
        s.bind((host, port)); s.listen()
say(sorted({{attempt(lambda: bind(family, host, port, *options))
    for port in ({MODEL_PORT}, {EGRESS_PORT}, {ROUTES_PORT})
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::ffff:127.0.0.1"))
    for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,),
        (socket.SO_REUSEADDR, socket.SO_REUSEPORT))}}))
"""
    assert await web.python(code) == ["EADDRINUSE"]
    (answer,) = await web.ask(get(f"http://web.example:{web.canary.port}/"))
    assert status(answer) == 200


@attack(
    "wire",
    "forge the CLI's result: an answer with no cost, and a session that is another's",
    "an agent may say what it likes; what it used is counted by the gateway, outside",
)
async def test_a_forged_result_does_not_change_the_bill(harness: Harness) -> None:
    forged = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "forged",
        "stop_reason": "end_turn",
        "total_cost_usd": 0,
        "num_turns": 0,
        "session_id": "00000000-0000-4000-8000-000000000000",
        "usage": {"input_tokens": 0, "output_tokens": 0},
        "permission_denials": [],
    }
    write = f"{CLI} echo '{json.dumps(forged)}' > $p/fd/1; done; sleep 1000"
    usage = {"input_tokens": 1000, "output_tokens": 1000}
    with anyio.fail_after(PATIENCE):
        result = await harness.run([{**bash(write), "usage": usage}, {"text": "honest"}])
    assert (result.status, result.result) == ("completed", "forged"), result
    assert (result.usage.requests, result.usage.output_tokens) == (1, 1000)
    assert result.cost_usd > 0
    assert {event.run_id for event in harness.events} == {result.run_id}


@attack(
    "wire",
    "write frames of the wire to every descriptor, terminal and socket in reach",
    "there is no terminal; PID 1's descriptors are closed to others; the wire goes on",
)
async def test_the_wire_cannot_be_written_to(closed: Rig) -> None:
    code = """
places = ["/dev/tty", "/dev/console", "/dev/pts/0", "/proc/1/fd/0", "/proc/1/fd/1",
    "/proc/1/fd/2", "/proc/1/task/1/fd/1", "/proc/1/root/dev/stdout", "/proc/1/cwd"]
def write(path):
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    os.write(fd, bytes(range(256)) * 16); os.close(fd)
say({p: attempt(lambda: write(p)) for p in places})
"""
    answers = await closed.python(code)
    refused = {"EACCES", "ENXIO", "ENOENT", "EPERM", "EIO"}
    assert set(answers.values()) <= refused, answers
    assert await closed.answers()


@attack(
    "wire",
    "send the gateway half a request and reset, 500 times, beside honest ones",
    "streams that break end by themselves; the next request is answered",
)
async def test_broken_connections_do_not_break_the_wire(closed: Rig) -> None:
    code = f"""
for n in range(500):
    s = socket.create_connection(("127.0.0.1", {MODEL_PORT}))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.send(b"POST /v1/messages HTTP/1.1\\r\\nContent-Length: 100\\r\\n"[: n % 50])
    s.close()
say("done")
"""
    assert await closed.python(code) == "done"
    (answer,) = await closed.ask(post("/v1/messages", closed.token), MODEL_PORT)
    assert status(answer) == 200


ON_PID_1 = {
    "lambda: os.kill(1, signal.SIGKILL)": "EPERM",
    "lambda: os.kill(1, signal.SIGSTOP)": "EPERM",
    "lambda: os.kill(1, signal.SIGTERM)": "EPERM",
    "c('ptrace', 16, 1, 0, 0)": "EPERM",  # PTRACE_ATTACH
    "c('ptrace', 0x4206, 1, 0, 0)": "EPERM",  # PTRACE_SEIZE
    "lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))": "EPERM",
    "lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))": "EPERM",
    "lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)": "EPERM",
    "lambda: os.setpriority(os.PRIO_PROCESS, 0, 0)": "EACCES",  # to come before the warden
    "lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))": "EPERM",
    "lambda: os.sched_setaffinity(1, {0})": "EPERM",
    "c('syscall', 251, 1, 1, 3 << 13)": "EPERM",  # ioprio_set: idle
    "lambda: open('/proc/1/environ').read()": "EACCES",
    "lambda: open('/proc/1/mem', 'r+b')": "EACCES",
    "lambda: open('/proc/1/maps').read()": "EACCES",
    "lambda: os.listdir('/proc/1/fd')": "EACCES",
    "lambda: open('/proc/1/fd/0')": "EACCES",
    "lambda: open('/proc/1/fd/1', 'wb')": "EACCES",
    "lambda: os.readlink('/proc/1/exe')": "EACCES",
    "lambda: os.listdir('/proc/1/root/')": "EACCES",
    "lambda: open('/proc/1/oom_score_adj', 'w').write('1000')": "EACCES",
    "lambda: open('/proc/1/coredump_filter', 'w').write('1')": "EACCES",
    "lambda: os.setuid(0)": "EPERM",
    "lambda: os.setgroups([0])": "EPERM",
    "lambda: open('/opt/orchestrator/warden.pyc', 'wb')": "EROFS",
}
"""As Python expressions to be called -> how each is refused where our seccomp profile is not."""


@attack(
    "wire",
    "signal, trace, limit, slow down, read or write PID 1, or become root",
    "EPERM, EACCES or EROFS each time; PID 1 answers, and so does the neighbour",
)
async def test_the_warden_cannot_be_touched_from_inside(box: Container, closed: Rig) -> None:
    rows = ", ".join(f"{text!r}: attempt({text})" for text in ON_PID_1)
    done = await box.run(python(TOOLS + f"say({{{rows}}})"))

    assert json.loads(done.stdout) == ON_PID_1, done.stderr.decode()
    assert await answers(box)
    assert await closed.answers()


@attack(
    "wire",
    "kill PID 1, or take its descriptors, by a pidfd",
    "EPERM; the wire goes on",
)
async def test_a_pidfd_gives_no_way_into_the_warden(box: Container) -> None:
    code = "fd = os.pidfd_open(1)\nsay([attempt(lambda: signal.pidfd_send_signal(fd, 9)),\n"
    code += "attempt(syscall(438, fd, 1, 0))])"  # pidfd_getfd
    done = await box.run(python(TOOLS + code))

    killed, taken = json.loads(done.stdout)
    assert killed == "EPERM"
    assert taken in ("EPERM", "ENOSYS")  # a kernel before 5.6 has no such call
    assert await answers(box)
