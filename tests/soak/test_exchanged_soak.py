"""A workspace exchanged with a link to ~/.ssh in a loop while it is used. SOAK_EXCHANGES."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.exchanging import Ground, tries

TRIES = int(os.environ.get("SOAK_EXCHANGES", "1000"))

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(0)]


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    ground.close()


async def test_no_copy_of_an_exchanged_workspace_holds_a_key(field: Ground) -> None:
    with field.exchanging():
        seen = await tries(TRIES, field.copied, {"copied", "MountRefused", "CopyRefused"}, 1800)
    print(f"\n{dict(seen)}", flush=True)
    assert {*seen} == {"copied", "MountRefused", "CopyRefused"}


async def test_no_change_is_applied_to_what_an_exchanged_workspace_links_to(field: Ground) -> None:
    field.plant()
    with field.exchanging():
        seen = await tries(TRIES, field.applied, {"applied", "MountRefused", "ApplyRefused"}, 1800)
    print(f"\n{dict(seen)}", flush=True)
    assert {*seen} == {"applied", "MountRefused", "ApplyRefused"}
