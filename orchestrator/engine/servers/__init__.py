"""Servers of tools for runs: started, shared, and bound to a run."""
