"""The page: files that a browser gets as they are, and how it gets them."""
