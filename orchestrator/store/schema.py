"""Every table of the store, as numbered migrations.

A database file says in `PRAGMA user_version` how many of them it has had. A change of the tables is
one more entry at the end of MIGRATIONS; the entries above it stay as they are, because files exist
that have had them.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from orchestrator.errors import StoreTooNew

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # 1. IF NOT EXISTS: orchestrators that did not number their tables yet made the same ones, the
    # last three of them only where a run could ask something.
    (
        """
        CREATE TABLE IF NOT EXISTS runs (
            run_id TEXT PRIMARY KEY, agent TEXT NOT NULL, caller TEXT NOT NULL,
            status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL,
            task TEXT NOT NULL, result TEXT, created REAL NOT NULL, ended REAL)
        """,
        "CREATE INDEX IF NOT EXISTS runs_by_time ON runs (created)",
        "CREATE INDEX IF NOT EXISTS runs_by_all ON runs (caller, agent, status, created)",
        """
        CREATE INDEX IF NOT EXISTS runs_by_parent ON runs (json_extract(task, '$.parent_run_id'))
        """,
        "CREATE INDEX IF NOT EXISTS runs_under_way ON runs (created) WHERE ended IS NULL",
        "CREATE INDEX IF NOT EXISTS runs_by_agent ON runs (agent, created)",
        "CREATE INDEX IF NOT EXISTS runs_by_status ON runs (status, created)",
        "CREATE INDEX IF NOT EXISTS runs_by_caller ON runs (caller, created)",
        """
        CREATE TABLE IF NOT EXISTS events (
            run_id TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
            text TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (run_id, seq)) WITHOUT ROWID
        """,
        """
        CREATE TABLE IF NOT EXISTS sessions (
            agent TEXT NOT NULL, caller TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
            owner TEXT NOT NULL, conversation TEXT NOT NULL, runs INTEGER NOT NULL,
            created REAL NOT NULL, used REAL NOT NULL, expires REAL NOT NULL,
            wanted INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (agent, caller, name)) WITHOUT ROWID
        """,
        """
        CREATE TABLE IF NOT EXISTS questions (
            message_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, question TEXT NOT NULL,
            status TEXT NOT NULL, asked REAL NOT NULL, deadline REAL NOT NULL,
            default_answer TEXT NOT NULL, answer TEXT, answered REAL)
        """,
        "CREATE INDEX IF NOT EXISTS questions_by_run ON questions (run_id)",
        """
        CREATE TABLE IF NOT EXISTS approvals (
            call_id TEXT NOT NULL, run_id TEXT NOT NULL, tool TEXT NOT NULL, input TEXT NOT NULL,
            decision TEXT NOT NULL, asked REAL NOT NULL, deadline REAL NOT NULL, new_input TEXT,
            message TEXT NOT NULL DEFAULT '', PRIMARY KEY (run_id, call_id)) WITHOUT ROWID
        """,
        """
        CREATE TABLE IF NOT EXISTS orders (
            order_id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, kind TEXT NOT NULL,
            text TEXT NOT NULL, created REAL NOT NULL, taken REAL)
        """,
        "CREATE INDEX IF NOT EXISTS open_orders ON orders (taken, run_id)",
        "CREATE INDEX IF NOT EXISTS orders_by_run ON orders (run_id)",
    ),
    # 2. An answer by default is told apart from one of the caller's.
    ("ALTER TABLE questions ADD COLUMN answered_by TEXT NOT NULL DEFAULT ''",),
    # 3. Projects, windows, and caps that hold over all processes (decisions/0031). `waits` is since
    # when a run waits for a slot, `begun` when it got one.
    (
        "ALTER TABLE runs ADD COLUMN project TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN window TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN depth INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN waits REAL",
        "ALTER TABLE runs ADD COLUMN begun REAL",
        "CREATE INDEX runs_by_project ON runs (project, created)",
        """
        CREATE INDEX runs_in_slots ON runs (depth, project, agent)
        WHERE ended IS NULL AND begun IS NOT NULL
        """,
        "ALTER TABLE questions ADD COLUMN whom TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE approvals ADD COLUMN whom TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE orders ADD COLUMN whom TEXT NOT NULL DEFAULT ''",
        """
        CREATE TABLE sessions_of_projects (
            project TEXT NOT NULL, agent TEXT NOT NULL, caller TEXT NOT NULL, name TEXT NOT NULL,
            kept TEXT NOT NULL, state TEXT NOT NULL, owner TEXT NOT NULL,
            conversation TEXT NOT NULL, runs INTEGER NOT NULL, created REAL NOT NULL,
            used REAL NOT NULL, expires REAL NOT NULL, wanted INTEGER NOT NULL DEFAULT 0,
            PRIMARY KEY (project, agent, caller, name)) WITHOUT ROWID
        """,
        """
        INSERT INTO sessions_of_projects SELECT '', agent, caller, name,
            agent || '/' || caller || '/' || name, state, owner, conversation, runs, created, used,
            expires, wanted FROM sessions
        """,
        "DROP TABLE sessions",
        "ALTER TABLE sessions_of_projects RENAME TO sessions",
    ),
    # 4. Decisions that let or refuse something.
    (
        """
        CREATE TABLE audit (
            number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, project TEXT NOT NULL,
            who TEXT NOT NULL, window TEXT NOT NULL, act TEXT NOT NULL, subject TEXT NOT NULL,
            run_id TEXT NOT NULL, allowed INTEGER NOT NULL, why TEXT NOT NULL)
        """,
        "CREATE INDEX audit_by_project ON audit (project, number)",
        "CREATE INDEX audit_by_run ON audit (run_id, number)",
        "CREATE INDEX audit_by_time ON audit (at)",
    ),
    # 5. Who may allow a tool call; callers could allow all of them before.
    ("ALTER TABLE approvals ADD COLUMN approval_by TEXT NOT NULL DEFAULT 'parent'",),
    # 6. Runs that wait for a word survive their orchestrator (decisions/0032). `suspended` is since
    # when no process has one, `told` when the agent got a decision.
    (
        "ALTER TABLE runs ADD COLUMN suspended REAL",
        "CREATE INDEX runs_suspended ON runs (project) WHERE suspended IS NOT NULL",
        "ALTER TABLE approvals ADD COLUMN told REAL",
        "UPDATE approvals SET told = asked WHERE decision != 'pending'",
        "CREATE TABLE servers (owner TEXT PRIMARY KEY, project TEXT NOT NULL) WITHOUT ROWID",
    ),
    # 7. What agents outside ask for (decisions/0054): what the decision of the same number has no
    # place for. `latency_ms` is there when it has ended.
    (
        """
        CREATE TABLE outside_calls (
            number INTEGER PRIMARY KEY, agent_id TEXT NOT NULL, claimed TEXT NOT NULL,
            known_by TEXT NOT NULL, operation TEXT NOT NULL, server TEXT NOT NULL,
            tool TEXT NOT NULL, rule TEXT NOT NULL, code TEXT NOT NULL, latency_ms REAL)
        """,
        """
        CREATE TRIGGER outside_calls_go_with_audit AFTER DELETE ON audit
        BEGIN DELETE FROM outside_calls WHERE number = OLD.number; END
        """,
    ),
    # 8. One number for every event, in the order of commits and never given twice (decisions/0090);
    # requests over HTTP that are made once; and the person at the page. `removed_events` has the
    # last number that was deleted of a project: who reads on from before it has missed something.
    # CROSS JOIN: runs in the order of their index and events in that of their key, without a sort
    # of all events in a temporary file.
    (
        """
        CREATE TABLE numbered_events (
            number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, seq INTEGER NOT NULL,
            at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL,
            UNIQUE (run_id, seq))
        """,
        """
        INSERT INTO numbered_events (run_id, seq, at, kind, text, data)
            SELECT events.run_id, seq, at, kind, text, data FROM runs CROSS JOIN events
            ON events.run_id = runs.run_id ORDER BY runs.created, runs.rowid, seq
        """,
        """
        INSERT INTO numbered_events (run_id, seq, at, kind, text, data)
            SELECT run_id, seq, at, kind, text, data FROM events
            WHERE run_id NOT IN (SELECT run_id FROM runs)
        """,
        "DROP TABLE events",
        "ALTER TABLE numbered_events RENAME TO events",
        """
        CREATE TABLE removed_events (project TEXT PRIMARY KEY, number INTEGER NOT NULL)
        WITHOUT ROWID
        """,
        """
        CREATE TABLE request_keys (
            caller TEXT NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL, key TEXT NOT NULL,
            project TEXT NOT NULL, sha256 TEXT NOT NULL, at REAL NOT NULL, made TEXT NOT NULL,
            answer TEXT NOT NULL, PRIMARY KEY (project, caller, method, path, key)) WITHOUT ROWID
        """,
        "CREATE INDEX request_keys_by_run ON request_keys (made)",
        """
        CREATE TRIGGER request_keys_go_with_runs AFTER DELETE ON runs
        BEGIN DELETE FROM request_keys WHERE made = OLD.run_id; END
        """,
        "CREATE INDEX request_keys_by_time ON request_keys (at)",
        """
        CREATE TABLE page_logins (
            sha256 TEXT PRIMARY KEY, kind TEXT NOT NULL, project TEXT NOT NULL,
            expires REAL NOT NULL) WITHOUT ROWID
        """,
    ),
    # 9. Lines of runs that clients begin, one run at a time (decisions/0098).
    (
        """
        CREATE TABLE threads (
            thread_id TEXT PRIMARY KEY, project TEXT NOT NULL, caller TEXT NOT NULL,
            parent TEXT NOT NULL, title TEXT NOT NULL, cwd TEXT NOT NULL, model TEXT NOT NULL,
            created REAL NOT NULL, updated REAL NOT NULL) WITHOUT ROWID
        """,
        "CREATE INDEX threads_by_caller ON threads (project, caller, created)",
        """
        CREATE INDEX runs_by_thread ON runs (json_extract(task, '$.thread'), created)
        WHERE json_extract(task, '$.thread') != ''
        """,
    ),
    # 10. Messages for webhooks (decisions/0099): made with what they tell of, at most 10,000 that
    # wait for each. The body has no text of an agent's, and of its project the folder's name.
    (
        """
        CREATE TABLE webhooks (
            name TEXT NOT NULL, project TEXT NOT NULL, url TEXT NOT NULL, events TEXT NOT NULL,
            disabled TEXT NOT NULL DEFAULT '', PRIMARY KEY (name, project)) WITHOUT ROWID
        """,
        """
        CREATE TABLE webhook_deliveries (
            number INTEGER PRIMARY KEY, message_id TEXT NOT NULL UNIQUE, webhook TEXT NOT NULL,
            project TEXT NOT NULL, type TEXT NOT NULL,
            run_id TEXT NOT NULL, body TEXT NOT NULL, created REAL NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL DEFAULT 0,
            claimed REAL NOT NULL DEFAULT 0, state TEXT NOT NULL DEFAULT 'pending',
            answer TEXT NOT NULL DEFAULT '')
        """,
        "CREATE INDEX deliveries_by_webhook ON webhook_deliveries (webhook, state, number)",
        """
        CREATE TRIGGER webhooks_hear_of_ends AFTER UPDATE OF ended ON runs
        WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL AND NEW.depth = 0
        BEGIN
        INSERT INTO webhook_deliveries (message_id, webhook, project, type,
            run_id, body, created)
            SELECT 'msg_' || lower(hex(randomblob(16))), webhooks.name, webhooks.project,
            'run.ended', NEW.run_id,
            json_object('type', 'run.ended', 'timestamp', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
            'data', json_object('run_id', NEW.run_id, 'agent', NEW.agent,
            'caller', NEW.caller, 'project',
            substr(NEW.project, length(rtrim(NEW.project, replace(NEW.project, '/', ''))) + 1),
            'status', NEW.status,
            'reason', NEW.reason, 'created', NEW.created, 'ended', NEW.ended)),
            (julianday('now') - 2440587.5) * 86400.0
            FROM webhooks WHERE webhooks.project = NEW.project AND disabled = ''
            AND instr(events, '"run.ended"')
            AND (SELECT count(*) FROM webhook_deliveries AS waiting
            WHERE waiting.webhook = webhooks.name AND state = 'pending') < 10000;
        END
        """,
        """
        CREATE TRIGGER webhooks_hear_of_questions AFTER INSERT ON questions
        BEGIN
        INSERT INTO webhook_deliveries (message_id, webhook, project, type,
            run_id, body, created)
            SELECT 'msg_' || lower(hex(randomblob(16))), webhooks.name, webhooks.project,
            'run.waiting', NEW.run_id,
            json_object('type', 'run.waiting', 'timestamp', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
            'data', json_object('run_id', NEW.run_id, 'agent', runs.agent,
            'caller', runs.caller, 'project',
            substr(runs.project, length(rtrim(runs.project, replace(runs.project, '/', ''))) + 1),
            'kind', 'question',
            'message_id', NEW.message_id)),
            (julianday('now') - 2440587.5) * 86400.0
            FROM webhooks JOIN runs ON runs.run_id = NEW.run_id
            AND runs.project = webhooks.project WHERE disabled = ''
            AND instr(events, '"run.waiting"')
            AND (SELECT count(*) FROM webhook_deliveries AS waiting
            WHERE waiting.webhook = webhooks.name AND state = 'pending') < 10000;
        END
        """,
        """
        CREATE TRIGGER webhooks_hear_of_approvals AFTER INSERT ON approvals
        WHEN NEW.decision = 'pending'
        BEGIN
        INSERT INTO webhook_deliveries (message_id, webhook, project, type,
            run_id, body, created)
            SELECT 'msg_' || lower(hex(randomblob(16))), webhooks.name, webhooks.project,
            'run.waiting', NEW.run_id,
            json_object('type', 'run.waiting', 'timestamp', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
            'data', json_object('run_id', NEW.run_id, 'agent', runs.agent,
            'caller', runs.caller, 'project',
            substr(runs.project, length(rtrim(runs.project, replace(runs.project, '/', ''))) + 1),
            'kind', 'approval',
            'call_id', NEW.call_id, 'tool', NEW.tool)),
            (julianday('now') - 2440587.5) * 86400.0
            FROM webhooks JOIN runs ON runs.run_id = NEW.run_id
            AND runs.project = webhooks.project WHERE disabled = ''
            AND instr(events, '"run.waiting"')
            AND (SELECT count(*) FROM webhook_deliveries AS waiting
            WHERE waiting.webhook = webhooks.name AND state = 'pending') < 10000;
        END
        """,
    ),
)
"""Statements, each entry in its order; not a script, which would commit before it begins."""

RUN_TABLES = ("events", "questions", "approvals", "orders", "runs")
"""The tables with rows of a run; its own row is deleted last."""


def version_of(db: sqlite3.Connection, path: Path) -> int:
    """How many migrations the file has had; StoreTooNew if it has had some that we do not know."""
    found = max(0, int(db.execute("PRAGMA user_version").fetchone()[0]))
    if found > len(MIGRATIONS):
        raise StoreTooNew(
            f"the record of runs, {path}, was written by a newer orchestrator (its tables have "
            f"version {found}, this orchestrator knows {len(MIGRATIONS)}); nothing in it was "
            "changed. Install the newer orchestrator again, or name another directory in "
            "ORCHESTRATOR_STATE_DIR"
        )
    return found


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Apply the migrations that the file has not had, all of them or none."""
    if version_of(db, path) == len(MIGRATIONS):
        return
    with db:  # commits, or rolls back
        db.execute("BEGIN IMMEDIATE")
        # Look again: another process may have migrated the file while this one waited for the lock.
        for statements in MIGRATIONS[version_of(db, path) :]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
