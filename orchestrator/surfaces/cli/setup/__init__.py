"""Commands about this machine and this project, rather than about runs."""
