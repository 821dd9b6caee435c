"""The agent image: its name, what is in it, and which images a prune leaves alone."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.containers.docker.engine import Engine, connect
from orchestrator.containers.images.agent_image import (
    BuiltImage,
    ImageInputs,
    _our_tags,
    all_current_tags,
    build_agent_image,
    current_tags,
    image_tag,
    list_images,
    prune_images,
)
from orchestrator.containers.images.base_image import debian_sources
from orchestrator.containers.images.build import (
    DIGEST_LABEL,
    build_context,
    path_file,
    step_line,
    text_file,
)
from orchestrator.containers.images.fetching import arch_of
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.errors import ImageBuildFailed, ImageMissing
from orchestrator.settings import Settings, read_settings

REPOSITORY = "subagent-orchestrator/test"
INPUTS = ImageInputs(
    repository="test", dockerfile="FROM x", programs=("c1",), base="debian:b", arch="amd64"
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = connect(read_settings())
    yield engine
    engine.close()


@pytest.fixture
def image(engine: Engine) -> str:
    """Today's agent image, which the set-up has built."""
    return build_agent_image(engine, read_settings(), DEFAULT_RUNNER, lambda _: None)


def run(image: str, *argv: str) -> str:
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", image, *argv],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---- Names and pieces -------------------------------------------------------------------------


def test_equal_inputs_give_the_same_tag() -> None:
    assert image_tag(INPUTS) == image_tag(INPUTS.model_copy())
    repository, _, digest = image_tag(INPUTS).partition(":")
    assert (repository, len(digest)) == (REPOSITORY, 12)


@pytest.mark.parametrize("field", list(ImageInputs.model_fields))
def test_every_input_changes_the_tag(field: str) -> None:
    other: object = ("c2",) if field == "programs" else "other"
    assert image_tag(INPUTS.model_copy(update={field: other})) != image_tag(INPUTS)


def test_a_build_context_is_a_tar_archive_with_modes(tmp_path: Path) -> None:
    (tmp_path / "claude").write_bytes(b"c" * 1000)
    pieces = build_context(
        (text_file("Dockerfile", "FROM x\n"), path_file("claude", tmp_path / "claude", 0o755))
    )
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        found = {member.name: (member.mode, member.size, member.mtime) for member in archive}
    assert found == {"Dockerfile": (0o644, 7, 0), "claude": (0o755, 1000, 0)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Step 3/10 : COPY a b\n", "step 3/10: COPY a b"),  # Docker 20.10
        ("STEP 3/10: COPY a b", "step 3/10: COPY a b"),  # Podman 4.3
        ("Step 4/9 : RUN set -eu; apt-get -qq update; x", "step 4/9: install Debian packages"),
        ("Step 5/9 : LABEL a=b", None),  # takes no time
        ("Step 4/9 : RUN " + "x" * 100, "step 4/9: RUN " + "x" * 43 + "…"),
        (" ---> 1f2c1a0831c5\n", None),
    ],
)
def test_a_build_step_becomes_one_short_line(text: str, line: str | None) -> None:
    assert step_line(text) == line


# ---- Where a base comes from ------------------------------------------------------------------

