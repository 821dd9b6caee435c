"""Containers, conversations and memory that stay between calls."""
