"""What the API says of itself is true, and shipped."""

from __future__ import annotations

import anyio.to_thread
import pytest

from orchestrator.surfaces.http.api import API_ENDPOINTS
from tests.surfaces.http.api_stage import TOKENS, ApiStage
from tests.surfaces.http.attacked import attack
from tests.surfaces.http.described import SHIPPED, described

pytestmark = pytest.mark.anyio


def test_the_shipped_description_is_the_one_that_is_served() -> None:
    assert SHIPPED.read_text() == described(), "`make openapi` writes it"


async def test_every_route_is_in_the_description(stage: ApiStage) -> None:
    async with stage.client(None) as anybody:
        paths = (await anybody.get("/v1/openapi.json")).json()["paths"]
    said = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert said == {(each.method, each.path) for each in API_ENDPOINTS}


async def test_no_request_leads_outside_of_the_description(stage: ApiStage) -> None:
    """`make soak` does this for ten minutes."""
    async with stage.client() as main:
        runs = [await stage.begin(main), await stage.begin(main)]
        await stage.ended(runs[0])
    headers = {"Authorization": f"Bearer {TOKENS['main']}"}
    known = {"run_id": runs, "name": ["for-main"]}

    def attacked() -> int:
        return attack(stage.url, headers, known, examples=2, seconds=0)

    assert await anyio.to_thread.run_sync(attacked) > len(API_ENDPOINTS)
