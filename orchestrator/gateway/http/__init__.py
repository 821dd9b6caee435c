"""HTTP on a byte stream: read, answered, passed on."""
