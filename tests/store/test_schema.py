"""Stores of other versions: an older one is migrated, a newer one is refused and left alone."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from orchestrator.domain.events import Event
from orchestrator.domain.exchange import Approval, Order
from orchestrator.domain.result import FINAL, ChangedFile, RunResult, Usage
from orchestrator.domain.task import Task
from orchestrator.errors import OperatorError, StoreFailed
from orchestrator.store import schema
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.store.schema import MIGRATIONS, RUN_TABLES, migrate
from orchestrator.store.session_rows import SessionKey, SessionRows
from orchestrator.surfaces.cli.main import main

UNNUMBERED = (Path(__file__).parent / "unnumbered.sql").read_text()
"""A store as the version before the migrations wrote it."""

ONE_MORE = ("ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'none'",)
"""A migration that fails where it has been applied already."""

AT_ONCE = 6
"""Processes that open one file at the same moment."""

OPEN = f"""
import sys
from pathlib import Path
from orchestrator.store import schema
from orchestrator.store.runs import Store
schema.MIGRATIONS += ({ONE_MORE!r},)
print("here", flush=True)
sys.stdin.readline()
Store(Path(sys.argv[1])).close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    with closing(Store(path, owner="me")) as store:
        yield store


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        yield db


def write(path: Path, *statements: str, version: int = 0) -> None:
    with connected(path) as db:
        for statement in statements:
            db.executescript(statement)
        db.execute(f"PRAGMA user_version = {version}")


def shape(path: Path) -> dict[str, object]:
    """The columns and the indexes of each table, and the number of migrations."""
    with connected(path) as db:
        found: dict[str, object] = {"version": db.execute("PRAGMA user_version").fetchall()}
        for name, table, kind in db.execute("SELECT name, tbl_name, type FROM sqlite_master"):
            pragma = "table_xinfo" if kind == "table" else "index_xinfo"
            found[f"{table}.{name}"] = db.execute(f"PRAGMA {pragma}({name})").fetchall()
    return found


def new_shape(tmp_path: Path) -> dict[str, object]:
    with opened(tmp_path / "new.sqlite"):
        pass
    return shape(tmp_path / "new.sqlite")


async def test_a_store_of_the_version_before_opens_with_all_that_is_in_it(path: Path) -> None:
    write(path, UNNUMBERED)
    with opened(path) as store:
        runs = {run.run_id.removeprefix("r-"): run for run in await store.find_runs(results=True)}
        assert {name: run.status for name, run in runs.items()} == {name: name for name in runs}
        assert len(runs) == 9
        assert {name for name, run in runs.items() if run.result is not None} == FINAL
        completed = runs["completed"]
        assert (completed.caller, completed.session, completed.owner) == ("cron", "side", "o1")
        assert (completed.prompt, completed.workspace) == ("Be completed.", Path("/srv/project"))
        assert completed.result == RunResult(
            run_id="r-completed",
            agent="coder",
            caller="cron",
            status="completed",
            reason="ok",
            result={"done": True},
            cost_usd=0.25,
            usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.25, requests=2),
            changed_files=(ChangedFile(path="a.txt", change="added"),),
            warnings=("one",),
        )
        assert runs["paused"].parent_run_id == "r-running"
        assert await store.events("r-failed") == (
            Event(run_id="r-failed", seq=1, at=1000.5, kind="started", text="the CLI runs"),
            Event(
                run_id="r-failed",
                seq=2,
                at=1001.5,
                kind="tool_call",
                text="Bash ls",
                data={"tool": "Bash", "input": {"command": "ls"}},
            ),
            Event(
                run_id="r-failed",
                seq=3,
                at=1007.0,
                kind="ended",
                text="failed",
                data={"status": "failed", "reason": "machinery"},
            ),
        )


async def test_what_agents_and_callers_said_in_it_is_still_there(path: Path) -> None:
    write(path, UNNUMBERED)
    with opened(path) as store:
        exchanges = Exchanges(store)
        questions = await exchanges.questions()
        assert [(q.message_id, q.status, q.answer, q.default_answer) for q in questions] == [
            ("m-open", "pending_parent_reply", None, "red"),
            ("m-answered", "parent_replied", "large", ""),
            ("m-read", "acknowledged_by_subagent", "round", ""),
        ]
        assert await exchanges.questions(pending=True) == questions[:1]
        call = {"command": "ls -R /"}
        said = {"run_id": "r-completed", "tool": "Bash", "asked": 1006.0, "deadline": 4606.0}
        assert await exchanges.approvals("r-completed") == (
            Approval(call_id="c-no", input=call, decision="rejected", message="not today", **said),
            Approval(
                call_id="c-yes",
                input=call,
                decision="approved",
                new_input={"command": "ls"},
                **said,
            ),
        )
        assert [a.call_id for a in await exchanges.approvals(pending=True)] == ["c-open"]
        assert await exchanges.open_orders() == (
            Order(order_id=1, run_id="r-running", kind="say", text="Hurry up."),
        )
        assert await exchanges.unheard("r-completed") == ("Thank you.",)
        assert await exchanges.answer("r-waiting_parent_reply", "m-open", "blue")


