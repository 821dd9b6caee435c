"""Commands about runs of an orchestrator elsewhere (`--server`): the same words, over HTTP."""
