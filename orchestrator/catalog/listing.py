"""What of an agents directory may be an agent: folders with agent.md, and files of others."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from orchestrator.catalog.foreign.dialects import PLACES
from orchestrator.catalog.foreign.notes import Note
from orchestrator.domain.tool_server import SERVERS

AGENT_FILE = "agent.md"

SCRIPT_FILE = "script.yaml"
"""What plays the model; of an agent that is a single file, in a folder of the agent's name."""

MISNAMED = frozenset((AGENT_FILE, "agent.markdown", "agent.mdx", "agent.txt", "agents.md"))
"""Names of a folder's file that its author took for agent.md, in small letters."""

MAIN_AGENT = "main"
"""No agent can run the main agent."""

NO_AGENTS = (MAIN_AGENT, SERVERS)
"""Folders that hold no agents: the main agent's, and that of servers."""

MOST_ENTRIES = 5000
"""Of all folders together: an agents directory of / is not a walk through the disk."""

MOST_FOLDERS_DEEP = 4
"""Folders in folders that hold files of others."""


NO_AGENT_IN_IT = (
    "no folder in it holds an agent.md; an agent is a folder with one, and `orchestrator init` "
    "makes an example"
)


class AgentPlaces:
    """The paths to read. Names are looked at, and nothing is opened.

    OSError if the directory is there and cannot be read; one that is not there holds nothing.
    """

    def __init__(self, agents_dir: Path) -> None:
        self.folders: list[Path] = []
        """Those that hold an agent.md."""
        self.files: list[Path] = []
        """Those that may be agents of others; none that a link leads to from elsewhere."""
        self.misnamed: list[Path] = []
        """Files that were meant to be a folder's agent.md."""
        self.notes: list[Note] = []
        """What is not looked at, and why."""
        self._bare: list[Path] = []
        """Folders that hold no agent at all."""
        self._root = os.path.realpath(agents_dir)
        self._left = MOST_ENTRIES
        self._look(agents_dir, 0)
        if self.folders or self.files or self.misnamed:
            for folder in self._bare:
                if self.files and holds(folder, SCRIPT_FILE):  # which plays the model of one
                    continue
                self._note(folder, "holds no agent.md; write one, or move the folder elsewhere")
        elif self._bare:  # of a directory that is none of agents, one thing is to be said
            near = [note for note in self.notes if note.path.parent == agents_dir]
            self.notes = [note for note in near if note.path.suffix in (".md", ".yaml", ".yml")]
            self._note(agents_dir, NO_AGENT_IN_IT)

    def _look(self, folder: Path, depth: int) -> None:
        try:
            paths = sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as exc:
            if depth == 0:
                raise
            self._note(folder, f"cannot be read: {exc.strerror}")
            return
        for path in paths:
            if self._left == 0:
                return
            self._left -= 1
            if self._left == 0:
                self._note(path, f"is the last of {MOST_ENTRIES} names; no more are looked at")
            if not path.name.startswith(".") and not (depth == 0 and path.name in NO_AGENTS):
                self._sort(path, depth)

    def _sort(self, path: Path, depth: int) -> None:
        if holds(path, AGENT_FILE):
            if depth == 0:
                self.folders.append(path)
            else:
                self._note(path, "holds an agent.md, but not directly in the agents directory")
        elif _is_directory(path):
            if path.is_symlink():
                self._note(path, "is a link to a folder without an agent.md, and is not followed")
            elif depth == MOST_FOLDERS_DEEP:
                self._note(path, f"is more than {MOST_FOLDERS_DEEP} folders deep; not looked into")
            else:
                before = self._count()
                self._look(path, depth + 1)
                if depth == 0 and self._count() == before:
                    self._bare.append(path)
        elif depth == 1 and path.name.lower() in MISNAMED:
            self.misnamed.append(path)
        elif path.name == AGENT_FILE:
            self._note(path, "is read only in a folder of its own; move it into one")
        elif path.suffix == ".md" or (depth == 0 and path.suffix == ".yaml"):
            if os.path.realpath(path).startswith(self._root + os.sep):
                self.files.append(path)
            else:
                self._note(path, "is a link out of the agents directory, and is not followed")
        elif depth == 0 and path.suffix == ".yml":
            self._note(path, "is not read, as its name does not end in .yaml; rename it")

    def _count(self) -> int:
        return len(self.folders) + len(self.files) + len(self.misnamed) + len(self.notes)

    def _note(self, path: Path, message: str) -> None:
        self.notes.append(Note(path=path, line=0, field="", message=message, kind="passed over"))


def agents_of_others(project: Path) -> str:
    """A sentence about agents that other programs have in a project, and how to use them; nothing
    if there are none. Names are counted, and nothing is opened.
    """
    said = []
    for place, dialect in PLACES.items():
        try:
            count = len(AgentPlaces(project / place).files)
        except OSError:
            continue
        if count:
            files = f"{count} file{'' if count == 1 else 's'}"
            said.append(
                f"{place} holds {files} for {dialect.program}: use them as they are with "
                f"--agents-dir {place}, or make agents of ours of them with `orchestrator import "
                f"{place}`"
            )
    return "; ".join(said)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def holds(folder: Path, file: str) -> bool:
    """Whether a folder has a file of this name, or something that we may not see."""
    try:
        (folder / file).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:  # reading it will say what is wrong
        return exc.errno != errno.ELOOP
    return True
