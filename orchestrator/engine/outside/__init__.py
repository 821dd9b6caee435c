"""For agents outside: what they may call of our servers of tools."""
