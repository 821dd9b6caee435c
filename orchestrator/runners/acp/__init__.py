"""All we know of agent CLIs that speak the Agent Client Protocol: gemini and opencode."""
