"""What agents, callers, secrets, sessions and runtimes may be called. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_name(text: str) -> str:
    """The same text; ValueError, in words that go on after it, if it is no name."""
    if not _NAME.fullmatch(text):
        raise ValueError(
            'must be letters, digits, "-", "_" and ".", beginning with a letter or a digit, '
            "64 at most"
        )
    return text


Name = Annotated[
    str,
    AfterValidator(check_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]
"""Letters, digits, "-", "_" and ".", as a folder or a caller is called."""
