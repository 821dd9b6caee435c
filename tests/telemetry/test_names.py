"""Our names against the conventions' own constants."""

from __future__ import annotations

from types import ModuleType

from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    mcp_attributes,
    network_attributes,
    server_attributes,
    service_attributes,
)

from orchestrator.telemetry.names import Names

CONVENTIONS: tuple[ModuleType, ...] = (
    error_attributes,
    gen_ai_attributes,
    http_attributes,
    mcp_attributes,
    network_attributes,
    server_attributes,
    service_attributes,
)


def ours() -> dict[str, str]:
    return {k: v for k, v in vars(Names).items() if k.isupper() and isinstance(v, str)}


def test_every_attribute_is_the_conventions_or_has_our_prefix() -> None:
    theirs = {
        value
        for module in CONVENTIONS
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    attributes = {value for value in ours().values() if "." in value}
    left = attributes - theirs
    assert len(left) > 10
    assert [name for name in left if not name.startswith("orchestrator.")] == []
    gone = {gen_ai_attributes.GEN_AI_SYSTEM, gen_ai_attributes.GEN_AI_PROMPT}
    assert not attributes & gone, "replaced by others"


def test_every_value_is_one_that_the_conventions_know() -> None:
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert {Names.INVOKE_AGENT, Names.CHAT, Names.EXECUTE_TOOL} <= operations
    providers = {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    assert set(Names.PROVIDERS.values()) <= providers
    methods = {each.value for each in mcp_attributes.McpMethodNameValues}
    assert {Names.TOOLS_CALL, *Names.METHODS.values()} <= methods
