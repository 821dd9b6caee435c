"""The model API: run token in, real credential out, metered."""
