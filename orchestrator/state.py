"""The record of runs, opened without an engine or an agent: settings in, the book of tasks out.

Apart from app.py, which loads all that runs agents: `orchestrator runs` need not wait for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from orchestrator.containers.owner import Owner, check_state_dir
from orchestrator.domain.audit import AuditAct, AuditEntry
from orchestrator.engine.project_trust import ProjectTrust
from orchestrator.engine.tasks.news import News
from orchestrator.engine.tasks.task_book import TaskBook
from orchestrator.errors import OperatorError
from orchestrator.settings import Settings
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionKey, SessionRow, SessionRows
from orchestrator.store.trust_book import TrustBook
from orchestrator.workspace.kept import CHANGES, Kept


@contextmanager
def open_store(settings: Settings, owner: str = "") -> Iterator[Store]:
    """The database; `owner` is the orchestrator process whose runs are written to it."""
    check_state_dir(settings.state_dir)
    store = Store(settings.state_dir / "runs.sqlite", owner)
    try:
        yield store
    finally:
        store.close()


def open_trust(settings: Settings) -> ProjectTrust:
    """The trust in the agents that the settings name."""
    check_state_dir(settings.state_dir)
    for folder in settings.trusted:
        if not folder.is_absolute():
            raise OperatorError(
                f"ORCHESTRATOR_TRUSTED names {folder}, which is another directory wherever you "
                "are, a stranger's too; write it out, from / on"
            )
    book = TrustBook(settings.state_dir / "trust")
    return ProjectTrust(book, settings.agents_dir, settings.trusted)


@asynccontextmanager
async def open_book(settings: Settings) -> AsyncIterator[TaskBook]:
    """The tasks of all processes; those whose orchestrator has died have ended."""
    with open_store(settings) as store:
        alive = Owner(settings.state_dir).alive
        recall = Kept(settings.state_dir / CHANGES).recall
        book = TaskBook(store, Exchanges(store), News(), alive, recall)
        await book.settle()
        yield book


async def living_sessions(settings: Settings) -> tuple[SessionRow, ...]:
    """The sessions of all orchestrators; one whose orchestrator has died is stopped."""
    with open_store(settings) as store, Owner(settings.state_dir) as owner:
        rows = await SessionRows(store, owner.id).all()
        return tuple(
            row if owner.alive(row.owner) else row.model_copy(update={"state": "stopped"})
            for row in rows
        )


async def adopt_session(settings: Settings, key: SessionKey) -> bool:
    """Have a project take over a session from before there were projects; False if it cannot."""
    with open_store(settings) as store:
        return await SessionRows(store, "").adopt(key)


async def note_decision(
    settings: Settings,
    act: AuditAct,
    subject: str,
    *,
    allowed: bool,
    run_id: str = "",
    why: str = "",
) -> None:
    """Write down what the operator decides at a terminal, before it is acted on."""
    entry = AuditEntry.by(
        None,
        act,
        project=settings.project,
        allowed=allowed,
        subject=subject,
        run_id=run_id,
        why=why,
    )
    with open_store(settings) as store:
        await store.audit.note(entry)
