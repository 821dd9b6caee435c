"""One server with the page and one browser, for all tests of this folder that a worker has."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.surfaces.mcp.mcp_stage import on_stage
from tests.surfaces.web.page_stage import PageStage, open_page_stage


@pytest.fixture(scope="package")
async def shared_page_stage(
    tmp_path_factory: pytest.TempPathFactory, image: str
) -> AsyncIterator[PageStage]:
    async with (
        on_stage(tmp_path_factory.mktemp("page"), image) as stage,
        open_page_stage(stage) as opened,
    ):
        yield opened


@pytest.fixture
async def on_page(shared_page_stage: PageStage) -> AsyncIterator[PageStage]:
    """The stage, left as it was: no run, no tab, and nothing that the browser complains of."""
    yield shared_page_stage
    await shared_page_stage.tidy()
