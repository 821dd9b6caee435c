"""Tells webhooks what the store has for them, again and again until they have heard it.

Several processes on one store share the work: a message is claimed for a while, and one whose
process has died is claimed by another. A receiver may get a message twice, if it was killed between
hearing and saying so; it knows it by its id.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

import anyio
from pydantic import SecretStr

from orchestrator.gateway.webhook_post import signed_headers, webhook_key
from orchestrator.settings import Webhook
from orchestrator.store.webhook_rows import WebhookMessage, WebhookRows

log = logging.getLogger(__name__)

WEBHOOK_RETRY_SECONDS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""After each attempt that failed; after the last of them there is none."""

CLAIM_SECONDS = 60.0
"""For which a message is one process's; longer than an attempt takes."""

DELIVERY_LOOK_SECONDS = 1.0
"""How often the store is asked for messages of one webhook."""

DELIVERIES_TIDY_SECONDS = 3600.0
"""Between two looks for messages that are old enough to be forgotten."""

DELIVERY_FAILED_SECONDS = 10.0
"""After which the store is tried again."""

WEBHOOK_TEST = "webhook.test"
"""What `orchestrator webhooks test` sends."""

STATUS_GONE = 410
"""A receiver that answers this wants no more."""

Post = Callable[[Webhook, Mapping[str, str], bytes], Awaitable[tuple[int, str]]]
"""Sends one message; the status of the answer, or 0 and why there is none."""


class WebhookDelivery:
    """Delivers to the webhooks that the operator has named, what is of one project."""

    def __init__(
        self,
        hooks: Sequence[Webhook],
        keys: Mapping[str, SecretStr],
        rows: WebhookRows,
        project: str,
        post: Post,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """OperatorError if one of them has no secret that can be used."""
        self._hooks = tuple(hooks)
        self._keys = {hook.name: webhook_key(hook.name, keys.get(hook.name)) for hook in hooks}
        self._rows = rows
        self._project = project
        self._post = post
        self._clock = clock

    async def serve(self) -> None:
        """Announce them, and deliver for ever; a slow one holds up no other. Nothing that goes
        wrong ends it: it goes on beside a server, and would end that too.
        """
        while True:
            try:
                await self.announce()
            except Exception:
                log.exception("webhooks cannot be looked after")
                await anyio.sleep(DELIVERY_FAILED_SECONDS)
            else:
                break
        async with anyio.create_task_group() as group:
            for hook in self._hooks:
                group.start_soon(self._serve_one, hook)
            while True:
                await anyio.sleep(DELIVERIES_TIDY_SECONDS)
                try:
                    await self._rows.forget_old(self._clock())
                except Exception:
                    log.exception("old messages of webhooks cannot be forgotten")

    async def announce(self) -> None:
        await self._rows.announce(self._hooks, self._project)
        await self._rows.forget_old(self._clock())

    async def _serve_one(self, hook: Webhook) -> None:
        while True:
            try:
                found = await self.deliver_next(hook)
            except Exception:
                log.exception("webhook %s cannot be looked after", hook.name)
                await anyio.sleep(DELIVERY_FAILED_SECONDS)
                continue
            if found is None:
                await anyio.sleep(DELIVERY_LOOK_SECONDS)

    async def deliver_next(self, hook: Webhook) -> WebhookMessage | None:
        """Try to deliver what is due first; None if nothing is."""
        now = self._clock()
        delivery = await self._rows.claim(hook.name, self._project, now, now + CLAIM_SECONDS)
        if delivery is None:
            return None
        body = delivery.body.encode()
        headers = signed_headers(self._keys[hook.name], delivery.message_id, int(now), body)
        status, said = await self._post(hook, headers, body)
        if 200 <= status < 300:
            await self._rows.settle(delivery, "delivered", said)
        elif status == STATUS_GONE:
            await self._rows.settle(delivery, "failed", said)
            why = f"it answered {STATUS_GONE} at {_time(now)}: it wants no more"
            await self._rows.disable(hook.name, why)
            log.warning(
                "webhook %s is off: %s; `orchestrator webhooks enable %s` has it on again",
                *(hook.name, why, hook.name),
            )
        elif delivery.attempts < len(WEBHOOK_RETRY_SECONDS):
            due = self._clock() + WEBHOOK_RETRY_SECONDS[delivery.attempts]
            await self._rows.settle(delivery, "pending", said, due)
        else:
            await self._rows.settle(delivery, "failed", said)
            log.warning("webhook %s: message %s is given up", hook.name, delivery.message_id)
        return delivery

    async def test(self, hook: Webhook) -> tuple[int, str]:
        """Send a message that says nothing, once; what the receiver answers."""
        now = self._clock()
        message_id = f"msg_{secrets.token_hex(16)}"
        said = {"type": WEBHOOK_TEST, "timestamp": _time(now), "data": {"webhook": hook.name}}
        body = json.dumps(said).encode()
        headers = signed_headers(self._keys[hook.name], message_id, int(now), body)
        return await self._post(hook, headers, body)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
