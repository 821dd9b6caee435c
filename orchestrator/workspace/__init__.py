"""A host directory -> a copy in a container -> what changed in it -> the host directory again."""
