"""ContainerSpec -> a container on a wire. The only package that knows the docker library."""
