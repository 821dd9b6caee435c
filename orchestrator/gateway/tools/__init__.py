"""The tool broker: servers of tools outside of agents, and who may call what of them."""
