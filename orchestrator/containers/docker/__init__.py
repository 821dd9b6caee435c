"""The runtime contract on a Docker or Podman engine."""
