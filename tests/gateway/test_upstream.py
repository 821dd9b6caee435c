"""The API behind a URL."""

from __future__ import annotations

import pytest

from orchestrator.errors import OperatorError
from orchestrator.gateway.upstream import HttpUpstream


@pytest.mark.parametrize(
    "url", ["ftp://host", "host", "https://me:pw@host", "https://host/?a=b", "https://host:x"]
)
def test_a_base_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(OperatorError, match="ANTHROPIC_BASE_URL") as refused:
        HttpUpstream(url)
    assert "pw" not in str(refused.value).replace("password", "")
