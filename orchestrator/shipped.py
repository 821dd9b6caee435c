"""Files that travel with the package: Dockerfiles, the demo's agents, the reference pages.

In a checkout they stand where a reader of the repository looks for them; a wheel has those from
outside the package in folders of its own (pyproject.toml, force-include).
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent


def shipped_agents() -> Path:
    """A folder for each agent that comes with us, and README.md, which has every field."""
    return _installed_or_beside("agents")


def shipped_images() -> Path:
    """The Dockerfiles."""
    return _installed_or_beside("images")


def reference_pages() -> dict[str, Path]:
    """What can be looked up -> the page that has it."""
    return {
        "agent": shipped_agents() / "README.md",
        "servers": shipped_agents() / "servers" / "README.md",
        "foreign": PACKAGE / "catalog" / "foreign" / "README.md",
        "commands": PACKAGE / "surfaces" / "cli" / "README.md",
        "settings": PACKAGE / "SETTINGS.md",
        "mcp": PACKAGE / "surfaces" / "mcp" / "README.md",
        "api": PACKAGE / "surfaces" / "http" / "README.md",
        "page": PACKAGE / "surfaces" / "web" / "README.md",
        "gateway": PACKAGE / "surfaces" / "mcp" / "gateway" / "README.md",
        "connect": PACKAGE / "surfaces" / "connect" / "README.md",
        "telemetry": PACKAGE / "telemetry" / "README.md",
        "install": PACKAGE / "INSTALL.md",
        "images": shipped_images() / "README.md",
        "http": shipped_images() / "orchestrator" / "README.md",
    }


def _installed_or_beside(name: str) -> Path:
    installed = PACKAGE / f"_{name}"
    return installed if installed.is_dir() else PACKAGE.parent / name
