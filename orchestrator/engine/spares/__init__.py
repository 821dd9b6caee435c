"""Containers that wait for a call with their CLI started."""
