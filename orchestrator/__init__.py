"""Hand a task to an AI agent you don't fully trust: each is a locked container on one wire."""

__version__ = "0.1.0"
