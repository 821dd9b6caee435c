"""What an image says of itself, and what is in it, by value."""

from __future__ import annotations

import base64
import json

import pytest

from orchestrator.containers.docker.image_look import SeenPath, read_stat
from orchestrator.containers.docker.image_terms import ImageTerms, covered_volumes, image_terms
from orchestrator.domain.container import ContainerSpec
from orchestrator.errors import EngineRefused, SpecRefused


def test_variables_and_volumes_of_an_image_are_known_by_their_shortest_names() -> None:
    config = {
        "Env": ["PATH=/usr/bin", "LD_PRELOAD=/a=b.so", "LD_PRELOAD=/c.so", "BARE"],
        "Volumes": {"/data/": {}, "//srv/./x": {}},
        "Labels": {"orchestrator.image": "agent", "orchestrator.digest": "1", "maintainer": "me"},
    }
    assert image_terms("theirs:1", {"Id": "sha256:1", "Config": config}) == ImageTerms(
        id="sha256:1", variables=("BARE", "LD_PRELOAD", "PATH"), volumes=("/data", "/srv/x")
    )
    bare = {"Id": "sha256:2", "Config": {"Env": None, "Volumes": None, "Labels": None}}
    assert image_terms("bare", bare) == ImageTerms(id="sha256:2")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"Env": ["=x"]}, "sets a variable called ''"),
        ({"Env": ["LD*=x"]}, r"sets a variable called 'LD\*'"),
        ({"Volumes": {"data": {}}}, "has a VOLUME 'data'"),
        ({"Volumes": {"/data/..": {}}}, r"has a VOLUME '/data/\.\.'"),
        ({"Labels": {"orchestrator.state": "x"}}, "the label 'orchestrator.state'"),
        ({"Labels": {"io.podman.annotations.init": "x"}}, "the label 'io.podman"),
    ],
)
def test_what_cannot_be_put_right_is_refused(config: dict[str, object], why: str) -> None:
    with pytest.raises(SpecRefused, match=why):
        image_terms("theirs:1", {"Id": "sha256:1", "Config": config})


def test_a_volume_is_covered_unless_ours_is_there_and_refused_inside_of_ours() -> None:
    spec = ContainerSpec(image="theirs:1")
    image = ImageTerms(id="sha256:1", volumes=("/data", "/tmp", "/home"))
    assert covered_volumes(image, spec) == ("/data", "/home")
    with pytest.raises(SpecRefused, match="VOLUME /tmp/x, inside /tmp"):
        covered_volumes(ImageTerms(id="sha256:1", volumes=("/tmp/x",)), spec)


@pytest.mark.parametrize(
    ("mode", "link", "seen"),
    [
        # Recorded from Docker 20.10.24: /opt, /bin, /tmp, /etc/passwd.
        (2147484141, "", SeenPath(is_there=True, is_directory=True)),
        (134218239, "/usr/bin", SeenPath(is_there=True, is_open=True, size=9, leads_to="/usr/bin")),
        (2148532735, "", SeenPath(is_there=True, is_directory=True, is_open=True)),
        (420, "", SeenPath(is_there=True, size=9)),
    ],
)
def test_what_an_engine_tells_of_a_path_is_understood(mode: int, link: str, seen: SeenPath) -> None:
    row = {"name": "x", "size": 9, "mode": mode, "mtime": "2026-01-01T00:00:00Z"}
    told = base64.b64encode(json.dumps({**row, "linkTarget": link}).encode()).decode()
    assert read_stat(told) == seen


@pytest.mark.parametrize("told", ["", "e30=", "W10=", "!"])
def test_an_engine_that_does_not_tell_is_not_believed(told: str) -> None:
    with pytest.raises(EngineRefused, match="does not tell"):
        read_stat(told)
