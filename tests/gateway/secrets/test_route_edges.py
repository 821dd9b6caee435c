"""Paths that can be read in two ways, and requests that are too many."""

from __future__ import annotations

import pytest

from orchestrator.gateway.secrets import routes
from orchestrator.gateway.secrets.route_rules import Refused, find_route
from tests.gateway.secrets.test_routes import (  # noqa: F401 the fixture is used by its name
    Serve,
    ask,
    hello,
    secret,
    serve,
)


@pytest.mark.parametrize(
    "segment", ['a"b', "a<b", "a{b", "a|b", "a^b", "a`b", "a[b", "a%2", "a%zz"]
)
def test_a_character_that_has_to_be_encoded_is_refused(segment: str) -> None:
    with pytest.raises(Refused, match="has to be percent-encoded"):
        find_route((secret("api.test"),), "GET", f"/api.test/repos/{segment}")


@pytest.mark.anyio
async def test_requests_above_the_limit_are_refused(
    serve: Serve,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = serve(hello)
    access = stage.access()
    assert (await ask(access, stage.url("/repos/a"))).status == 200
    monkeypatch.setattr(routes, "MAX_ROUTE_CONNECTIONS", 0)
    refused = await ask(access, stage.url("/repos/a"))
    assert (refused.status, b"0 requests at once are enough" in refused.body) == (403, True)
