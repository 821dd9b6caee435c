"""Commands about runs of an orchestrator elsewhere (`--server`): the same words, asked over HTTP."""
