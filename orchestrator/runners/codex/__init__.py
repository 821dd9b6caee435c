"""All we know of the codex CLI."""
