"""A directory of agents on disk -> Catalog, and again when something changed."""

from __future__ import annotations

import json
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from orchestrator.catalog.agent_file import CheckSchema, ParsedAgent, any_schema, parse_agent
from orchestrator.catalog.document import FileRefused
from orchestrator.catalog.foreign.dialects import stem
from orchestrator.catalog.foreign.names import agent_name
from orchestrator.catalog.foreign.notes import Note
from orchestrator.catalog.foreign.reading import (
    ForeignAgent,
    ForeignMistake,
    NoAgent,
    read_foreign,
)
from orchestrator.catalog.listing import AGENT_FILE, NO_AGENTS, AgentPlaces, holds
from orchestrator.catalog.problems import Problem, Problems, Remark, did_you_mean
from orchestrator.catalog.server_file import parse_lock, parse_server
from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.tool_lock import ToolLock
from orchestrator.domain.tool_server import SERVER_NAME, SERVERS, ToolServer
from orchestrator.errors import (
    AgentInvalid,
    AgentNotFound,
    OperatorError,
    ServerInvalid,
    ServerNotFound,
)
from orchestrator.plain_yaml import Loc

LOCK_FILE = "tools.lock.json"

MISNAMED_SERVERS = frozenset((SERVER_NAME, "server.yml", "server.json", "servers.yaml"))
"""Names of a folder's file that its author took for server.yaml, in small letters."""

AGENT_FILE_BYTES = 1024 * 1024
"""The longest file that is read."""

LOCK_FILE_BYTES = 4 * 1024 * 1024
"""The same of a lock: servers with a hundred tools have half of that."""

SETTLED_NS = 2_000_000_000
"""A file is read again until it is so old: two writes can share one tick of its clock."""


class BrokenAgent(Frozen):
    """A folder whose agent.md is not one, or a file of others that cannot be used, and why."""

    name: str
    path: Path
    problems: tuple[Problem, ...]

    def error(self) -> AgentInvalid:
        return AgentInvalid(
            f"agent {self.name!r} cannot be used:\n" + "\n".join(map(str, self.problems))
        )


class KnownServer(Frozen):
    """A server that agents may use, and what it was pinned with."""

    server: ToolServer
    path: Path
    """Of its server.yaml."""
    lock: ToolLock | None = None
    problems: tuple[Problem, ...] = ()
    """Of the lock: why there is none, though there is a file."""

    @property
    def tool_names(self) -> tuple[str, ...] | None:
        return None if self.lock is None else tuple(tool.name for tool in self.lock.tools)


class BrokenServer(Frozen):
    """A folder whose server.yaml is not one, and why."""

    name: str
    path: Path
    problems: tuple[Problem, ...]

    def error(self) -> ServerInvalid:
        return ServerInvalid(
            f"server {self.name!r} cannot be used:\n" + "\n".join(map(str, self.problems))
        )


