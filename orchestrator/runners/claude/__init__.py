"""All we know of the claude CLI."""
