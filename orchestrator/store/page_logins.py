"""The person at the page: one-time codes, and what they are exchanged for.

A program that can write here is the operator's, since only the operator can use the state
directory. What is kept of a code, or of a cookie with its key, is a digest.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from typing import NamedTuple

from orchestrator.store.database import Database

CODE_SECONDS = 120
"""For which a link with a code can be opened."""

COOKIE_SECONDS = 12 * 3600
"""For which a browser stays known."""


class PageLogin(NamedTuple):
    """What a browser is known by. Neither is worth anything without the other: a cookie is also
    sent to programs on other ports of the same host, and a key is in reach of scripts.
    """

    cookie: str
    key: str


class PageLogins:
    """Codes and logins of one project's page."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def new_code(self) -> str:
        """A code that can be exchanged once, soon."""
        code = secrets.token_urlsafe(32)
        await self._database.atomically(lambda db: self._keep(db, "code", code, CODE_SECONDS))
        return code

    async def redeem(self, code: str) -> PageLogin | None:
        """What a code is worth; None if it is unknown, used or old."""
        made = PageLogin(secrets.token_urlsafe(32), secrets.token_urlsafe(32))

        def exchange(db: sqlite3.Connection) -> PageLogin | None:
            sql = "DELETE FROM page_logins WHERE sha256 = ? AND kind = 'code' AND project = ?"
            now = time.time()
            db.execute("DELETE FROM page_logins WHERE expires < ?", (now,))
            if db.execute(sql, (_digest(code), self._project)).rowcount != 1:
                return None
            self._keep(db, "cookie", _both(made), COOKIE_SECONDS)
            return made

        return await self._database.atomically(exchange)

    async def knows(self, login: PageLogin) -> bool:
        """Whether a browser is one of ours, and not too old."""
        rows = await self._database.select(
            "SELECT 1 FROM page_logins WHERE sha256 = ? AND kind = 'cookie' AND project = ? "
            "AND expires >= ?",
            _digest(_both(login)),
            self._project,
            time.time(),
        )
        return bool(rows)

    async def forget(self, login: PageLogin) -> None:
        sql = "DELETE FROM page_logins WHERE sha256 = ?"
        await self._database.write(sql, _digest(_both(login)))

    def _keep(self, db: sqlite3.Connection, kind: str, secret: str, seconds: float) -> None:
        row = (_digest(secret), kind, self._project, time.time() + seconds)
        sql = "INSERT INTO page_logins (sha256, kind, project, expires) VALUES (?, ?, ?, ?)"
        db.execute(sql, row)


async def new_page_code(database: Database, project: str) -> str:
    """A code that opens the page of a project, once."""
    return await PageLogins(database, project).new_code()


def _both(login: PageLogin) -> str:
    return f"{login.cookie} {login.key}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