class Catalog(Frozen):
    """All agents of a directory, by name, and the folders that are none because of a mistake; the
    same of servers.
    """

    agents: dict[str, AgentSpec] = {}
    broken: tuple[BrokenAgent, ...] = ()
    files: dict[str, Path] = {}
    """Where each agent is written: its agent.md, or a file of others."""
    notes: tuple[Note, ...] = ()
    """What of files of others counts differently here, or not at all."""
    warnings: dict[str, tuple[Problem, ...]] = {}
    """By agent: what is probably not meant, though it can run."""
    servers: dict[str, KnownServer] = {}
    broken_servers: tuple[BrokenServer, ...] = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What keeps agents from being used."""
        return tuple(problem for broken in self.broken for problem in broken.problems)

    @property
    def doubts(self) -> tuple[Problem, ...]:
        """All warnings, and what of files of others does not count."""
        warnings = (problem for found in self.warnings.values() for problem in found)
        return (*self.notes, *warnings)

    @property
    def tool_names(self) -> dict[str, tuple[str, ...] | None]:
        """What the tools of each server are called; None of one that was never pinned."""
        return {name: known.tool_names for name, known in self.servers.items()}

    def server(self, name: str) -> KnownServer:
        """The server of that name; ServerInvalid if it is broken, ServerNotFound if it is none."""
        if name in self.servers:
            return self.servers[name]
        for broken in self.broken_servers:
            if broken.name == name:
                raise broken.error()
        guess = did_you_mean(name, self.servers)
        raise ServerNotFound(
            f"no server {name!r}; known: {', '.join(self.servers) or 'none'}"
            + (f" (did you mean {guess!r}?)" if guess else "")
        )

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


CheckAgent = Callable[[AgentSpec, Catalog], Iterable[Remark]]
"""What there is to say of an agent that no look at its file alone tells; of all agents of its
directory as well."""


def no_remarks(agent: AgentSpec, catalog: Catalog) -> tuple[Remark, ...]:  # noqa: ARG001 a check
    """The check that finds nothing."""
    return ()


def load_agent(folder: Path, check_schema: CheckSchema = any_schema) -> AgentSpec:
    """The agent in a folder; AgentInvalid with everything that is wrong with it."""
    found = _read_agent(folder, check_schema).found
    if isinstance(found, AgentSpec):
        return found
    assert isinstance(found, BrokenAgent)  # noqa: S101 it is one of the two
    raise found.error()


def read_other_file(
    path: Path, text_of: Callable[[str], str] | None = None
) -> ForeignAgent | ForeignMistake | NoAgent:
    """What a file of others holds. It raises nothing."""
    try:
        return read_foreign(text_of(path.name) if text_of else file_text(path), path)
    except FileRefused as exc:
        problem = Problem(path=path, line=1, field="", message=str(exc))
        return ForeignMistake(agent_name(stem(path), stem(path)), (problem,))


def load_catalog(
    agents_dir: Path,
    check_schema: CheckSchema = any_schema,
    check_agent: CheckAgent = no_remarks,
) -> Catalog:
    """All agents below a directory. A directory that is not there has none."""
    return AgentsDir(agents_dir, check_schema, check_agent).current()


def write_lock(known: KnownServer, lock: ToolLock) -> Path:
    """Write down what a server was pinned with, all of it or nothing; where that is. Blocks."""
    path = known.path.with_name(LOCK_FILE)
    new = path.with_name(f".{LOCK_FILE}.{secrets.token_hex(4)}")
    text = json.dumps(lock.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as exc:
        new.unlink(missing_ok=True)
        raise OperatorError(f"{path} cannot be written: {exc.strerror}") from exc
    return path


class AgentsDir:
    """A directory of agents, read again when it changed. Not for several threads at once."""

    def __init__(
        self,
        path: Path,
        check_schema: CheckSchema = any_schema,
        check_agent: CheckAgent = no_remarks,
    ) -> None:
        self.path = path
        self.version = 0
        """Counts the changes that `current` has seen: when it grows, clients are to be told."""
        self._check_schema = check_schema
        self._check_agent = check_agent
        self._readings: dict[Path, _Reading] = {}
        self._server_readings: dict[Path, _Reading] = {}
        self._unchecked = self._catalog = Catalog()
        self._basis: tuple[_Reading, ...] = ()
        """What the catalog was made of."""

    def current(self) -> Catalog:
        """What is there now: the same object as before, unless it says something else.

        It raises nothing: a directory that cannot be read is one broken agent.
        """
        try:
            places = AgentPlaces(self.path)
        except OSError as exc:
            agents = Catalog(broken=(_unreadable(self.path, exc),))
        else:
            read = partial(_read_agent, check_schema=self._check_schema)
            own = self._read_again(places.folders, read)
            others = self._read_again(places.files, _read_other)
            self._readings = {**own, **others}
            misnamed = map(_misnamed, places.misnamed)
            agents = _agents_of(own, others, places.notes, misnamed)
        servers = self._current_servers()
        catalog = agents.model_copy(
            update={
                "servers": {s.server.name: s for s in servers if isinstance(s, KnownServer)},
                "broken_servers": tuple(s for s in servers if isinstance(s, BrokenServer)),
            }
        )
        basis = (*self._readings.values(), *self._server_readings.values())
        if catalog == self._unchecked and _same(basis, self._basis):
            return self._catalog
        self._unchecked, self._basis = catalog, basis
        catalog = self._checked(catalog)
        if catalog != self._catalog:
            self._catalog = catalog
            self.version += 1
        return self._catalog

    def problem(self, name: str, loc: Loc, message: str) -> Problem:
        """Something to say of an agent of the catalog, where its file has that."""
        return self._places()[self._catalog.files[name]].at(loc, message)

    def _places(self) -> dict[Path, Problems]:
        known = (reading.places for reading in self._readings.values())
        return {places.path: places for places in known if places is not None}

    def remarks(self, agent: AgentSpec) -> tuple[Remark, ...]:
        """What there would be to say of an agent that is not there yet."""
        return tuple(self._check_agent(agent, self.current()))

    def _checked(self, catalog: Catalog) -> Catalog:
        """The same, without the agents that cannot be used after all, and with warnings."""
        read = self._places()
        broken, warnings = [*catalog.broken], {}
        good: dict[str, AgentSpec] = {}
        for name, agent in catalog.agents.items():
            places = read[catalog.files[name]]
            remarks = list(self._check_agent(agent, catalog))
            wrong = _placed(places, [remark for remark in remarks if remark.stops])
            if wrong:
                broken.append(BrokenAgent(name=name, path=places.path, problems=wrong))
                continue
            good[name] = agent
            if doubts := _placed(places, remarks):
                warnings[name] = doubts
        in_order = tuple(sorted(broken, key=lambda each: each.name))
        return catalog.model_copy(update={"agents": good, "broken": in_order, "warnings": warnings})

    def _read_again(
        self, paths: Iterable[Path], read: Callable[[Path], _Reading]
    ) -> dict[Path, _Reading]:
        return {path: _still_valid(self._readings.get(path)) or read(path) for path in paths}

    def _current_servers(self) -> Sequence[object]:
        path = self.path / SERVERS
        try:
            folders = _server_folders(path)
        except OSError as exc:
            broken = _unreadable(path, exc)
            return [BrokenServer(name=SERVERS, path=path, problems=broken.problems)]
        known = self._server_readings
        self._server_readings = {
            folder: _still_valid(known.get(folder)) or _read_server(folder) for folder in folders
        }
        return [reading.found for reading in self._server_readings.values()]


class _Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class _Reading(NamedTuple):
    """What a folder or a file held, and the files that it was read from as they were before."""

    found: AgentSpec | BrokenAgent | KnownServer | BrokenServer | None
    """None for a file of others that is no agent."""
    stamps: dict[Path, _Stamp | None]
    settled: bool
    notes: tuple[Note, ...] = ()
    places: Problems | None = None
    """Where the file of an agent says what; None of a broken one."""


def _placed(places: Problems, remarks: Iterable[Remark]) -> tuple[Problem, ...]:
    found = [places.at(remark.loc, remark.message) for remark in remarks]
    return tuple(sorted(dict.fromkeys(found), key=lambda problem: problem.line))


def _same(one: Sequence[object], other: Sequence[object]) -> bool:
    """Whether these are the very same objects."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _still_valid(reading: _Reading | None) -> _Reading | None:
    if reading is None or not reading.settled:
        return None
    now = {path: _stamp(path) for path in reading.stamps}
    return reading if now == reading.stamps else None


