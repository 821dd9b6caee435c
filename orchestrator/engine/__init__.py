"""The verbs: what an orchestrator does with agents, tasks and containers."""
