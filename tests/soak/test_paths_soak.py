"""Directories exchanged in a loop while they are looked through, mounted and written to.

SOAK_EXCHANGES.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.exchanging import tries
from tests.attacks.racing import Covering, Mounting, Remembering, exchanging

TRIES = int(os.environ.get("SOAK_EXCHANGES", "1000"))

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(0)]


async def test_no_other_git_is_mounted_than_was_found(tmp_path: Path) -> None:
    ground = Mounting(tmp_path)
    with exchanging(ground.project / "sub", ground.link):
        seen = await tries(TRIES, ground.mounted, {"mine", "refused"}, 1800)
    print(f"\n{dict(seen)}", flush=True)
    assert {*seen} == {"mine", "refused"}


async def test_no_other_workspace_is_mounted_than_was_looked_through(tmp_path: Path) -> None:
    ground = Covering(tmp_path)
    with exchanging(ground.project, ground.other):
        seen = await tries(TRIES, ground.mounted, {"covered", "refused", "empty"}, 1800)
    print(f"\n{dict(seen)}", flush=True)
    assert {*seen} == {"covered", "refused", "empty"}


async def test_no_agent_is_the_user_of_another_workspace(tmp_path: Path) -> None:
    ground = Covering(tmp_path)
    with exchanging(ground.project, ground.other):
        seen = await tries(TRIES, ground.owned, {"its own", "refused"}, 1800)
    print(f"\n{dict(seen)}", flush=True)
    assert {*seen} == {"its own", "refused"}


async def test_no_memory_is_written_to_what_an_exchanged_folder_links_to(tmp_path: Path) -> None:
    ground = Remembering(tmp_path)
    try:
        with exchanging(ground.agent, ground.link):
            seen = await tries(TRIES, ground.kept, {"kept", "aside"}, 1800)
    finally:
        ground.close()
    print(f"\n{dict(seen)}", flush=True)
    assert {*seen} == {"kept", "aside"}
