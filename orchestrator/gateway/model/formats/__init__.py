"""The model APIs there are, each by the format of its requests and answers."""
