"""`orchestrator webhooks`: who is told of runs, and whether they have heard it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.options import JsonOption
from orchestrator.surfaces.text import print_lines, span, table, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.settings import Settings, Webhook
    from orchestrator.store.webhook_rows import WebhookMessage, WebhookRow

webhooks_app = Commands("Receivers that are told of runs, and whether they have heard it.")

WEBHOOK_HEADINGS = ("WEBHOOK", "PROJECT", "STATE", "WAITING", "FAILED", "EVENTS", "URL")
DELIVERY_HEADINGS = ("MESSAGE", "WEBHOOK", "EVENT", "RUN", "STATE", "TRIES", "AGE", "ANSWER")

SHOWN_DELIVERIES = 20

WebhookArgument = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its name.")]


@webhooks_app.command("list")
def list_(*, as_json: JsonOption = False) -> None:
    """List webhooks, and the newest messages to them."""
    import anyio

    rows, deliveries = anyio.run(_rows)
    if as_json:
        found = {
            "webhooks": [row.model_dump() for row in rows],
            "deliveries": [each.model_dump(exclude={"body"}) for each in deliveries],
        }
        print(json.dumps(found))
        return
    if not rows:
        print("no webhook is known; name one under `webhooks` in config.yaml, then serve")
        return
    print_lines(_lines(rows, deliveries, time.time()))


@webhooks_app.command("test")
def test_webhook(name: WebhookArgument) -> None:
    """Send a webhook a message that says nothing, and tell what it answers."""
    import anyio

    from orchestrator.errors import OperatorError

    status, said = anyio.run(_test, name)
    if not 200 <= status < 300:
        raise OperatorError(f"the webhook {name!r} has not taken it: {visible(said)}")
    print(f"{name}: {visible(said)}")


@webhooks_app.command("enable")
def enable(name: WebhookArgument) -> None:
    """Have a webhook told again that answered 410."""
    import anyio

    _known(anyio.run(_enable, name), name)
    print(f"{name} is told of what happens from now on")


@webhooks_app.command("remove")
def remove(name: WebhookArgument) -> None:
    """Forget a webhook that is in no settings any more, and its messages."""
    import anyio

    _known(anyio.run(_remove, name), name)
    print(f"{name} is forgotten; a server that has it in its settings announces it again")


def _lines(
    rows: Sequence[WebhookRow], deliveries: Sequence[WebhookMessage], now: float
) -> Iterator[str]:
    yield from table(
        [
            WEBHOOK_HEADINGS,
            *(
                (
                    *(
                        row.name,
                        visible(row.project),
                        f"off: {row.disabled}" if row.disabled else "on",
                    ),
                    *(str(row.pending), str(row.failed)),
                    *(", ".join(json.loads(row.events)), visible(row.url)),
                )
                for row in rows
            ),
        ],
    )
    if deliveries:
        yield ""
        yield from table(
            [
                DELIVERY_HEADINGS,
                *(
                    (
                        *(each.message_id, each.webhook, each.type, each.run_id, each.state),
                        *(str(each.attempts), span(now - each.created), visible(each.answer)),
                    )
                    for each in deliveries
                ),
            ],
        )


def _known(done: bool, name: str) -> None:
    from orchestrator.errors import OperatorError

    if not done:
        raise OperatorError(f"there is no webhook {name!r}; `orchestrator webhooks list` has all")


async def _rows() -> tuple[tuple[WebhookRow, ...], tuple[WebhookMessage, ...]]:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_store

    with open_store(read_settings()) as store:
        return await store.webhooks.list(), await store.webhooks.deliveries(SHOWN_DELIVERIES)


async def _test(name: str) -> tuple[int, str]:
    from orchestrator.app import webhook_delivery
    from orchestrator.settings import read_settings
    from orchestrator.state import open_store

    settings = read_settings()
    hook = _named(settings, name)
    with open_store(settings) as store:
        return await webhook_delivery(settings, store).test(hook)


def _named(settings: Settings, name: str) -> Webhook:
    from orchestrator.errors import OperatorError

    for hook in settings.webhooks:
        if hook.name == name:
            return hook
    known = ", ".join(hook.name for hook in settings.webhooks) or "none"
    raise OperatorError(f"no webhook in the settings is called {name!r}; there are: {known}")


async def _enable(name: str) -> bool:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_store

    with open_store(read_settings()) as store:
        return await store.webhooks.enable(name)


async def _remove(name: str) -> bool:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_store

    with open_store(read_settings()) as store:
        return await store.webhooks.remove(name)