def _agents_of(
    own: Mapping[Path, _Reading],
    others: Mapping[Path, _Reading],
    notes: Iterable[Note],
    misnamed: Iterable[BrokenAgent],
) -> Catalog:
    """Folders with an agent.md come first, broken ones too: no file of others replaces them."""
    agents: dict[str, AgentSpec] = {}
    broken = list(misnamed)
    files: dict[str, Path] = {}
    told = list(notes)
    for path, reading in (*own.items(), *others.items()):
        match reading.found:
            case AgentSpec(name=name) if path in others and name in NO_AGENTS:
                told.append(_not_read(path, f"is called {name}, as no agent can be; rename it"))
                continue
            case AgentSpec(name=name) if path in others and name in files:
                told.append(_not_read(path, f"is not read: {files[name]} is called {name} too"))
                continue
            case AgentSpec() as agent:
                agents[agent.name] = agent
                files[agent.name] = path if path in others else path / AGENT_FILE
            case BrokenAgent() as agent:
                broken.append(agent)
                if path in own:
                    files[agent.name] = agent.path
        told += reading.notes
    return Catalog(
        agents=dict(sorted(agents.items())),
        broken=tuple(broken),
        files={name: files[name] for name in sorted(agents)},
        notes=tuple(told),
    )


def _misnamed(path: Path) -> BrokenAgent:
    message = f"an agent's file is called {AGENT_FILE}; rename {path.name} to that"
    problem = Problem(path=path, line=0, field="", message=message)
    return BrokenAgent(name=path.parent.name, path=path, problems=(problem,))


def _not_read(path: Path, message: str) -> Note:
    return Note(path=path, line=1, field="name", message=message, kind="passed over")


def _server_folders(servers: Path) -> list[Path]:
    try:
        entries = sorted(servers.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        folder
        for folder in entries
        if not folder.name.startswith(".")
        and (holds(folder, SERVER_NAME) or _misnamed_server(folder))
    ]


def _misnamed_server(folder: Path) -> str:
    """What a folder calls its server.yaml instead; "" if it has one, or nothing like it."""
    if holds(folder, SERVER_NAME):
        return ""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ""
    return next((name for name in names if name.lower() in MISNAMED_SERVERS), "")


def _unreadable(agents_dir: Path, exc: OSError) -> BrokenAgent:
    message = f"cannot be read: {exc.strerror}"
    problem = Problem(path=agents_dir, line=0, field="", message=message)
    return BrokenAgent(name=agents_dir.name, path=agents_dir, problems=(problem,))


