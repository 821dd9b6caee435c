"""Real git in a real container uses a token that is never there."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from orchestrator import surroundings
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import HOME, ROUTES_PORT, ROUTES_URL, ContainerSpec, Launch
from orchestrator.gateway.egress.dial import Addresses
from orchestrator.gateway.secrets.routes import RouteAccess, RouteSeen
from orchestrator.wire.host import Completed
from tests.engine.harness import Harness, bash
from tests.engine.test_secrets import search, shapes
from tests.gateway.secrets.git_server import GitServer, git_server

PATIENCE = 120

REPOSITORIES = ("acme/widget.git", "acme/widget.git-twin", "acme/other.git")


@dataclass
class Stage:
    server: GitServer
    container: Container
    env: dict[str, str]
    seen: list[RouteSeen] = field(default_factory=list)

    async def sh(self, script: str) -> Completed:
        env = {**self.env, "HOME": HOME, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        launch = Launch(argv=("sh", "-ec", script), env=env, cwd=HOME)
        return await self.container.run(launch)

    def url(self, repository: str) -> str:
        return f"https://{self.server.https.host}/{repository}"


@asynccontextmanager
async def staged(
    runtime: DockerRuntime, spec: ContainerSpec, folder: Path, **fields: object
) -> AsyncIterator[Stage]:
    """A container whose agent has a token for acme/widget.git."""
    token = f"ghp_{secrets.token_hex(18)}"
    with anyio.fail_after(PATIENCE):
        async with git_server(folder, token, *REPOSITORIES) as server:
            about = {
                "name": "hub-token",
                "hosts": (server.https.host,),
                "methods": ("GET", "POST"),
                "paths": ("/acme/widget.git/**",),
                "scheme": "basic",
            }
            agent = AgentSpec.model_validate(
                {"name": "worker", "description": "Works.", "secrets": [about | fields]}
            )
            seen: list[RouteSeen] = []
            values = {"hub-token": SecretStr(token)}
            dialer = server.https.dialer()
            access = RouteAccess(agent.secrets, values, dialer, seen.append, vet=_anything)
            async with runtime.open(spec) as container:
                await container.listen(ROUTES_PORT, "routes", access.service)
                yield Stage(server, container, surroundings.variables(agent), seen)


def _anything(_host: str, _port: int, _addresses: Addresses) -> None:
    pass


WORK = """
git config --global user.name Worker && git config --global user.email worker@git.test
git clone -q {url} widget && cd widget
cat README; echo
git fetch -q origin
head -c {size} /dev/urandom > large.bin
git add large.bin && git commit -qm second
git push -q origin HEAD:main
git log --format=%s origin/main
"""


async def test_git_clones_fetches_and_pushes_and_the_token_is_nowhere_inside(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    async with staged(runtime, spec, tmp_path) as stage:
        url = stage.url("acme/widget.git")
        worked = await stage.sh(WORK.format(url=url, size=24 * 1024 * 1024))

        assert (worked.code, worked.stderr) == (0, b"")
        assert worked.stdout.split() == [b"widget.git", b"second", b"first"]
        assert stage.server.log("acme/widget.git") == ["second", "first"]
        assert {(seen.secret, seen.allowed, seen.status) for seen in stage.seen} == {
            ("hub-token", True, 200)
        }
        assert max(seen.bytes for seen in stage.seen) > 24 * 1024 * 1024

        # The search works, since it finds what was left for it to find, and nothing else.
        token, canary = stage.server.token, f"canary-{secrets.token_hex(8)}"
        stage.env["CANARY"] = canary
        command = 'printf %s "$CANARY" > canary; set +e; ' + search(*shapes(token), canary)
        *found, code, _uid = (await stage.sh(command)).stdout.decode().splitlines()
        assert code in ("code 0", "code 2"), "124 is a search that was not finished"
        processes = [place for place in found if place.startswith("/proc/")]
        assert [place for place in found if place not in processes] == ["CANARY", f"{HOME}/canary"]
        assert processes
        assert {place.rpartition("/")[2] for place in processes} == {"environ"}, processes
        for said in (worked.stdout, worked.stderr, repr(stage.seen).encode()):
            assert token.encode() not in said


async def test_what_agent_md_does_not_name_never_reaches_the_server(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    refs = "info/refs?service=git-upload-pack"
    async with staged(runtime, spec, tmp_path) as stage:
        at = f"{ROUTES_URL}/{stage.server.https.host}"
        for request in (
            f"{at}/acme/other.git/{refs}",
            f"{at}/acme/widget.git-twin/{refs}",
            f"{at}/acme/widget.git/../other.git/{refs}",
            f"{at}/acme/widget.git/%2e%2e/other.git/{refs}",
            f"{at}/acme/widget.git/%252e%252e/other.git/{refs}",
            f"{at}/acme/widget.git/..%2fother.git/{refs}",
            f"{at}//acme/widget.git/{refs}",
            f"-X PUT {at}/acme/widget.git/{refs}",
            f"-X DELETE {at}/acme/widget.git/{refs}",
            f"-x {ROUTES_URL} http://{stage.server.https.host}/acme/widget.git/{refs}",
            f"-px {ROUTES_URL} https://{stage.server.https.host}/acme/widget.git/{refs}",
        ):
            asked = await stage.sh(
                f"curl -s --path-as-is -o /dev/null -w '%{{http_code}}%{{http_connect}}' {request}"
                " || true"
            )
            assert b"403" in asked.stdout, (request, asked)
        cloned = await stage.sh(f"git clone {stage.url('acme/other.git')} 2>&1 || echo no")

        assert stage.server.reached == []
        assert b"403" in cloned.stdout
        assert b"agent.md does not allow GET of /acme/other.git/info/refs" in cloned.stdout
        assert not any(seen.allowed for seen in stage.seen)


async def test_a_token_to_read_with_cannot_push(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    paths = ("/acme/widget.git/info/refs", "/acme/widget.git/git-upload-pack")
    async with staged(runtime, spec, tmp_path, paths=paths) as stage:
        worked = await stage.sh(WORK.format(url=stage.url("acme/widget.git"), size=10))

        assert worked.code != 0
        assert b"403" in worked.stderr
        assert stage.server.log("acme/widget.git") == ["first"]
        assert not [
            line for line in stage.server.reached if line.startswith("POST /acme/widget.git/git-r")
        ]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY"])
async def test_git_goes_the_same_way_where_there_is_a_proxy_as_well(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path, name: str
) -> None:
    async with staged(runtime, spec, tmp_path) as stage:
        stage.env |= {name: "http://127.0.0.1:1", "NO_PROXY": surroundings.NO_PROXY}
        stage.env |= {key.lower(): value for key, value in stage.env.items() if "PROXY" in key}
        worked = await stage.sh(f"git clone -q {stage.url('acme/widget.git')} && cat widget/README")
        assert (worked.code, worked.stdout) == (0, b"widget.git")


def stored(folder: Path) -> bytes:
    """All that is kept of a run, in the database and beside it."""
    return b"".join(path.read_bytes() for path in folder.glob("*.sqlite*"))


async def test_a_whole_run_pushes_with_the_token_and_no_record_of_it_holds_the_token(
    runtime: DockerRuntime, image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    harness, token = Harness(runtime, image, tmp_path), f"ghp_{secrets.token_hex(18)}"
    harness.secrets = {"ORCHESTRATOR_SECRET_HUB_TOKEN": token}
    with closing(harness.store), anyio.fail_after(PATIENCE):
        async with git_server(tmp_path / "server", token, *REPOSITORIES) as server:
            harness.dialer = server.https.dialer()
            url = f"https://{server.https.host}/acme/widget.git"
            command = f"cd /tmp && {WORK.format(url=url, size=10)}"
            other = f"git ls-remote {url.replace('widget', 'other')}; true"
            result = await harness.run(
                [bash(command), bash(other), {"text": "{last_tool_result}"}],
                network={"mode": "allow", "allow_private": [server.https.host]},
                secrets=[
                    {
                        "name": "hub-token",
                        "hosts": [server.https.host],
                        "methods": ["GET", "POST"],
                        "paths": ["/acme/widget.git/**"],
                        "scheme": "basic",
                    }
                ],
            )

    assert result.status == "completed", result
    assert server.log("acme/widget.git") == ["second", "first"]
    used = [event for event in harness.events if event.kind == "secret_used"]
    assert {event.data["secret"] for event in used} == {"hub-token"}
    assert len(used) == len(server.reached)
    denied = [event.data["path"] for event in harness.events if event.kind == "egress_denied"]
    assert set(denied) == {"/acme/other.git/info/refs"}
    kept = stored(tmp_path)
    assert b"hub-token" in kept
    everything = kept + repr((result, harness.events, caplog.text)).encode()
    assert b"/acme/widget.git/git-receive-pack" in everything
    assert [shape for shape in shapes(token) if shape.encode() in everything] == []
