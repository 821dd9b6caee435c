"""What calls answer."""
