"""The person at the page: one-time codes, and the cookies that they are exchanged for.

A program that can write here is the operator's, since only the operator can use the state
directory. What is kept of a code or a cookie is its digest.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time

from orchestrator.store.database import Database

CODE_SECONDS = 120
"""For which a link with a code can be opened."""

COOKIE_SECONDS = 12 * 3600
"""For which a browser stays known."""


class PageLogins:
    """Codes and cookies of one project's page."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def new_code(self) -> str:
        """A code that can be exchanged once, soon."""
        return await self._database.atomically(lambda db: self._new(db, "code", CODE_SECONDS))

    async def redeem(self, code: str) -> str | None:
        """The cookie that a code is worth; None if it is unknown, used or old."""

        def exchange(db: sqlite3.Connection) -> str | None:
            sql = "DELETE FROM page_logins WHERE sha256 = ? AND kind = 'code' AND project = ?"
            now = time.time()
            db.execute("DELETE FROM page_logins WHERE expires < ?", (now,))
            if db.execute(sql, (_digest(code), self._project)).rowcount != 1:
                return None
            return self._new(db, "cookie", COOKIE_SECONDS)

        return await self._database.atomically(exchange)

    async def knows(self, cookie: str) -> bool:
        """Whether a cookie is one of ours, and not too old."""
        rows = await self._database.select(
            "SELECT 1 FROM page_logins WHERE sha256 = ? AND kind = 'cookie' AND project = ? "
            "AND expires >= ?",
            _digest(cookie),
            self._project,
            time.time(),
        )
        return bool(rows)

    async def forget(self, cookie: str) -> None:
        await self._database.write("DELETE FROM page_logins WHERE sha256 = ?", _digest(cookie))

    def _new(self, db: sqlite3.Connection, kind: str, seconds: float) -> str:
        made = secrets.token_urlsafe(32)
        row = (_digest(made), kind, self._project, time.time() + seconds)
        sql = "INSERT INTO page_logins (sha256, kind, project, expires) VALUES (?, ?, ?, ?)"
        db.execute(sql, row)
        return made


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
