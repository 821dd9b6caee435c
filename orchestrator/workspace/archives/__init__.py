"""Trees of files as tar archives: to be sent, and from strangers."""
