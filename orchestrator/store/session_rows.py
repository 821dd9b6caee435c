"""Sessions in the store: which there are, which process has each, and in what state."""

from __future__ import annotations

import sqlite3
import time
from math import inf
from typing import Literal

from orchestrator.domain import Frozen
from orchestrator.store.runs import Store

SessionState = Literal[
    "running",  # a call is under way
    "ready",  # the CLI waits for the next one
    "resting",  # the container runs, the CLI has ended
    "stopped",  # only its files are there
]

_SESSION_COLUMNS = (
    "agent, caller, name, state, owner, conversation, runs, created, used, expires, wanted"
)
_SELECT = f"SELECT {_SESSION_COLUMNS} FROM sessions"  # noqa: S608 our own text
_WHERE = "WHERE agent = ? AND caller = ? AND name = ?"


class SessionKey(Frozen):
    """What tells one session from another."""

    agent: str
    caller: str
    name: str = "default"

    @property
    def text(self) -> str:
        """The same as one word, for a container's label."""
        return f"{self.agent}/{self.caller}/{self.name}"


class SessionRow(Frozen):
    """One session."""

    key: SessionKey
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
            "INSERT INTO sessions (agent, caller, name, state, owner, conversation, runs, created, "  # noqa: S608 our own text
            "used, expires) VALUES (?, ?, ?, 'running', ?, '', 0, ?, ?, ?) "
            "ON CONFLICT (agent, caller, name) DO UPDATE SET state = 'running', "
            "owner = excluded.owner, used = excluded.used, expires = excluded.expires, wanted = 0 "
            f"RETURNING {_SESSION_COLUMNS}",
            *_values(key),
            self._owner,
            now,
            now,
            now + expire_seconds,
        )
        return _row(rows[0])

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


def _values(key: SessionKey) -> tuple[str, str, str]:
    return key.agent, key.caller, key.name


def _row(row: sqlite3.Row) -> SessionRow:
    key = {name: row[name] for name in SessionKey.model_fields}
    rest = {name: row[name] for name in SessionRow.model_fields if name != "key"}
    return SessionRow.model_validate({"key": key, **rest})
