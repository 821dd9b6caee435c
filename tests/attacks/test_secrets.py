"""Attacks on secrets: they are looked for in every place that an agent can read."""

from __future__ import annotations

import json

from orchestrator.containers.docker.runtime import PODMAN_OPENS, DockerRuntime
from orchestrator.domain.container import EGRESS_PORT, MODEL_PORT, ROUTES_PORT
from tests.attacks.mark import attack
from tests.attacks.rig import TOOLS, Rig, connect, get
from tests.attacks.test_model import post
from tests.engine.harness import Harness, bash
from tests.engine.test_secrets import search, shapes
from tests.gateway.secrets.git_server import HttpsServer


@attack(
    "secret hunting",
    "search all files, environments and command lines in the container",
    "a canary that was left there is found, the secret in none of its shapes",
)
async def test_the_secret_is_in_no_file_and_no_environment(web: Rig, hub_secret: str) -> None:
    canary = "canary-to-be-found"
    command = f"printf %s {canary} > /tmp/left; " + search(*shapes(hub_secret), canary)
    *found, code, uid = (await web.sh(command)).splitlines()
    assert code in ("code 0", "code 2"), "124 is a search that was not finished"
    assert uid == "1000"
    files = [line for line in found if not line.startswith("/proc/")]
    assert files == ["/tmp/left"], found
    await web.sh("rm /tmp/left")


MEMORY = """
from array import array
wanted = [w[::-1].encode() for w in json.loads(sys.stdin.read())]
found, read, step = {}, 0, 1 << 22
def chunks(pid):
    # What was never touched holds nothing, and takes no room: the CLI has gigabytes of that.
    pages, memory = open(f"/proc/{pid}/pagemap", "rb", 0), open(f"/proc/{pid}/mem", "rb", 0)
    for line in open(f"/proc/{pid}/maps").read().splitlines():
        start, end = (int(text, 16) for text in line.split()[0].split("-"))
        for at in range(start, end if "w" in line.split()[1] else start, step):
            pages.seek(at // 4096 * 8)
            there = array("Q", pages.read(min(step, end - at) // 4096 * 8))
            if not there or not max(there) >> 62: continue
            for piece in range(0, len(there), 16):
                if not max(there[piece : piece + 16]) >> 62: continue
                try:
                    memory.seek(at + piece * 4096)
                    yield memory.read(min(16 * 4096 + 256, end - at - piece * 4096))
                except OSError:
                    pass
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
    try:
        for data in chunks(pid) if pid != os.getpid() else ():
            read += len(data)
            for number, text in enumerate(wanted):
                if text in data: found.setdefault(str(number), []).append(pid)
    except OSError as exc:
        found.setdefault("refused", []).append(pid)
say([found, read])
"""


@attack(
    "secret hunting",
    "read the memory of all processes, the CLI's and the warden's",
    "PID 1 is closed; the CLI's holds the run's token, which is worth nothing, and no secret",
)
async def test_the_secret_is_in_no_process(web: Rig, hub_secret: str) -> None:
    wanted = json.dumps([text[::-1] for text in (web.token, *shapes(hub_secret))])
    done = await web.run("python3", "-c", TOOLS + MEMORY, stdin=wanted.encode())
    assert done.code == 0, done.stderr.decode()
    found, read = json.loads(done.stdout)
    assert 1 in found.pop("refused")
    assert set(found) == {"0"}, found
    assert read > 1024 * 1024


@attack(
    "secret hunting",
    "provoke errors of the gateway and read what they say",
    "neither the secret nor the run's token is in any answer",
)
async def test_no_error_holds_a_secret(web: Rig, hub: HttpsServer, hub_secret: str) -> None:
    bad = [b"\0\1\2\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"X" * 70_000]
    head = f"GET /{hub.host}/acme".encode()
    routes = [
        head + rest
        for rest in (b" HTTP/1.1\r\nHost: x\r\n\r\n", b"/widget/x HTTP/1.1\r\nA\r\n\r\n")
    ]
    answers = await web.ask([*bad, *routes], ROUTES_PORT)
    answers += await web.ask([*bad, get("http://evil.example/"), connect("x")], EGRESS_PORT)
    answers += await web.ask([*bad, post("/v1/messages", "x")], MODEL_PORT)
    said = b"\n".join(answers)
    assert b"agent.md does not allow" in said
    assert web.token.encode() not in said
    assert [shape for shape in shapes(hub_secret) if shape.encode() in said] == []


@attack(
    "secret hunting",
    "ask git for the credential it uses: config, helpers, traces",
    "git has none: it sends a plain request to the gateway, which adds the secret outside",
)
async def test_git_has_no_credential_to_give(web: Rig, hub: HttpsServer, hub_secret: str) -> None:
    said = await web.sh(
        "git config --list --show-origin; "
        f"printf 'protocol=https\\nhost={hub.host}\\n\\n' | git credential fill; "
        "GIT_TRACE=2 GIT_TRACE_CURL=2 GIT_CURL_VERBOSE=1 "
        f"git ls-remote https://{hub.host}/acme/widget/x.git 2>&1; env"
    )
    assert "insteadof" in said.lower()
    assert "/acme/widget/x.git/info/refs" in said
    assert "uthorization: " not in said
    assert [shape for shape in shapes(hub_secret) if shape in said] == []
    assert hub.requests[-1].headers["authorization"] == f"Bearer {hub_secret}"


@attack(
    "secret hunting",
    "look for the engine's socket, mounted secrets, and where the orchestrator keeps its state",
    "no socket, no /run/secrets, no path of the host but what the kernel says of its own mounts",
)
async def test_nothing_of_the_host_is_mounted(web: Rig, engine: DockerRuntime) -> None:
    said = await web.sh(
        "find / -xdev -type s 2>/dev/null; ls -d /run/secrets /var/run/docker.sock /run/docker.sock"
        " /host /root/.docker /home/agent/.docker 2>/dev/null; true"
    )
    mounts = (await web.sh("cut -d' ' -f4,5 /proc/self/mountinfo")).splitlines()
    assert said == ""
    plain = ("/proc", "/sys", "/dev", "/tmp", "/home/agent", "/etc/")
    others = [line for line in mounts if not line.split()[1].startswith(plain)]
    if engine.facts.is_podman:  # by which programs know it, and empty; and what we close there
        assert await web.sh("cat /run/.containerenv") == ""
        others = [line for line in others if not line.endswith(" /run/.containerenv")]
        others = [line for line in others if line not in [f"/ {at}" for at in PODMAN_OPENS]]
    assert others == ["/ /"], mounts


@attack(
    "secret hunting",
    "print the run's token and environment, to have them kept in the record",
    "events and result hold [secret], also of the token in base64",
)
async def test_the_record_holds_no_token(harness: Harness) -> None:
    command = (
        "echo got $ANTHROPIC_API_KEY; printf %s $ANTHROPIC_API_KEY | base64 -w0; "
        "printf %s $ANTHROPIC_API_KEY > /tmp/t; sha256sum < /tmp/t"
    )
    result = await harness.run([bash(command), {"text": "{last_tool_result}"}])
    assert result.status == "completed", result
    said = repr((result, harness.events))
    assert "got [secret]" in said
    assert "run-" not in said
    assert "cnVuL" not in said  # "run-" in base64
