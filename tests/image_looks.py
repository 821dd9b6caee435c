"""What was found of images, handed on from test to test.

An orchestrator looks into an image once and remembers that in its state directory. Each test has a
state directory of its own, and such a look takes as long as a start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOKS: dict[str, str] = {}
"""Name -> text, of files in `texts/` of state directories; a name is the digest of its text."""


@contextmanager
def remembered_looks(state_dir: Path) -> Iterator[None]:
    """In this block a state directory knows what those before it have found."""
    texts = state_dir / "texts"
    texts.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, text in _LOOKS.items():
        (texts / name).write_text(text)
    yield
    for path in texts.glob("*"):
        if "-" not in path.name:  # one that is being written
            _LOOKS[path.name] = path.read_text()
