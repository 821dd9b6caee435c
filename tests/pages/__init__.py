"""What the pages say, tried out: their commands, on the wheel alone, and their words."""
