"""Sessions in the store: which there are, which process has each, and in what state."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from math import inf
from pathlib import Path
from typing import Literal

from orchestrator.domain import Frozen
from orchestrator.store.runs import Store

SessionState = Literal[
    "running",  # a call is under way
    "ready",  # the CLI waits for the next one
    "resting",  # the container runs, the CLI has ended
    "stopped",  # only its files are there
]

PROJECT_DIGITS = 10
"""Of the digest of a project's path, in what the engine knows a session by."""

_SESSION_COLUMNS = (
    "project, agent, caller, name, kept, state, owner, conversation, runs, created, used, expires, "
    "wanted"
)
_SELECT = f"SELECT {_SESSION_COLUMNS} FROM sessions"  # noqa: S608 our own text
_WHERE = "WHERE project = ? AND agent = ? AND caller = ? AND name = ?"


class SessionKey(Frozen):
    """What tells one session from another."""

    project: str = ""
    """As a task has it; "" for a session from before there were projects."""
    agent: str
    caller: str
    name: str = "default"

    @property
    def text(self) -> str:
        """What people call it, in its project."""
        return f"{self.agent}/{self.caller}/{self.name}"

    @property
    def kept(self) -> str:
        """What the engine knows a new session by; it says nothing of the project's path."""
        digest = hashlib.sha256(self.project.encode()).hexdigest()[:PROJECT_DIGITS]
        return f"{digest}/{self.text}" if self.project else self.text


class SessionRow(Frozen):
    """One session."""

    key: SessionKey
    kept: str
    """What the engine knows it by, whatever project has it now."""
    state: SessionState
    owner: str
    """The orchestrator process that has it, or had it last."""
    conversation: str
    """What the CLI calls the conversation; empty before the first call."""
    runs: int
    created: float
    used: float
    expires: float
    wanted: bool = False
    """Another orchestrator waits for it."""


class SessionRows:
    """Reads and writes sessions."""

    def __init__(self, store: Store, owner: str) -> None:
        self._database = store.database
        self._owner = owner

    async def all(self) -> tuple[SessionRow, ...]:
        rows = await self._database.select(f"{_SELECT} ORDER BY used DESC")
        return tuple(map(_row, rows))

    async def get(self, key: SessionKey) -> SessionRow | None:
        rows = await self._database.select(f"{_SELECT} {_WHERE}", *_values(key))
        return _row(rows[0]) if rows else None

    async def take(self, key: SessionKey, expire_seconds: float) -> SessionRow:
        """Note that this process has the session and uses it; add it if there is none."""
        now = time.time()
        rows = await self._database.select(
            "INSERT INTO sessions (project, agent, caller, name, kept, state, owner, conversation, "  # noqa: S608 our own text
            "runs, created, used, expires) VALUES (?, ?, ?, ?, ?, 'running', ?, '', 0, ?, ?, ?) "
            "ON CONFLICT (project, agent, caller, name) DO UPDATE SET state = 'running', "
            "owner = excluded.owner, used = excluded.used, expires = excluded.expires, wanted = 0 "
            f"RETURNING {_SESSION_COLUMNS}",
            *_values(key),
            key.kept,
            self._owner,
            now,
            now,
            now + expire_seconds,
        )
        return _row(rows[0])

    async def kept(self, key: SessionKey) -> str:
        """What the engine knows a session by, or would."""
        row = await self.get(key)
        return key.kept if row is None else row.kept

    async def adopt(self, key: SessionKey) -> bool:
        """Have a project take over the session of before there were projects that has the same
        agent, caller and name; False if there is none, or the project has one of its own.
        """
        changed = await self._database.write(
            f"UPDATE OR IGNORE sessions SET project = ? {_WHERE}",  # noqa: S608 our own text
            key.project,
            *_values(_unclaimed(key)),
        )
        return changed == 1

    async def unclaimed(self, key: SessionKey) -> SessionRow | None:
        """The session of before there were projects that a project could take over for this key."""
        return await self.get(_unclaimed(key)) if key.project else None

    async def was_made_in(self, key: SessionKey) -> bool:
        """Whether the record proves that the session of before there were projects is this
        project's: its runs were shown directories of this project, and of no other place.
        """
        rows = await self._database.select(
            "SELECT json_extract(task, '$.workspace') AS shown FROM runs WHERE project = '' "
            "AND agent = ? AND caller = ? AND json_extract(task, '$.session') = ?",
            key.agent,
            key.caller,
            key.name,
        )
        shown = [Path(row["shown"]) for row in rows if row["shown"]]
        return bool(shown) and all(path.is_relative_to(key.project) for path in shown)

    async def set_conversation(self, key: SessionKey, conversation: str) -> None:
        await self._update_ours(key, "conversation = ?, runs = 0", conversation)

    async def used(self, key: SessionKey, state: SessionState, expire_seconds: float) -> None:
        """Note that a call has ended."""
        now = time.time()
        what = "state = ?, used = ?, expires = ?, runs = runs + 1"
        await self._update_ours(key, what, state, now, now + expire_seconds)

    async def set_state(self, key: SessionKey, state: SessionState) -> None:
        await self._update_ours(key, "state = ?", state)

    async def want(self, key: SessionKey, *, wanted: bool = True) -> None:
        """Ask the process that has it to let go of it between calls; or take that back."""
        await self._database.write(
            f"UPDATE sessions SET wanted = ? {_WHERE}",  # noqa: S608 our own text
            int(wanted),
            *_values(key),
        )

    async def remove(self, key: SessionKey, *, expired: bool = False) -> bool:
        """False if there was none; with `expired`, also if it has not expired, after all."""
        changed = await self._database.write(
            f"DELETE FROM sessions {_WHERE} AND expires < ?",  # noqa: S608 our own text
            *_values(key),
            time.time() if expired else inf,
        )
        return changed > 0

    async def _update_ours(self, key: SessionKey, what: str, *values: object) -> None:
        """Change a session, unless another process has taken it in the meantime."""
        await self._database.write(
            f"UPDATE sessions SET {what} {_WHERE} AND owner = ?",  # noqa: S608 our own text
            *values,
            *_values(key),
            self._owner,
        )


def _values(key: SessionKey) -> tuple[str, str, str, str]:
    return key.project, key.agent, key.caller, key.name


def _unclaimed(key: SessionKey) -> SessionKey:
    return key.model_copy(update={"project": ""})


def _row(row: sqlite3.Row) -> SessionRow:
    key = {name: row[name] for name in SessionKey.model_fields}
    rest = {name: row[name] for name in SessionRow.model_fields if name != "key"}
    return SessionRow.model_validate({"key": key, **rest})
