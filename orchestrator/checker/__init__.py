"""AgentSpec -> what is wrong with it, or probably not meant, that its file alone does not tell."""
