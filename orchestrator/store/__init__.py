"""What is kept of runs, questions and sessions, in SQLite."""
