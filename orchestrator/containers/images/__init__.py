"""The image that agents run in, and what goes into it."""