class _Folder:
    """Reads the files of one folder, and remembers what they were like before."""

    def __init__(self, folder: Path, whose: str) -> None:
        self.folder = folder
        self._whose = whose
        self.name = folder.resolve().name if folder.name in ("", "..") else folder.name
        self.stamps: dict[Path, _Stamp | None] = {}
        self._began_ns = time.time_ns()

    def text(self, name: str, most: int = AGENT_FILE_BYTES) -> str:
        path = self.folder / name
        self.stamps[path] = _stamp(path)
        return file_text(path, most)

    def beside(self, name: str) -> tuple[Path, str]:
        path = self.folder / name
        self.stamps[path] = _stamp(path)
        if not is_inside(path, self.folder):
            raise FileRefused(f"is not in the {self._whose}'s folder; put it there")
        return path, file_text(path)

    def problem(self, name: str, exc: FileRefused) -> tuple[Problem, ...]:
        return (Problem(path=self.folder / name, line=1, field="", message=str(exc)),)

    def reading(
        self,
        found: AgentSpec | BrokenAgent | KnownServer | BrokenServer | None,
        notes: tuple[Note, ...] = (),
        places: Problems | None = None,
    ) -> _Reading:
        times = [max(s.modified_ns, s.changed_ns) for s in self.stamps.values() if s]
        settled = max(times, default=0) + SETTLED_NS < self._began_ns
        return _Reading(found, self.stamps, settled, notes, places)


def _read_agent(folder: Path, check_schema: CheckSchema) -> _Reading:
    reader, path = _Folder(folder, "agent"), folder / AGENT_FILE
    parsed: ParsedAgent | tuple[Problem, ...]
    try:
        text = reader.text(AGENT_FILE)
    except FileRefused as exc:
        parsed = reader.problem(AGENT_FILE, exc)
    else:
        parsed = parse_agent(
            text,
            folder=reader.name,
            path=path,
            read_beside=reader.beside,
            check_schema=check_schema,
        )
    if isinstance(parsed, tuple):
        return reader.reading(BrokenAgent(name=reader.name, path=path, problems=parsed))
    for name in parsed.agent.files:  # looked at by a check, which is to look again when they change
        reader.stamps[folder / name] = _stamp(folder / name)
    return reader.reading(parsed.agent, places=parsed.places)


def _read_other(path: Path) -> _Reading:
    reader = _Folder(path.parent, "agent")
    match read_other_file(path, reader.text):
        case ForeignAgent(agent=agent, notes=notes, places=places):
            return reader.reading(agent, notes, places)
        case NoAgent(note=note):
            return reader.reading(None, (note,) if note else ())
        case mistake:
            broken = BrokenAgent(name=mistake.name, path=path, problems=mistake.problems)
            return reader.reading(broken)


def _read_server(folder: Path) -> _Reading:
    reader, path = _Folder(folder, "server"), folder / SERVER_NAME
    parsed: ToolServer | tuple[Problem, ...]
    if other := _misnamed_server(folder):
        message = f"a server's file is called {SERVER_NAME}; rename {other} to that"
        problem = Problem(path=folder / other, line=0, field="", message=message)
        broken = BrokenServer(name=reader.name, path=folder / other, problems=(problem,))
        return _Reading(broken, {}, settled=False)
    try:
        text = reader.text(SERVER_NAME)
    except FileRefused as exc:
        parsed = reader.problem(SERVER_NAME, exc)
    else:
        parsed = parse_server(text, folder=reader.name, path=path, read_beside=reader.beside)
    if isinstance(parsed, tuple):
        return reader.reading(BrokenServer(name=reader.name, path=path, problems=parsed))
    lock: ToolLock | tuple[Problem, ...] | None = None
    try:
        lock = parse_lock(reader.text(LOCK_FILE, LOCK_FILE_BYTES), folder / LOCK_FILE)
    except FileRefused as exc:
        if holds(folder, LOCK_FILE):
            lock = reader.problem(LOCK_FILE, exc)
    if isinstance(lock, tuple):
        return reader.reading(KnownServer(server=parsed, path=path, problems=lock))
    return reader.reading(KnownServer(server=parsed, path=path, lock=lock))


def _stamp(path: Path) -> _Stamp | None:
    try:
        seen = path.stat()
    except (OSError, ValueError):
        return None
    return _Stamp(seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL in the name
        return False


def file_text(path: Path, most: int = AGENT_FILE_BYTES) -> str:
    """What a file holds; FileRefused if that is not a text of reasonable length."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
            raise FileRefused("is not a regular file")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise FileRefused(f"cannot be read: {reason}") from exc
    if len(data) > most:
        raise FileRefused(f"is longer than {most // 1024} KiB; make it shorter")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = 1 + data.count(b"\n", 0, exc.start)
        raise FileRefused(f"is not UTF-8 text (line {line}); save it as UTF-8") from exc
    return text.replace("\r\n", "\n").replace("\r", "\n")
