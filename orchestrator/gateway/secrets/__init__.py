"""Secrets: where they are kept, and the requests they are added to."""
