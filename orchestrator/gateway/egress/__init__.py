"""An HTTP proxy with an allowlist."""
