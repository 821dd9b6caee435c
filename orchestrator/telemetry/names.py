"""The names of spans, attributes and their values: the one place that knows the conventions.

The GenAI and MCP conventions are still in development and have moved house once, and their Python
constants with them: so they are written out here, and a test compares them with those constants.
"""

from __future__ import annotations

from typing import ClassVar


class Names:
    """Constants, in a namespace of their own: what is called so elsewhere means something else."""

    # Spans; each is followed by a space and what it is about

    INVOKE_AGENT = "invoke_agent"
    CHAT = "chat"
    EXECUTE_TOOL = "execute_tool"
    WAIT = "wait"
    """Ours: a question or a tool call that a caller has to decide about."""

    TOOLS_CALL = "tools/call"
    RESOURCES_READ = "resources/read"
    PROMPTS_GET = "prompts/get"
    METHODS: ClassVar = {"resource": RESOURCES_READ, "prompt": PROMPTS_GET}
    """What of a server was asked for, if it was no tool -> the method."""

    # Attributes of the GenAI conventions

    OPERATION_NAME = "gen_ai.operation.name"
    PROVIDER_NAME = "gen_ai.provider.name"
    AGENT_NAME = "gen_ai.agent.name"
    AGENT_DESCRIPTION = "gen_ai.agent.description"
    AGENT_VERSION = "gen_ai.agent.version"
    CONVERSATION_ID = "gen_ai.conversation.id"
    OUTPUT_TYPE = "gen_ai.output.type"
    REQUEST_MODEL = "gen_ai.request.model"
    RESPONSE_MODEL = "gen_ai.response.model"
    RESPONSE_ID = "gen_ai.response.id"
    RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
    RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
    USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
    """All of them: those of the cache too."""
    USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    USAGE_CACHE_CREATION_INPUT_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
    TOOL_NAME = "gen_ai.tool.name"
    TOOL_CALL_ID = "gen_ai.tool.call.id"
    TOOL_TYPE = "gen_ai.tool.type"
    PROMPT_NAME = "gen_ai.prompt.name"

    # Content, which is left out unless the operator wants it

    SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
    INPUT_MESSAGES = "gen_ai.input.messages"
    OUTPUT_MESSAGES = "gen_ai.output.messages"
    TOOL_CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
    TOOL_CALL_RESULT = "gen_ai.tool.call.result"

    # Of the MCP conventions, and of the general ones

    MCP_METHOD_NAME = "mcp.method.name"
    MCP_PROTOCOL_VERSION = "mcp.protocol.version"
    MCP_RESOURCE_URI = "mcp.resource.uri"
    NETWORK_TRANSPORT = "network.transport"
    ERROR_TYPE = "error.type"
    SERVER_ADDRESS = "server.address"
    SERVER_PORT = "server.port"
    HTTP_REQUEST_METHOD = "http.request.method"
    HTTP_RESPONSE_STATUS_CODE = "http.response.status_code"
    SERVICE_NAME = "service.name"
    SERVICE_VERSION = "service.version"

    # Values

    PROVIDERS: ClassVar = {"anthropic": "anthropic", "openai": "openai", "google": "gcp.gemini"}
    """Ours -> the conventions'."""
    FUNCTION = "function"
    EXTENSION = "extension"
    """Types of tools: the CLI's own, and those of servers."""
    TOOL_ERROR = "tool_error"

    # Ours

    RUN_ID = "orchestrator.run_id"
    PARENT_RUN_ID = "orchestrator.parent_run_id"
    CALLER = "orchestrator.caller"
    REQUEST_ID = "orchestrator.request_id"
    STATUS = "orchestrator.status"
    REASON = "orchestrator.reason"
    RUNNER = "orchestrator.runner"
    ATTEMPTS = "orchestrator.attempts"
    REQUESTS = "orchestrator.model_requests"
    SCRIPTED = "orchestrator.scripted"
    QUEUE_SECONDS = "orchestrator.queue_seconds"
    START_SECONDS = "orchestrator.start_seconds"
    START_PATH = "orchestrator.start_path"
    COST_USD = "orchestrator.cost_usd"
    ESTIMATED_USD = "orchestrator.estimated_usd"
    SERVER = "orchestrator.server"
    DIRECT = "orchestrator.direct"
    DECISION = "orchestrator.decision"
    DECIDING_RULE = "orchestrator.rule"
    SECRET = "orchestrator.secret"  # noqa: S105 the name of an attribute with a secret's name
    BYTES_OUT = "orchestrator.bytes_out"
    BYTES_IN = "orchestrator.bytes_in"
    WAIT_ID = "orchestrator.wait_id"
    ANSWERED_BY = "orchestrator.answered_by"
    EVENT = "orchestrator.{kind}"
    """Of a span's event: what it is in the run's record."""

    UNFINISHED = "unfinished"
    """The error of what was under way when its run ended."""
