"""Programs of the host that listen in a workspace, and what reaches them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.attacks.spoils import OWNER

ANSWER = "ANSWER-OF-THE-HOST"

TALK = """
import os, socket, sys
for path in sys.argv[1:]:
    try:
        if path.endswith(".fifo"):
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            os.write(fd, b"FROM-INSIDE")
            print(path, "took it")
            continue
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            os.chdir(os.path.dirname(path))
            s.connect(os.path.basename(path))
            s.sendall(b"FROM-INSIDE")
            print(path, s.recv(100).decode())
    except OSError as exc:
        print(path, exc.strerror)
"""
"""As an agent: says something to each, and tells what became of it."""


@contextmanager
def open_folder(path: Path) -> Iterator[str]:
    """A short name for it: a socket's address has no more than 107 bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


class Host:
    """What the programs of the host have heard."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    @contextmanager
    def listening(self, path: Path) -> Iterator[None]:
        """A server that answers everybody, at a path that its owner's programs can reach."""
        with socket.socket(socket.AF_UNIX) as listener:
            with open_folder(path.parent) as short:
                listener.bind(f"{short}/{path.name}")
            os.chown(path, OWNER, OWNER)
            listener.listen()
            thread = threading.Thread(target=self._serve, args=(listener,))
            thread.start()
            try:
                yield
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()
                path.unlink(missing_ok=True)

    @contextmanager
    def fifo(self, path: Path) -> Iterator[None]:
        """Somebody reads what is written to it."""
        os.mkfifo(path)
        os.chown(path, OWNER, OWNER)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            yield
            with suppress(BlockingIOError):
                self.heard.append(os.read(fd, 100))
        finally:
            os.close(fd)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                other, _ = listener.accept()
            except OSError:
                return
            with other:
                self.heard.append(other.recv(100))
                other.sendall(ANSWER.encode())
