"""From the settings to the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import OperatorError
from orchestrator.gateway.model.scripted import ScriptedModel
from orchestrator.gateway.model.service import open_model_service
from orchestrator.settings import Settings, read_settings
from tests.gateway.model.model_stage import HELLO, KEY, post
from tests.gateway.model.scripted_server import scripted_server

pytestmark = pytest.mark.anyio


async def test_without_a_credential_only_another_model_can_be_used(tmp_path: Path) -> None:
    nothing = read_settings({"HOME": str(tmp_path)})
    async with open_model_service(nothing) as service:
        with pytest.raises(OperatorError, match="ANTHROPIC_API_KEY"):
            service.access()
        scripted = service.access(upstream=ScriptedModel(HELLO).upstream())
        assert (await post(scripted)).status == 200


async def test_the_settings_lead_to_the_api(tmp_path: Path) -> None:
    async with scripted_server(HELLO) as server:
        env = {"HOME": str(tmp_path), "ANTHROPIC_BASE_URL": f"{server.url}/prefix/"}
        settings: Settings = read_settings(env | {"ANTHROPIC_API_KEY": KEY})
        async with open_model_service(settings) as service:
            await post(service.access())
    assert [r.target for r in server.requests] == ["/prefix/v1/messages?beta=true"]
    assert server.requests[0].header("x-api-key") == KEY
