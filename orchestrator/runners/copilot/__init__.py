"""All we know of the copilot CLI."""
