"""What webhooks are to be told: messages, each made in the transaction of what it tells of.

Triggers of the database make them (schema.py), for every webhook that a server of the run's project
has announced, so that no crash can come between what happened and its message.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Literal

from orchestrator.domain import Frozen
from orchestrator.settings import Webhook
from orchestrator.store.database import Database

DeliveryState = Literal["pending", "delivered", "failed"]

KEPT_DELIVERIES_SECONDS = 7 * 24 * 3600
"""After which what was delivered, or never could be, is forgotten."""


class WebhookMessage(Frozen):
    """A message for one webhook."""

    number: int
    """They are in the order of what happened."""
    message_id: str
    webhook: str
    project: str
    type: str
    run_id: str
    body: str
    created: float
    attempts: int
    due: float
    claimed: float
    """Until when another process leaves it alone."""
    state: DeliveryState
    answer: str
    """What came of the last attempt."""


class WebhookRow(Frozen):
    """A webhook, as the store knows it."""

    name: str
    project: str
    """Of whose runs it is told."""
    url: str
    events: str
    disabled: str
    """Why nothing is sent to it; "" if it is."""
    pending: int = 0
    failed: int = 0


class WebhookRows:
    """Reads and writes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def announce(self, hooks: Sequence[Webhook], project: str) -> None:
        """From now on there are messages for these, of runs of a project. One with another URL
        is on again.
        """
        rows = [(hook.name, project, hook.url, json.dumps(hook.events)) for hook in hooks]
        await self._database.atomically(lambda db: db.executemany(_ANNOUNCE, rows))

    async def list(self) -> tuple[WebhookRow, ...]:
        return tuple(WebhookRow(**row) for row in await self._database.select(_LIST))

    async def deliveries(self, limit: int) -> tuple[WebhookMessage, ...]:
        """The newest messages."""
        sql = "SELECT * FROM webhook_deliveries ORDER BY number DESC LIMIT ?"
        return tuple(WebhookMessage(**row) for row in await self._database.select(sql, limit))

    async def claim(
        self, name: str, project: str, now: float, until: float
    ) -> WebhookMessage | None:
        """The message of a webhook that is due, for this process alone; None if there is none."""
        named = {"name": name, "project": project, "now": now, "until": until}
        rows = await self._database.select(_CLAIM, named)
        return WebhookMessage(**rows[0]) if rows else None

    async def settle(
        self, delivery: WebhookMessage, state: DeliveryState, answer: str, due: float = 0.0
    ) -> bool:
        """What came of an attempt; False if it took so long that another process has it."""
        changed = await self._database.write(
            "UPDATE webhook_deliveries SET state = ?, answer = ?, due = ?, claimed = 0, "
            "attempts = attempts + 1 WHERE message_id = ? AND claimed = ?",
            *(state, answer, due, delivery.message_id, delivery.claimed),
        )
        return changed == 1

    async def disable(self, name: str, why: str) -> None:
        """Nothing is sent to it any more, and what was to be is given up."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("UPDATE webhooks SET disabled = ? WHERE name = ?", (why, name))
            db.execute(
                "UPDATE webhook_deliveries SET state = 'failed', answer = ? "
                "WHERE webhook = ? AND state = 'pending'",
                (why, name),
            )

        await self._database.atomically(write)

    async def enable(self, name: str) -> bool:
        """It is told of what happens from now on; False if there is none of that name."""
        sql = "UPDATE webhooks SET disabled = '' WHERE name = ?"
        return await self._database.write(sql, name) > 0

    async def remove(self, name: str) -> bool:
        """Forget one and its messages, until a server announces it again."""

        def write(db: sqlite3.Connection) -> bool:
            db.execute("DELETE FROM webhook_deliveries WHERE webhook = ?", (name,))
            return db.execute("DELETE FROM webhooks WHERE name = ?", (name,)).rowcount > 0

        return await self._database.atomically(write)

    async def forget_old(self, now: float) -> None:
        sql = "DELETE FROM webhook_deliveries WHERE state != 'pending' AND created < ?"
        await self._database.write(sql, now - KEPT_DELIVERIES_SECONDS)


_ANNOUNCE = """
INSERT INTO webhooks (name, project, url, events) VALUES (?, ?, ?, ?)
ON CONFLICT (name, project) DO UPDATE SET events = excluded.events, url = excluded.url,
disabled = CASE WHEN url = excluded.url THEN disabled ELSE '' END
"""
_LIST = """
SELECT name, project, url, events, disabled,
(SELECT count(*) FROM webhook_deliveries AS d WHERE d.webhook = webhooks.name
AND d.project = webhooks.project AND state = 'pending') AS pending,
(SELECT count(*) FROM webhook_deliveries AS d WHERE d.webhook = webhooks.name
AND d.project = webhooks.project AND state = 'failed') AS failed
FROM webhooks ORDER BY name, project
"""
_CLAIM = """
UPDATE webhook_deliveries SET claimed = :until WHERE message_id = (
    SELECT message_id FROM webhook_deliveries WHERE webhook = :name AND project = :project
    AND state = 'pending' AND due <= :now AND claimed <= :now ORDER BY number LIMIT 1)
RETURNING *
"""
