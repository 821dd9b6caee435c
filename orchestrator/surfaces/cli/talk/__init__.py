"""Commands about runs under way: what they ask, what is said to them, when they end."""
