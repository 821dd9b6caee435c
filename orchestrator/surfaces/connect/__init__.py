"""`orchestrator connect`: MCP on stdin and stdout, answered by an orchestrator elsewhere."""
