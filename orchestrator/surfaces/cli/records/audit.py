"""`orchestrator audit`: who was let or refused what, from the store."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from orchestrator.surfaces.cli.elsewhere.remote_reports import decisions_there
from orchestrator.surfaces.cli.elsewhere.server_option import not_with_server
from orchestrator.surfaces.cli.options import EveryProjectOption, JsonOption, on_book, say_none
from orchestrator.surfaces.cli.records.run_table import project_name
from orchestrator.surfaces.cli.records.runs import FOLLOW_SECONDS, seconds_of
from orchestrator.surfaces.text import one_line, print_lines, table

if TYPE_CHECKING:
    from orchestrator.domain.audit import AuditEntry
    from orchestrator.domain.outside import OutsideCall
    from orchestrator.engine.tasks.task_book import TaskBook
    from orchestrator.settings import Settings
    from orchestrator.store.audit import AuditQuery

AUDIT_HEADINGS = ("WHEN", "PROJECT", "WHO", "WINDOW", "ACT", "DECISION", "SUBJECT", "RUN", "WHY")


def audit(
    *,
    who: Annotated[
        str, typer.Option(metavar="NAME", help="A caller, `operator`, or `agent NAME`.")
    ] = "",
    act: Annotated[str, typer.Option(metavar="ACT", help="Such as run, host, approve.")] = "",
    run_id: Annotated[
        str, typer.Option("--run", metavar="RUN", help="Only of this run; `last` is the newest.")
    ] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Not older than this: 30d, 12h, 90min.")
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many, up to the newest.")
    ] = 50,
    all_: EveryProjectOption = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object on each line.")] = False,
    gateway: Annotated[
        bool,
        typer.Option("--gateway", help="Of agents outside, in the lines of agent-mcp-gateway."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List decisions of this project: who was let or refused what, the newest last."""
    import anyio

    from orchestrator.domain.audit import AuditAct
    from orchestrator.settings import read_settings
    from orchestrator.store.audit import AuditQuery

    acts = get_args(AuditAct)
    if act and act not in acts:
        raise typer.BadParameter(f"there is no act {act!r}; there are {', '.join(acts)}")
    if follow and as_json:
        raise typer.BadParameter("--follow goes with --jsonl, not with --json")
    if gateway and (follow or as_json or (act and act != "gateway")):
        raise typer.BadParameter("--gateway prints its own lines; leave out -f, --json, --act")
    settings = read_settings()
    if run_id:
        run_id = on_book(lambda book, project: _meant(book, run_id, project))
    query = AuditQuery(
        projects=None if all_ else (settings.project,),
        who=who,
        act=act,
        run_id=run_id,
        allowed=False if refused else None,
        since=time.time() - seconds_of(since) if since else 0.0,
    )
    form = "jsonl" if jsonl else "json" * as_json
    if settings.server:
        not_with_server(settings, gateway=gateway, follow=follow)
        found = decisions_there(settings, query, limit)
        if not found and not form:
            say_none("no decision is like that", all_=all_)
        else:
            _print(found, form, headings=True)
        return
    if gateway:
        anyio.run(_show_outside, settings, query, limit)
        return
    anyio.run(_show, settings, query, limit, form, follow)


async def _meant(book: TaskBook, run_id: str, project: str) -> str:
    """The run's id; one that is pruned, or never came to be, may have decisions all the same."""
    from orchestrator.errors import RunNotFound

    try:
        return await book.named(run_id, project)
    except RunNotFound:
        return run_id


async def _show(settings: Settings, query: AuditQuery, limit: int, form: str, follow: bool) -> None:
    import anyio

    from orchestrator.state import open_store

    last, first = 0, True
    with open_store(settings) as store:
        while True:
            found = await store.audit.find(query, after=last, limit=limit)
            if not found and not form and not follow:
                say_none("no decision is like that", all_=query.projects is None)
                return
            _print(found, form, headings=first)
            if not follow:
                return
            last, first = found[-1].number if found else last, False
            limit = sys.maxsize
            await anyio.sleep(FOLLOW_SECONDS)


async def _show_outside(settings: Settings, query: AuditQuery, limit: int) -> None:
    from orchestrator.state import open_store

    with open_store(settings) as store:
        for entry, call in await store.outside_calls.find(query, limit=limit):
            print(json.dumps(outside_line(entry, call)))


def outside_line(entry: AuditEntry, call: OutsideCall) -> dict[str, object]:
    """What agent-mcp-gateway says it writes for each operation."""
    decision = "DENY" if not entry.allowed else "ERROR" if call.code else "ALLOW"
    more = {
        "server": call.server,
        "tool": call.tool,
        "rule": call.rule,
        "why": entry.why,
        "error": call.code,
        "claimed_agent_id": call.claimed,
        "known_by": call.known_by,
        "caller": entry.who,
        "client": entry.window,
    }
    return {
        "timestamp": datetime.fromtimestamp(entry.at, UTC).isoformat(),
        "agent_id": call.agent_id or call.claimed,
        "operation": call.operation,
        "decision": decision,
        "latency_ms": call.latency_ms,
        "metadata": {key: value for key, value in more.items() if value},
    }


def _print(found: Sequence[AuditEntry], form: str, *, headings: bool) -> None:
    if form == "json":
        print(json.dumps({"decisions": [entry.model_dump(mode="json") for entry in found]}))
    elif form == "jsonl":
        for entry in found:
            print(json.dumps(entry.model_dump(mode="json")), flush=True)
    elif found or headings:
        print_lines(audit_table(found, headings=headings))


def audit_table(found: Sequence[AuditEntry], *, headings: bool = True) -> Iterator[str]:
    """A line for each decision."""
    rows = [AUDIT_HEADINGS] if headings else []
    return table([*rows, *map(_audit_row, found)])


def _audit_row(entry: AuditEntry) -> tuple[str, ...]:
    when = datetime.fromtimestamp(entry.at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    decision = "allowed" if entry.allowed else "refused"
    who = (project_name(entry.project), entry.who, entry.window)
    texts = (entry.subject, entry.run_id, entry.why)
    return (when, *map(one_line, who), entry.act, decision, *map(one_line, texts))
