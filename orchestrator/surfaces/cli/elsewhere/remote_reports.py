"""What `agents`, `plan`, `cost` and `audit` print of an orchestrator elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from orchestrator.surfaces.cli.elsewhere.server_option import open_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.client.api import OrchestratorClient
    from orchestrator.domain.audit import AuditEntry
    from orchestrator.settings import Settings
    from orchestrator.store.audit import AuditQuery

AUDIT_PAGE = 200


def asked_there(settings: Settings, ask: Callable[[OrchestratorClient], Awaitable[Any]]) -> Any:
    """Ask the server that the settings name."""

    async def work() -> Any:
        async with open_server(settings) as client:
            return await ask(client)

    return anyio.run(work)


def decisions_there(settings: Settings, query: AuditQuery, limit: int) -> list[AuditEntry]:
    """Decisions that we may see there, the newest last."""
    from orchestrator.domain.audit import AuditEntry

    wanted = {"act": query.act, "run": query.run_id, "refused": "true" * (query.allowed is False)}

    async def ask(client: OrchestratorClient) -> list[AuditEntry]:
        params: dict[str, Any] = {name: value for name, value in wanted.items() if value}
        found: list[AuditEntry] = []
        while len(found) < limit:
            page = await client.audit(**params, limit=AUDIT_PAGE)
            items = [AuditEntry.model_validate(each) for each in page["items"]]
            late = [each for each in items if each.at >= query.since]
            found += [each for each in late if query.who in ("", each.who)]
            if not page["next_cursor"] or len(late) < len(items):
                break
            params["cursor"] = page["next_cursor"]
        return found[:limit][::-1]

    return list(asked_there(settings, ask))
