"""The files of the page, as a browser gets them: read once, packed once, under a name that changes
with any of them, so that it may keep them for ever.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"

MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}

PAGE_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
"""What the page may do: its own scripts and styles, and requests to its own server. No text becomes
HTML or a script, whoever wrote it (Trusted Types)."""

SAFE_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {what}" for name, what in PAGE_POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

FOR_EVER = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    """One file, and the same packed."""

    media_type: str
    body: bytes
    packed: bytes
    etag: str


class PageFiles(NamedTuple):
    """All files of the page. `digest` changes with any of them."""

    digest: str
    start: Asset
    """What `/` answers: it names all the others."""
    files: dict[str, Asset]


@cache
def page_files() -> PageFiles:
    """The files that travel with the package. Blocks, the first time."""
    paths = sorted(path for path in STATIC.rglob("*") if path.suffix in MEDIA_TYPES)
    bodies = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in paths}
    seen = hashlib.sha256()
    for name, body in bodies.items():
        seen.update(f"{name}\0{len(body)}\0".encode() + body)
    digest = seen.hexdigest()[:16]
    index = bodies.pop("index.html").decode()
    modules = [name for name in bodies if name.endswith(".js") and name != "page.js"]
    links = [f'    <link rel="modulepreload" href="/assets/{digest}/{name}">' for name in modules]
    index = index.replace("{page}", digest).replace("{assets}", f"/assets/{digest}")
    page = index.replace("{preloads}", "\n".join(links)).encode()
    files = {name: _asset(name, body) for name, body in bodies.items()}
    return PageFiles(digest, _asset("index.html", page), files)


def current_page() -> bytes:
    """Which page this server has, for one that was loaded from an earlier one."""
    return json.dumps({"page": page_files().digest}).encode()


def _asset(name: str, body: bytes) -> Asset:
    packed = gzip.compress(body, mtime=0)
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    return Asset(MEDIA_TYPES[Path(name).suffix], body, packed, etag)
