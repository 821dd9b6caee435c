"""agents/*/agent.md on disk -> Catalog, and again when something changed."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import NamedTuple

from orchestrator.catalog.agent_file import CheckSchema, FileRefused, any_schema, parse_agent
from orchestrator.catalog.problems import Problem, did_you_mean
from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec
from orchestrator.errors import AgentInvalid, AgentNotFound

AGENT_FILE = "agent.md"

SKIPPED = "main"
"""The folder of the main agent, which no agent can run."""

AGENT_FILE_BYTES = 1024 * 1024
"""The longest file that is read."""

SETTLED_NS = 2_000_000_000
"""A file is read again until it is so old: two writes can share one tick of its clock."""


class BrokenAgent(Frozen):
    """A folder whose agent.md is not one, and why."""

    name: str
    path: Path
    problems: tuple[Problem, ...]

    def error(self) -> AgentInvalid:
        return AgentInvalid(
            f"agent {self.name!r} cannot be used:\n" + "\n".join(map(str, self.problems))
        )


class Catalog(Frozen):
    """All agents of a directory, by name, and the folders that are none because of a mistake."""

    agents: dict[str, AgentSpec] = {}
    broken: tuple[BrokenAgent, ...] = ()

    def agent(self, name: str) -> AgentSpec:
        """The agent of that name; AgentInvalid if it is broken, AgentNotFound if there is none."""
        if name in self.agents:
            return self.agents[name]
        for broken in self.broken:
            if broken.name == name:
                raise broken.error()
        guess = did_you_mean(name, self.agents)
        raise AgentNotFound(
            f"no agent {name!r}; known: {', '.join(self.agents) or 'none'}"
            + (f" (did you mean {guess!r}?)" if guess else "")
        )


def load_agent(folder: Path, check_schema: CheckSchema = any_schema) -> AgentSpec:
    """The agent in a folder; AgentInvalid with everything that is wrong with it."""
    reading = _read(folder, check_schema)
    if isinstance(reading.agent, BrokenAgent):
        raise reading.agent.error()
    return reading.agent


def load_catalog(agents_dir: Path, check_schema: CheckSchema = any_schema) -> Catalog:
    """All agents below a directory. A directory that is not there has none."""
    return AgentsDir(agents_dir, check_schema).current()


class AgentsDir:
    """A directory of agents, read again when it changed. Not for several threads at once."""

    def __init__(self, path: Path, check_schema: CheckSchema = any_schema) -> None:
        self.path = path
        self.version = 0
        """Counts the changes that `current` has seen: when it grows, clients are to be told."""
        self._check_schema = check_schema
        self._readings: dict[Path, _Reading] = {}
        self._catalog = Catalog()

    def current(self) -> Catalog:
        """What is there now: the same object as before, unless it says something else.

        It raises nothing: a directory that cannot be read is one broken agent.
        """
        try:
            folders = _folders(self.path)
        except OSError as exc:
            found: list[AgentSpec | BrokenAgent] = [_unreadable(self.path, exc)]
        else:
            self._readings = {
                folder: self._still_valid(folder) or _read(folder, self._check_schema)
                for folder in folders
            }
            found = [reading.agent for reading in self._readings.values()]
        catalog = Catalog(
            agents={agent.name: agent for agent in found if isinstance(agent, AgentSpec)},
            broken=tuple(agent for agent in found if isinstance(agent, BrokenAgent)),
        )
        if catalog != self._catalog:
            self._catalog = catalog
            self.version += 1
        return self._catalog

    def _still_valid(self, folder: Path) -> _Reading | None:
        reading = self._readings.get(folder)
        if reading is None or not reading.settled:
            return None
        now = {path: _stamp(path) for path in reading.stamps}
        return reading if now == reading.stamps else None


class _Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class _Reading(NamedTuple):
    """What a folder held, and the files that it was read from as they were before."""

    agent: AgentSpec | BrokenAgent
    stamps: dict[Path, _Stamp | None]
    settled: bool


def _folders(agents_dir: Path) -> list[Path]:
    try:
        entries = sorted(agents_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        folder
        for folder in entries
        if folder.name != SKIPPED and not folder.name.startswith(".") and _has_agent(folder)
    ]


def _unreadable(agents_dir: Path, exc: OSError) -> BrokenAgent:
    message = f"cannot be read: {exc.strerror}"
    problem = Problem(path=agents_dir, line=1, field="", message=message)
    return BrokenAgent(name=agents_dir.name, path=agents_dir, problems=(problem,))


def _has_agent(folder: Path) -> bool:
    try:
        (folder / AGENT_FILE).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # there is something that we may not see; reading it will say so
        return True
    return True


def _read(folder: Path, check_schema: CheckSchema) -> _Reading:
    began_ns = time.time_ns()
    path = folder / AGENT_FILE
    stamps = {path: _stamp(path)}

    def read_beside(name: str) -> tuple[Path, str]:
        beside = folder / name
        stamps[beside] = _stamp(beside)
        if not _inside(beside, folder):
            raise FileRefused("is not in the agent's folder; put it there")
        return beside, _text(beside)

    name = folder.resolve().name if folder.name in ("", "..") else folder.name
    try:
        text = _text(path)
    except FileRefused as exc:
        problem = Problem(path=path, line=1, field="", message=str(exc))
        parsed: AgentSpec | tuple[Problem, ...] = (problem,)
    else:
        parsed = parse_agent(
            text, folder=name, path=path, read_beside=read_beside, check_schema=check_schema
        )
    agent = (
        BrokenAgent(name=name, path=path, problems=parsed) if isinstance(parsed, tuple) else parsed
    )
    newest_ns = max((max(s.modified_ns, s.changed_ns) for s in stamps.values() if s), default=0)
    return _Reading(agent, stamps, settled=newest_ns + SETTLED_NS < began_ns)


def _stamp(path: Path) -> _Stamp | None:
    try:
        seen = path.stat()
    except (OSError, ValueError):
        return None
    return _Stamp(seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def _inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL in the name
        return False


def _text(path: Path) -> str:
    """What a file holds; FileRefused if that is not a text of reasonable length."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
            raise FileRefused("is not a regular file")
        with path.open("rb") as file:
            data = file.read(AGENT_FILE_BYTES + 1)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise FileRefused(f"cannot be read: {reason}") from exc
    if len(data) > AGENT_FILE_BYTES:
        raise FileRefused(f"is longer than {AGENT_FILE_BYTES // 1024} KiB; make it shorter")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = 1 + data.count(b"\n", 0, exc.start)
        raise FileRefused(f"is not UTF-8 text (line {line}); save it as UTF-8") from exc
    return text.replace("\r\n", "\n").replace("\r", "\n")
