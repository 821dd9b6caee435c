"""All we know of an agent CLI: what to launch, what to write to it, what its bytes mean. Pure."""
