"""Programs as they are, in a container that has nothing but the egress service."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import Network
from orchestrator.domain.container import EGRESS_PORT, EGRESS_URL, ContainerSpec, File, Launch
from orchestrator.gateway.egress.access import EgressAccess, EgressSeen
from orchestrator.gateway.egress.dial import Dialer
from tests.gateway.origin import Names, Origin, certificate, listening

pytestmark = pytest.mark.anyio

PATIENCE = 60
"""For all programs together."""

CA = "/tmp/ca.pem"

VARIABLES = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), EGRESS_URL),
    "SSL_CERT_FILE": CA,
}

FETCH = """
import json, socket, sys, urllib.error, urllib.request

said = []
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            said.append([answer.status, answer.read().decode()])
    except urllib.error.HTTPError as exc:
        said.append([exc.code, exc.read().decode()])
    except OSError as exc:
        said.append([0, str(exc)])
try:
    socket.getaddrinfo("web.example", 80)
    said.append("resolved")
except OSError:
    said.append("no DNS")
print(json.dumps(said))
"""


async def test_programs_inside_reach_what_is_allowed_and_are_told_of_the_rest(
    runtime: Runtime, spec: ContainerSpec, tmp_path: Path
) -> None:
    trusted, context = certificate(tmp_path, "web.example")
    origin, seen = Origin(), list[EgressSeen]()
    async with listening(origin.talk) as plain, listening(origin.talk, context) as secure:
        allowed = (f"web.example:{plain}", f"web.example:{secure}")
        network = Network(mode="allow", allow_private=allowed)
        access = EgressAccess(network, Dialer(Names(web_example="127.0.0.1")), seen.append)
        urls = (
            f"http://web.example:{plain}/",
            f"https://web.example:{secure}/",
            "http://evil.example/",
            "https://evil.example/",
        )
        ca = File(path=CA, content=trusted.read_bytes())
        fetch = Launch(argv=("python3", "-c", FETCH, *urls), env=VARIABLES, files=(ca,))
        with access, anyio.fail_after(PATIENCE):
            async with runtime.open(spec) as container:
                await container.listen(EGRESS_PORT, "egress", access.service)
                fetched = await container.run(fetch)
                curled = [
                    await container.run(
                        Launch(argv=("curl", "-sS", "-i", "--cacert", CA, url), env=VARIABLES)
                    )
                    for url in urls
                ]
    assert fetched.code == 0, fetched.stderr
    first, second, third, fourth, names = json.loads(fetched.stdout)
    assert (first, second) == ([200, "hello"], [200, "hello"])
    assert third[0] == 403
    assert "evil.example:80 blocked: not under network.allow in agent.md" in third[1]
    # All that urllib shows of a tunnel's refusal is the status line.
    assert "403 evil.example:443 blocked: not under" in fourth[1]
    assert names == "no DNS"

    assert [done.code for done in curled] == [0, 0, 0, 56]
    assert all(done.stdout.endswith(b"hello") for done in curled[:2])
    assert b"x-orchestrator-denied: host" in curled[2].stdout
    assert b"x-orchestrator-denied: host" in curled[3].stdout

    assert access.denied_hosts == ("evil.example:80", "evil.example:443")
    assert Counter((one.method, one.allowed, one.status) for one in seen) == {
        ("GET", True, 200): 2,
        ("CONNECT", True, 200): 2,
        ("GET", False, 403): 2,
        ("CONNECT", False, 403): 2,
    }
