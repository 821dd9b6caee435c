"""A host directory -> the records that make a copy of it."""
