"""What an agent of others is called here. Pure."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from orchestrator.domain.names import check_name

SLUG_CHARS = 64


def slug(text: str) -> str:
    """As "code-reviewer" of "Code Reviewer"; nothing, if nothing is left of it."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:SLUG_CHARS].rstrip("-")


def agent_name(written: str, file_stem: str) -> str:
    """The name as it is written if that is one, else a slug of it or of the file's name, else one
    that is made up, always the same.
    """
    try:
        return check_name(written)
    except ValueError:
        digest = hashlib.sha256(f"{written}\0{file_stem}".encode()).hexdigest()
        return slug(written) or slug(file_stem) or f"agent-{digest[:8]}"
