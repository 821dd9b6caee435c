"""What we promise of a container, proven on an engine."""
