"""Commands about what has run: lists, logs, costs, decisions."""