DEB822 = """\
Types: deb deb-src
# a comment in between
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""

THIRD_PARTIES = """\
deb [arch=amd64 signed-by=/etc/apt/keyrings/other.gpg] https://apt.example/debian bookworm main
deb https://apt.example/linux/debian bookworm stable
deb https://cloud.example/apt cloud-sdk-bookworm main
"""


def test_the_base_is_made_from_the_machines_own_debian_mirror() -> None:
    assert debian_sources([DEB822, THIRD_PARTIES], "bookworm") == (
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
        "deb http://mirror.example/debian-security bookworm-security main",
    )


def test_one_line_sources_are_understood() -> None:
    text = (
        "# deb http://old.example/debian bookworm main\ndeb http://m.example/debian/ bookworm main"
    )
    assert debian_sources([text], "bookworm") == ("deb http://m.example/debian/ bookworm main",)


@pytest.mark.parametrize(
    "text",
    [
        THIRD_PARTIES,
        DEB822.replace("bookworm", "trixie"),
        DEB822.replace("Types: deb", "Enabled: no\nTypes: deb"),
        DEB822.replace(
            "http://mirror.example/debian", "mirror+file:///etc/apt/mirrors/debian.list"
        ),
        "",
    ],
)
def test_without_a_debian_mirror_of_that_release_the_tools_default_is_used(text: str) -> None:
    assert debian_sources([text], "bookworm") == ()


# ---- The image, on a real engine ----------------------------------------------------------------


def test_the_image_holds_the_pinned_claude(image: str) -> None:
    assert run(image, "claude", "--version") == "2.1.325 (Claude Code)"


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        ("codex", "codex-cli 0.166.0"),
        ("copilot", "GitHub Copilot CLI 1.0.102."),
        ("gemini", "0.61.0"),
        ("opencode", "1.18.33"),
    ],
)
def test_the_image_of_a_runner_holds_its_pinned_cli(
    runner: str, said: str, engine: Engine, image: str, runner_image: Callable[[str], str]
) -> None:
    other = runner_image(runner)
    assert run(other, runner, "--version").splitlines()[0] == said
    # All runners share the layers below their own.
    layers = [
        engine.api.inspect_image(name)["RootFS"]["Layers"]  # type: ignore[no-untyped-call]
        for name in (image, other)
    ]
    assert layers[0][:-1] == layers[1][: len(layers[0]) - 1]
    inside = "id -u; pwd; find / -xdev -perm /6000 2>/dev/null; test -w $(command -v $0) || echo no"
    assert run(other, "bash", "-c", inside, runner).split("\n") == ["1000", "/workspace", "no"]


def test_copilot_is_unpacked_where_no_agent_can_write(runner_image: Callable[[str], str]) -> None:
    script = "copilot --version > /dev/null; du -sk ~; find /opt/copilot ! -user root -o -perm /022"
    size, *writable = run(runner_image("copilot"), "bash", "-c", script).splitlines()
    assert int(size.split()[0]) < 2048  # at a first start it would be 234 MB
    assert [line for line in writable if not line.endswith("->")] == []
    licence = run(runner_image("copilot"), "cat", "/usr/share/licenses/copilot/LICENSE.md")
    assert licence.startswith("GitHub Copilot CLI License")


def test_the_image_holds_what_an_agent_works_with(image: str) -> None:
    script = "for c in git curl jq rg python3; do $c --version > /dev/null || echo $c; done"
    assert run(image, "bash", "-c", script) == ""


def test_the_image_runs_as_the_agent_in_the_workspace(image: str) -> None:
    script = "id -u; id -g; pwd; stat -c '%a %n' /home/agent; touch /workspace/x && echo mine"
    assert run(image, "bash", "-c", script).split("\n") == [
        "1000",
        "1000",
        "/workspace",
        "1777 /home/agent",
        "mine",
    ]


def test_no_program_in_the_image_changes_its_user(image: str) -> None:
    assert run(image, "bash", "-c", "find / -xdev -perm /6000 2>/dev/null; true") == ""


def test_the_warden_in_the_image_is_ours_and_compiled(image: str) -> None:
    ours = Path(__file__).parents[3] / "orchestrator/wire/warden.py"
    assert run(image, "cat", "/opt/orchestrator/warden.py") == ours.read_text().strip()
    check = (
        "import importlib.util, sys; b = open('/opt/orchestrator/warden.pyc', 'rb').read(4); "
        "print(b == importlib.util.MAGIC_NUMBER)"
    )
    assert run(image, "python3", "-I", "-c", check) == "True"


def test_an_image_that_is_there_is_not_built_again(engine: Engine, image: str) -> None:
    told: list[str] = []
    assert build_agent_image(engine, read_settings(), DEFAULT_RUNNER, told.append) == image
    assert told == []
    assert image in current_tags(engine, read_settings(), DEFAULT_RUNNER)
    assert image in all_current_tags(engine, read_settings())


def test_a_named_image_that_is_missing_is_said_and_not_built(engine: Engine) -> None:
    settings = read_settings().model_copy(update={"agent_image": "no-such/image:1"})
    with pytest.raises(ImageMissing, match="ORCHESTRATOR_AGENT_IMAGE=no-such/image:1"):
        build_agent_image(engine, settings, DEFAULT_RUNNER, lambda _: None)


def test_a_base_that_cannot_be_had_is_said(engine: Engine) -> None:
    base = f"localhost:1/no-such-base:{uuid.uuid4().hex}"
    settings = read_settings().model_copy(update={"base_image": base})
    with pytest.raises(ImageBuildFailed, match="ORCHESTRATOR_BASE_IMAGE=localhost:1/no-such-base"):
        build_agent_image(engine, settings, DEFAULT_RUNNER, lambda _: None)


def test_a_failed_build_says_why_and_leaves_nothing(
    engine: Engine, make_image: Callable[..., str], tmp_path: Path
) -> None:
    # A base with nothing in it: the first RUN cannot even find a shell.
    base = make_image(f"test-empty-base/{uuid.uuid4().hex}:1")
    machine = {"x64": b"\x3e", "arm64": b"\xb7"}[arch_of(str(engine.api.version()["Arch"]))]
    claude = tmp_path / "claude"  # the beginning of an executable, which is all that is looked at
    claude.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00" + machine + b"\x00")
    settings = read_settings().model_copy(update={"base_image": base, "claude_binary": claude})
    # Podman does not count the ARG before the first line.
    with pytest.raises(ImageBuildFailed, match=r"(?si)build failed: .*step [34]/") as failed:
        build_agent_image(engine, settings, DEFAULT_RUNNER, lambda _: None)
    assert "\x1b" not in str(failed.value)  # the old builder's red
    assert max(map(len, str(failed.value).splitlines())) < 600
    base_id = engine.api.inspect_image(base)["Id"]  # type: ignore[no-untyped-call]
    left = engine.api.images(filters={"since": base, "dangling": True})
    assert [i for i in left if i["ParentId"] == base_id] == []


# ---- Prune ------------------------------------------------------------------------------------


@pytest.fixture
def make_image(engine: Engine) -> Iterator[Callable[..., str]]:
    """Empty images of any name and labels; gone at the end of the test."""
    made: list[str] = []

    def make(name: str, **labels: str) -> str:
        with io.BytesIO() as buffer:
            with tarfile.open(fileobj=buffer, mode="w") as archive:
                archive.addfile(tarfile.TarInfo(f"{uuid.uuid4().hex}"))
            data = buffer.getvalue()
        repository, _, tag = name.rpartition(":")
        changes = [f"LABEL {key.replace('_', '.')}={value}" for key, value in labels.items()]
        engine.api.import_image_from_data(data, repository=repository, tag=tag, changes=changes)
        made.append(name)
        return name

    yield make
    for name in made:
        subprocess.run(["docker", "rmi", "--force", name], capture_output=True)


def others(engine: Engine, *mine: str) -> list[str]:
    """Whatever of ours is there already: other tests are using it."""
    return [image.tag for image in list_images(engine) if image.tag not in mine]


def find(images: tuple[BuiltImage, ...], tag: str) -> BuiltImage | None:
    return next((image for image in images if image.tag == tag), None)


def test_our_images_are_known_whatever_host_an_engine_puts_before_them(
    engine: Engine, make_image: Callable[..., str]
) -> None:
    name = make_image(f"subagent-orchestrator/test-{uuid.uuid4().hex}:1")
    image = engine.api.inspect_image(name)  # type: ignore[no-untyped-call]
    image["RepoTags"] = [f"localhost/{name}", "example.org/subagent-orchestrator/theirs:1", "x:1"]
    assert _our_tags(engine, image) == {name}


def test_prune_removes_an_old_image_and_nothing_else(
    engine: Engine, make_image: Callable[..., str]
) -> None:
    mark = uuid.uuid4().hex[:12]
    ours = {"orchestrator_image": "agent", DIGEST_LABEL.replace(".", "_"): mark}
    old = make_image(f"{REPOSITORY}:old-{mark}", **ours)
    kept = make_image(f"{REPOSITORY}:kept-{mark}", **ours)
    used = make_image(f"{REPOSITORY}:used-{mark}", **ours)
    base = make_image(f"subagent-orchestrator/base:test-{mark}", orchestrator_image="base")
    built_on_ours = make_image(f"somebody-elses/image:{mark}", **ours)
    container = engine.api.create_container(used, ["true"], labels={"orchestrator.test": mark})
    try:
        keep = [kept, *others(engine, old, used, base)]
        removed = prune_images(engine, read_settings(), keep, lambda _: None)
        now = list_images(engine)
        found = subprocess.run(["docker", "image", "inspect", built_on_ours], capture_output=True)
    finally:
        engine.api.remove_container(container["Id"], force=True)

    assert [image.tag for image in removed] == [old]
    assert find(now, old) is None
    assert find(now, kept) is not None
    in_use = find(now, used)
    assert in_use is not None
    assert in_use.in_use
    assert find(now, base) is not None
    assert found.returncode == 0
    assert find(now, built_on_ours) is None


def test_prune_leaves_alone_what_somebody_may_be_building_on(engine: Engine) -> None:
    young = {"Id": "sha256:" + uuid.uuid4().hex, "Created": time.time(), "Labels": {}}
    old = {**young, "Id": "sha256:" + uuid.uuid4().hex, "Created": time.time() - 86400}
    listed = [young, old]
    removed: list[str] = []

    class Api:
        def images(self, filters: dict[str, object] | None = None) -> list[dict[str, object]]:
            return listed if filters and "dangling" in filters else []

        def containers(self, **_: object) -> list[dict[str, object]]:
            return []

        def remove_image(self, name: str) -> None:
            removed.append(name)

    double = Engine(engine.address, Api())  # type: ignore[arg-type]
    prune_images(double, read_settings(), [], lambda _: None)
    assert removed == [old["Id"]]


def test_settings_choose_the_claude_that_goes_in(engine: Engine) -> None:
    settings: Settings = read_settings()
    older = settings.model_copy(update={"claude_version": "2.1.197"})
    tags = current_tags(engine, settings, DEFAULT_RUNNER)
    assert set(current_tags(engine, older, DEFAULT_RUNNER)).isdisjoint(tags)
