"""What a container can reach through its wire: each service answers relayed connections."""
