"""The record of runs, opened without an engine or an agent: settings in, the book of tasks out.

Apart from app.py, which loads all that runs agents: `orchestrator runs` need not wait for that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.containers.mounts import MountPolicy
from orchestrator.containers.owner import Owner, check_state_dir, make_state_dir
from orchestrator.domain.audit import AuditAct, AuditEntry
from orchestrator.engine.project_trust import ProjectTrust
from orchestrator.engine.tasks.news import News
from orchestrator.engine.tasks.task_book import TaskBook
from orchestrator.errors import OperatorError
from orchestrator.settings import (
    SETTINGS_FILE,
    Settings,
    git_configurations,
    moved_credentials,
    project_root,
)
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.http_servers import HttpServer, HttpServers
from orchestrator.store.page_logins import new_page_code
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionKey, SessionRow, SessionRows
from orchestrator.store.trust_book import TrustBook
from orchestrator.workspace.kept import CHANGES, Kept

if TYPE_CHECKING:
    from orchestrator.catalog import AgentsDir
    from orchestrator.catalog.rules_file import RulesFile


STORE_FILE = "runs.sqlite"
"""In the state directory; beside it lies what SQLite has not written into it yet."""


def store_bytes(settings: Settings) -> int:
    """What the record of runs takes on the disk. Blocks."""
    return sum(path.stat().st_size for path in settings.state_dir.glob(f"{STORE_FILE}*"))


@contextmanager
def open_store(settings: Settings, owner: str = "") -> Iterator[Store]:
    """The database; `owner` is the orchestrator process whose runs are written to it."""
    check_state_dir(settings.state_dir)
    store = Store(settings.state_dir / STORE_FILE, owner)
    try:
        yield store
    finally:
        store.close()


def check_state(settings: Settings) -> None:
    """OperatorError if the record of runs cannot be used, before anything depends on it. Blocks."""
    make_state_dir(settings.state_dir)
    with open_store(settings):
        pass


def open_agents(settings: Settings) -> AgentsDir:
    """The agents that the settings name, and all that there is to say of them."""
    from orchestrator.catalog import AgentsDir
    from orchestrator.checker.agent import AgentChecker
    from orchestrator.output import check_schema

    checker = AgentChecker(
        known_callers=settings.known_callers,
        callers_declared=bool(settings.callers),
        agents_dir=settings.agents_dir,
        keeps_from_agents=mount_policy(settings).keeps_from_agents,
        own_image=not settings.agent_image,
    )
    return AgentsDir(settings.agents_dir, check_schema, checker)


def open_trust(settings: Settings) -> ProjectTrust:
    """The trust in the agents that the settings name."""
    from orchestrator.catalog.folder import is_inside
    from orchestrator.catalog.rules_file import find_rules, read_rules

    check_state_dir(settings.state_dir)
    for folder in settings.trusted:
        if not folder.is_absolute():
            raise OperatorError(
                f"ORCHESTRATOR_TRUSTED names {folder}, which is another directory wherever you "
                "are, a stranger's too; write it out, from / on"
            )
    book = TrustBook(settings.state_dir / "trust")
    try:
        path = find_rules(settings.gateway_rules, settings.project_dir, settings.home)
    except OperatorError:
        return ProjectTrust(book, settings.agents_dir, settings.trusted)
    own = path.is_relative_to(settings.project_dir) or is_inside(path, settings.project_dir)
    rules = partial(read_rules, path)
    return ProjectTrust(book, settings.agents_dir, settings.trusted, rules, rules_are_own=own)


def open_rules(settings: Settings, tell: Callable[[str], None]) -> RulesFile:
    """The rules for agents outside; OperatorError if there are none, or what is wrong with them."""
    from orchestrator.catalog.rules_file import RulesFile, find_rules

    agents = open_agents(settings)
    path = find_rules(settings.gateway_rules, settings.project_dir, settings.home)
    return RulesFile(path, lambda: agents.current().tool_names, tell)


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


@contextmanager
def serving_http(settings: Settings, url: str) -> Iterator[None]:
    """In this block, `living_http_server` finds this server."""
    check_state_dir(settings.state_dir)
    with _http_servers(settings).told(HttpServer(url=url, project=settings.project)):
        yield


def living_http_server(settings: Settings) -> str | None:
    """The URL of a server of this project that answers over HTTP now, if there is one."""
    found = _http_servers(settings).of(settings.project)
    return None if found is None else found.url


def _http_servers(settings: Settings) -> HttpServers:
    return HttpServers(settings.state_dir / "http")


async def page_link(settings: Settings, url: str) -> str:
    """A link that opens the page of the server at this URL for the operator, once."""
    with open_store(settings) as store:
        code = await new_page_code(store.database, settings.project)
    return f"{url}/#code={code}"


def mount_policy(settings: Settings, address: str = "") -> MountPolicy:
    """What containers of the engine at this address may be shown; without one, of this machine."""
    from orchestrator.gateway.secrets.secret_store import secret_files

    return MountPolicy(
        roots=settings.allowed_roots,
        home=settings.home,
        own=(
            settings.agents_dir,
            settings.cache_dir,
            project_root(Path.cwd(), settings.home) / SETTINGS_FILE,
            *((settings.claude_binary,) if settings.claude_binary else ()),
            *((settings.gateway_rules,) if settings.gateway_rules else ()),
        ),
        hidden=(
            settings.state_dir,
            settings.secrets_file,
            *((settings.token_file,) if settings.token_file else ()),
            *((settings.tls_dir,) if settings.tls_dir else ()),
        ),
        secret_files=lambda: (
            *secret_files(settings.secrets_file),
            *moved_credentials(settings.home),
        ),
        git_configs=git_configurations(settings.home),
        engine_sockets=tuple(
            Path(socket.removeprefix("unix://"))
            for socket in (address, *settings.engine_candidates)
            if socket.startswith("unix://")
        ),
        engine_is_local=not address or address.startswith("unix://"),
    )
