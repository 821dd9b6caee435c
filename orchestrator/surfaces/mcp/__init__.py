"""MCP: tools, resources and tasks for a main agent."""