async def test_its_sessions_are_still_there(path: Path) -> None:
    write(path, UNNUMBERED)
    with opened(path) as store:
        rows = {row.key: row for row in await SessionRows(store, "me").all()}
    side = rows[SessionKey(agent="coder", caller="cron", name="side")]
    usual = rows[SessionKey(agent="coder", caller="main")]
    assert (side.state, side.conversation, side.runs, side.wanted) == (
        *("stopped", "conversation-1", 1, True),
    )
    assert (usual.state, usual.conversation, usual.runs, usual.wanted) == ("running", "", 0, False)
    assert usual.expires == usual.used + 60


@pytest.mark.parametrize("had", range(len(MIGRATIONS) + 1))
def test_a_store_of_any_earlier_number_becomes_what_a_new_one_is(
    path: Path, tmp_path: Path, had: int
) -> None:
    write(path, *(sql for statements in MIGRATIONS[:had] for sql in statements), version=had)
    with opened(path):
        pass
    assert shape(path) == new_shape(tmp_path)


@pytest.mark.parametrize("kept", ["", "WHERE name IN ('runs', 'events', 'sessions')"])
def test_a_store_without_a_number_becomes_what_a_new_one_is(
    path: Path, tmp_path: Path, kept: str
) -> None:
    """A command that only listed runs made no tables for questions."""
    write(tmp_path / "old.sqlite", UNNUMBERED)
    with connected(tmp_path / "old.sqlite") as db:
        made = db.execute(f"SELECT sql FROM sqlite_master {kept}").fetchall()
    write(path, *(sql for (sql,) in made if sql))
    with opened(path):
        pass
    assert shape(path) == new_shape(tmp_path)


async def test_one_more_entry_is_one_more_migration(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, UNNUMBERED)
    with opened(path):
        pass  # at the number before
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, ONE_MORE))
    for _ in range(2):
        with opened(path) as store:
            assert len(await store.find_runs()) == 9
            rows = await store.database.select("SELECT DISTINCT colour FROM runs")
            assert [row["colour"] for row in rows] == ["none"]
            await store.add_run(Task(agent="a", prompt="p", run_id="r-new"))
            await store.remove(["r-new"])


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, UNNUMBERED)
    before = shape(path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, ONE_MORE, ("ALTER TABLE nothing",)))
    with pytest.raises(StoreFailed):
        Store(path)
    assert shape(path) == before


def test_a_store_that_another_process_migrates_first_is_migrated_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, UNNUMBERED)
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, ONE_MORE))
    with connected(path) as late, connected(path) as first:

        def overtake(statement: str) -> None:
            if statement == "BEGIN IMMEDIATE":  # it has looked, and does not have the lock yet
                migrate(first, path)

        late.set_trace_callback(overtake)
        migrate(late, path)
        assert not late.in_transaction
        assert late.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)


@pytest.mark.parametrize("start", ["", UNNUMBERED], ids=["no file", "an old file"])
def test_processes_that_open_a_store_at_once_migrate_it_once(path: Path, start: str) -> None:
    if start:
        write(path, start)
    argv = (sys.executable, "-c", OPEN, str(path))
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(AT_ONCE)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert ends == [("", "", 0)] * AT_ONCE
    with connected(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (9 if start else 0,)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_newer_store_is_refused_and_not_touched(
    path: Path,
    journal: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    newer = len(MIGRATIONS) + 1
    write(path, f"PRAGMA journal_mode = {journal}", UNNUMBERED, version=newer)
    path.chmod(0o640)
    content, status = path.read_bytes(), path.stat()
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(path.parent))
    with pytest.raises(SystemExit) as exit_:
        main(["runs"])
    said = capsys.readouterr().err
    assert exit_.value.code == OperatorError.exit_code
    assert f"{path}, was written by a newer orchestrator" in said
    assert f"have version {newer}, this orchestrator knows {len(MIGRATIONS)}" in said
    assert "Install the newer orchestrator again, or name another directory" in said
    assert path.read_bytes() == content
    assert (path.stat().st_mode, path.stat().st_mtime_ns) == (status.st_mode, status.st_mtime_ns)
    assert [each.name for each in path.parent.glob("runs.sqlite*")] == ["runs.sqlite"]


async def test_a_removed_run_is_removed_from_every_table_that_names_runs(path: Path) -> None:
    with opened(path):
        pass
    with connected(path) as db:
        tables = {
            table
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if "run_id" in [column[1] for column in db.execute(f"PRAGMA table_info({table})")]
        }
    kept = {"audit", "webhook_deliveries"}
    assert {*RUN_TABLES, *kept} == tables, "what was decided, or is to be told, outlives the run"


async def test_the_version_grows_with_every_change_of_any_process_and_only_then(
    path: Path,
) -> None:
    with opened(path) as store, opened(path) as other:
        seen = [await store.version()]
        for writer in (store, other, store):
            await writer.add_run(Task(agent="a", prompt="p"))
            seen.append(await store.version())
            await store.find_runs()
            assert await store.version() == seen[-1]
    assert seen == sorted(set(seen))
