"""Claude calls every server that others wrote, as test_real_servers has it for some."""

from __future__ import annotations

import pytest

from tests.engine.harness import Harness
from tests.engine.servers.real_servers import REAL
from tests.engine.servers.test_real_servers import USES, claude_calls, harness, servers

__all__ = ["harness", "servers"]  # fixtures

pytestmark = pytest.mark.timeout(900)


async def test_claude_calls_every_server_that_others_wrote(harness: Harness, servers: str) -> None:
    assert set(USES) == set(REAL)
    await claude_calls(harness, servers, tuple(REAL))
