"""The wheel and the sdist hold all that an installed orchestrator needs."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

from tests.pages.installed import ROOT, build, reader_environment


def tracked() -> set[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_the_wheel_has_the_demo_the_images_and_every_page_of_the_reference(
    wheel: Path, bin_: Path, tmp_path: Path
) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in tracked() if name.startswith("orchestrator/")}
    beside = {
        f"orchestrator/_{name}" for name in tracked() if name.startswith(("agents/", "images/"))
    }
    assert package | beside <= names
    env = reader_environment(bin_, tmp_path)
    show = "import orchestrator; print(orchestrator.__file__)"
    where = subprocess.check_output([bin_ / "python", "-c", show], env=env, cwd="/", text=True)
    assert where.startswith(str(bin_.parent))  # and not this checkout
    for topic in ("agent", "install"):
        page = subprocess.check_output(["orchestrator", "help", topic], env=env, text=True)
        assert page.startswith("# ")


def test_the_sdist_is_a_checkout_in_which_make_demo_works(tmp_path: Path) -> None:
    with tarfile.open(build(tmp_path, "sdist")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        modes = {name.partition("/")[2]: sdist.getmember(name).mode for name in sdist.getnames()}
    assert tracked() - names == {".github/workflows/ci.yml"}
    assert modes[".ci/setup"] & 0o111
