"""All we know of an agent CLI, one file each: what to launch, and what its bytes mean. Pure."""
