"""From the settings to the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import OperatorError
from orchestrator.gateway.model.scripted import ScriptedModel
from orchestrator.gateway.model.service import open_model_service
from orchestrator.settings import Settings, read_settings
from tests.gateway.model.formats.dialects import OTHERS, Dialect
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


@pytest.mark.parametrize("dialect", OTHERS, ids=lambda each: each.name)
async def test_each_format_leads_to_its_provider_with_its_credential(
    dialect: Dialect, tmp_path: Path
) -> None:
    async with scripted_server(HELLO) as server:
        env = {
            "HOME": str(tmp_path),
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": server.url,
            "GEMINI_API_KEY": KEY,
        }
        async with open_model_service(read_settings(env)) as service:
            access = service.access(wire_format=dialect.name)
            assert (await dialect.post(access, dialect.body())).status == 200
            assert "ANTHROPIC_API_KEY" in service.lacks_credential("anthropic")
            assert service.lacks_credential(dialect.name) == ""
    (request,) = server.requests
    assert request.target == dialect.path
    shown = request.header(dialect.header).removeprefix("Bearer ")
    assert (shown, access.token in str(request.headers)) == (KEY, False)


@pytest.mark.parametrize("dialect", OTHERS, ids=lambda each: each.name)
async def test_a_missing_credential_is_named_by_its_variable(
    dialect: Dialect, tmp_path: Path
) -> None:
    variable = "GEMINI_API_KEY or GOOGLE_API_KEY" if dialect.name == "gemini" else "OPENAI_API_KEY"
    env = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": KEY}
    async with open_model_service(read_settings(env)) as service:
        assert service.lacks_credential(dialect.name) == variable
        with pytest.raises(OperatorError, match=variable):
            service.access(wire_format=dialect.name)
    with pytest.raises(OperatorError, match="OPENAI_BASE_URL is not"):
        async with open_model_service(read_settings({**env, "OPENAI_BASE_URL": "ftp://x"})):
            pass
