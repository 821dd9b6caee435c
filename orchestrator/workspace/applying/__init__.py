"""Changes -> the host directory, all or nothing."""
