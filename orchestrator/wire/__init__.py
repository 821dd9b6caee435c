"""One wire: frames over PID 1's stdin and stdout. PROTOCOL.md is the page to read first."""
