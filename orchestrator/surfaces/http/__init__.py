"""The HTTP API: translates requests into the verbs of the engine, and what comes of them back."""
