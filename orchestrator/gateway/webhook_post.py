"""One message for a webhook: signed as Standard Webhooks has it, sent on a connection of ours."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

import httpx2
from pydantic import SecretStr

from orchestrator.domain.agent import Network
from orchestrator.domain.hosts import written_host
from orchestrator.errors import OperatorError
from orchestrator.gateway.doorway import undecided
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.tools.remote import transport_problem, vetted_client
from orchestrator.settings import Webhook

POST_SECONDS = 15.0
"""For a receiver to answer; its work it does later."""

WEBHOOK_SECRET_PREFIX = "whsec_"  # noqa: S105 no secret, but how one begins

MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64


def webhook_key(name: str, secret: SecretStr | None) -> bytes:
    """The key in a secret; OperatorError if there is none. Its text is never told."""
    told = f"set ORCHESTRATOR_WEBHOOK_SECRETS to {name}={WEBHOOK_SECRET_PREFIX}…"
    if secret is None:
        raise OperatorError(f"the webhook {name!r} has no secret; {told}")
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(WEBHOOK_SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    fits = MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES
    if not text.startswith(WEBHOOK_SECRET_PREFIX) or not fits:
        raise OperatorError(
            f"the secret of the webhook {name!r} is not {WEBHOOK_SECRET_PREFIX} and base64 of "
            f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes; {told}"
        )
    return key


def signed_headers(key: bytes, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """What proves to a receiver whose message it is, and when it was sent. Pure."""
    signed = f"{message_id}.{at}.".encode() + body
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{digest}",
    }


async def post_message(
    hook: Webhook, dialer: Dialer, headers: Mapping[str, str], body: bytes
) -> tuple[int, str]:
    """Send it; the status, or 0 and why there is none. No redirect is followed."""
    host, port = hook.address
    rule = f"{written_host(host)}:{port}"
    lists = {"allow_private": (rule,)} if hook.private else {"allow": (rule,)}
    scheme = "http" if hook.url.startswith("http://") else "https"
    try:
        network = Network.model_validate({"mode": "allow", **lists})
    except ValueError:
        return 0, f"{host} is an address, and those are reached only with `private: true`"
    try:
        async with (
            vetted_client(network, scheme, dialer, undecided) as client,
            client.stream(
                "POST",
                hook.url,
                content=body,
                headers={"content-type": "application/json", **headers},
                timeout=POST_SECONDS,
            ) as answer,
        ):
            return answer.status_code, f"it answered {answer.status_code}"
    except httpx2.HTTPError as exc:
        return 0, transport_problem(exc)
