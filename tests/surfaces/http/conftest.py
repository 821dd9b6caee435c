"""One server for the tests of a module that leave it as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.surfaces.http.api_stage import ApiStage, on_api_stage


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiStage]:
    async with on_api_stage(tmp_path_factory.mktemp("api")) as stage:
        yield stage
