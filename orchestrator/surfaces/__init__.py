"""Doors to the orchestrator. They translate, nothing else."""
