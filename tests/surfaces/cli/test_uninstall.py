"""`orchestrator uninstall` on a real engine: it lists all that is there, and leaves nothing."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.app import open_engine
from orchestrator.client.packing import SENT
from orchestrator.containers.images.agent_image import REPOSITORIES, remove_images
from orchestrator.containers.images.base_image import image_exists
from orchestrator.containers.images.build import KIND_LABEL
from orchestrator.containers.owner import Owner
from orchestrator.engine.inventory import STATE_NAMES
from orchestrator.engine.workspaces.copies import SNAPSHOTS
from orchestrator.settings import read_settings
from orchestrator.surfaces.cli.main import main
from orchestrator.workspace.archives.uploads import UPLOADS
from orchestrator.workspace.kept import CHANGES
from tests.surfaces.conftest import Project


def uninstalled(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["uninstall", "--json", "--keep-images", *options])
    code = left.value.code
    return code if isinstance(code, int) else 0, json.loads(capsys.readouterr().out)


def test_all_that_a_session_has_made_is_listed_and_removed_on_a_word(
    project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state, cache = tmp_path / "state", tmp_path / "cache"
    monkeypatch.setenv("ORCHESTRATOR_CACHE_DIR", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    secrets_file = tmp_path / "config/subagent-orchestrator/secrets.yaml"
    secrets_file.parent.mkdir(parents=True)
    secrets_file.touch()
    (cache / "claude").mkdir(parents=True)
    (cache / "claude/claude-1").write_bytes(b"12345")
    project.agent("noter", "steps: [{text: noted}]", "session: true")
    with pytest.raises(SystemExit):
        main(["run", "noter", "note it"])

    code, listed = uninstalled(capsys)
    assert (code, listed["removed"]) == (0, False)
    assert [name[:10] for name in listed["containers"]] == ["orch-kept-"]
    assert len(listed["volumes"]) == 2
    assert listed["cache"] == {"path": str(cache), "bytes": 5}
    assert listed["yours"] == [str(secrets_file)]

    with Owner(state):  # another process of the user's, such as a server
        code, refused = uninstalled(capsys, "--yes")
        assert code == 4
        assert "at work" in str(refused)
    assert uninstalled(capsys)[1]["volumes"] == listed["volumes"]

    (cache / "mine.txt").touch()
    code, done = uninstalled(capsys, "--yes")
    assert (code, done["removed"], done["containers"]) == (0, True, listed["containers"])
    assert done["stays"] == [f"{cache}: it holds mine.txt, which is not ours"]
    assert not state.exists()
    assert [path.name for path in cache.iterdir()] == ["mine.txt"]
    assert secrets_file.exists()
    with open_engine(read_settings()) as engine:
        volumes = engine.api.volumes(filters={"name": "orch-kept-"}).get("Volumes") or ()
    assert not {volume["Name"] for volume in volumes} & set(listed["volumes"])

    _, nothing = uninstalled(capsys)
    assert (nothing["containers"], nothing["state"], nothing["cache"]) == ([], None, None)
    assert not state.exists()


def test_an_image_goes_unless_a_container_is_made_of_it() -> None:
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w"):
        pass
    tags = [f"test-{secrets.token_hex(4)}" for _ in range(2)]
    used, free = (f"{REPOSITORIES}test:{tag}" for tag in tags)
    with open_engine(read_settings()) as engine:
        for tag in tags:
            empty.seek(0)
            engine.api.import_image_from_data(
                empty.read(),
                repository=f"{REPOSITORIES}test",
                tag=tag,
                changes=[f"LABEL {KIND_LABEL}=agent", f"LABEL test={tag}"],
            )
        container = engine.api.create_container(used, ["none"])["Id"]
        try:
            assert remove_images(engine, (used, free)) == (used,)
            assert (image_exists(engine, used), image_exists(engine, free)) == (True, False)
        finally:
            engine.api.remove_container(container)
            remove_images(engine, (used,))
        assert not image_exists(engine, used)


def test_without_an_engine_nothing_is_removed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anyio.run(_make_state, tmp_path / "state")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    with pytest.raises(SystemExit) as left:
        main(["uninstall", "--yes"])
    assert left.value.code == 6
    assert (tmp_path / "state/id").exists()


async def _make_state(folder: Path) -> None:
    with Owner(folder):
        pass


def test_every_folder_of_the_state_directory_goes() -> None:
    assert {CHANGES, SNAPSHOTS, UPLOADS, SENT} <= {*STATE_NAMES}
