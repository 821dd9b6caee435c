"""The workspace of one run: brought in, looked at meanwhile, taken back."""
