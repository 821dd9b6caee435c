"""Who may see a run may read what it changed; only whose run it is may apply it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from orchestrator.domain.task import Task
from orchestrator.workspace.changes.collected import (
    OBJECTS,
    Change,
    Changes,
    State,
    make_folder,
    save_changes,
)
from orchestrator.workspace.changes.plain_patch import write_plain_patch
from tests.surfaces.http.api_stage import ApiStage

pytestmark = pytest.mark.anyio

HELLO = b"hello\n"


def keep_changes(stage: ApiStage, run_id: str, root: Path) -> None:
    """As if a run had written a file into its copy."""
    folder = stage.service.copies.kept.of(run_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    make_folder(folder)
    digest = sha256(HELLO).hexdigest()
    (folder / OBJECTS / digest).write_bytes(HELLO)
    new = State(kind="file", mode=0o644, size=len(HELLO), sha256=digest)
    changes = (Change(path="new.txt", old=State(), new=new),)
    save_changes(write_plain_patch(Changes(root=root, changes=changes, folder=folder)))


async def test_a_childs_changes_are_read_by_its_parents_caller(
    stage: ApiStage, tmp_path: Path
) -> None:
    project = stage.service.project
    async with stage.client() as main, stage.client("other") as other, stage.person() as person:
        parent = await stage.begin(main)
        child = Task(
            agent="worker", prompt="x", caller="for-main", project=project, parent_run_id=parent
        )
        await stage.store.add_run(child)
        path = f"/v1/runs/{child.run_id}"
        for what in ("patch", "changes"):
            nothing = await main.get(f"{path}/{what}")
            assert (nothing.status_code, nothing.json()["code"]) == (409, "apply_refused")
        keep_changes(stage, child.run_id, tmp_path)
        for client in (main, person):
            for what in ("patch", "changes"):
                answer = await client.get(f"{path}/{what}")
                assert (answer.status_code, b"hello" in answer.content) == (200, True)
        theirs = await main.post(f"{path}/apply", json={})
        assert (theirs.status_code, theirs.json()["code"]) == (404, "run_not_found")
        for what in ("patch", "changes"):
            assert (await other.get(f"{path}/{what}")).status_code == 404
        await stage.ended(parent)
