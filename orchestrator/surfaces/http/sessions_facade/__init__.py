"""Sessions as clients of another server know them, on our runs (decisions/0098)."""
