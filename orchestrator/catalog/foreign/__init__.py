"""Agent files that were written for other programs -> AgentSpec, and what of them counts here."""
