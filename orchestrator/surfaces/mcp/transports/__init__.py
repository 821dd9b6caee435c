"""How MCP messages come in: on stdin and stdout, or over HTTP."""
