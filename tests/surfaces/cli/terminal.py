"""A command at a terminal of its own, 80 columns wide."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios

CODE = "from orchestrator.__main__ import main; main()"


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, *argv: str, **variables: str) -> None:
        self.own, theirs = os.openpty()
        self.usual = termios.tcgetattr(self.own)
        fcntl.ioctl(self.own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, *argv],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", **variables},
        )
        os.close(theirs)
        self.said = b""

    def until(self, *wanted: bytes) -> bytes:
        """Read until one of these comes; what was read before it is gone."""
        while True:
            found = [(self.said.index(each), each) for each in wanted if each in self.said]
            if found:
                at, which = min(found)
                self.said = self.said[at + len(which) :]
                return which
            self.said += os.read(self.own, 4096)

    def press(self, key: bytes, wanted: bytes) -> None:
        """Press a key until it counts: it does not for what has just come."""
        os.write(self.own, key)
        while self.until(wanted, b"press the key again") != wanted:
            os.write(self.own, key)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.own)
