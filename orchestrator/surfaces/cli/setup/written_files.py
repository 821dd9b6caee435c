"""Files that commands write into a project: never over something else, unless that is wanted."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path


def write_file(path: Path, content: str, *, over: bool = False) -> None:
    """Write a file, and the folders above it. FileExistsError if there is one, unless it may be
    written `over`; OperatorError if it cannot be written.
    """
    from orchestrator.errors import OperatorError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not over:
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
            return
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with beside.open("x", encoding="utf-8") as file:
                file.write(content)
            beside.replace(path)  # the whole of it or nothing; a link is replaced, not followed
        finally:
            with suppress(FileNotFoundError):
                beside.unlink()
    except FileExistsError:
        raise
    except OSError as exc:
        raise OperatorError(f"{path} cannot be written: {exc.strerror}") from exc


def agent_path(agents_dir: Path, name: str) -> Path:
    """Where an agent's agent.md goes; OperatorError if it cannot be called so, or a link leads
    elsewhere from there.
    """
    from orchestrator.catalog.foreign.names import slug
    from orchestrator.catalog.listing import NO_AGENTS
    from orchestrator.domain.names import check_name
    from orchestrator.errors import OperatorError

    try:
        check_name(name)
    except ValueError as exc:
        hint = f"; {slug(name)} would do" if slug(name) else ""
        raise OperatorError(f"the name of an agent {exc}{hint}") from exc
    if name in NO_AGENTS:
        raise OperatorError(f"no agent can be called {name}; take another name")
    folder = agents_dir / name
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OperatorError(f"{folder} is not a folder; remove it, or take another name")
    return folder / "agent.md"
