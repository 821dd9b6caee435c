"""`orchestrator show` and `orchestrator apply`: how a run ended, and what it did to its copy."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from orchestrator.domain.words import counted, ended_as
from orchestrator.surfaces.cli.elsewhere.remote_changes import (
    applied_here,
    changes_there,
    patch_there,
    root_here,
)
from orchestrator.surfaces.cli.options import JsonOption, RunArgument
from orchestrator.surfaces.text import (
    costs,
    named,
    one_line,
    print_lines,
    quoted,
    tried,
    visible,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from orchestrator.domain.result import ChangedFile
    from orchestrator.engine.workspaces.copies import Copies
    from orchestrator.settings import Settings
    from orchestrator.store.runs import RunRecord
    from orchestrator.workspace.applying.apply import Applied
    from orchestrator.workspace.changes.collected import Changes

    _Apply = Callable[..., Applied]

T = TypeVar("T")

SIGNS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R", "mode": "m"}
"""As git would mark them; m is a mode alone."""


def show(
    run_id: RunArgument,
    *,
    patch: Annotated[
        bool, typer.Option("--patch", help="Print what it changed, as `git apply` takes it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print how a run ended: its result, what it changed, what it was denied."""
    import anyio

    from orchestrator.app import open_copies
    from orchestrator.settings import read_settings

    settings = read_settings()
    record = anyio.run(_record, run_id)
    run_id = record.run_id
    if patch:
        data = (
            _kept_or_why(record, partial(patch_there, settings, run_id))
            if settings.server
            else _patch(open_copies(settings), record)
        )
        if as_json:
            print(json.dumps({"run_id": run_id, "patch": _text(run_id, data)}))
        elif sys.stdout.isatty():
            _print_patch(data.decode(errors="replace"))
        else:
            sys.stdout.buffer.write(data)
        return
    if as_json:
        print(json.dumps(record.model_dump(mode="json")))
        return
    print_lines(record_lines(record))


def apply(
    run_id: RunArgument,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH",
            help="Only what changed there and below, as `orchestrator show` names it.",
        ),
    ] = None,
    *,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Another directory than the one that was copied."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    allow_links: Annotated[
        bool, typer.Option("--allow-links", help="Also links that lead out of the directory.")
    ] = False,
    allow_acting: Annotated[
        bool,
        typer.Option(
            "--allow-acting",
            help="Also files that act on this machine, such as hooks, tasks and scripts.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Apply to the workspace what a run changed in its copy, or some paths of it.

    All that is asked for is done, or nothing.
    """
    import anyio

    from orchestrator.app import open_copies
    from orchestrator.settings import read_settings

    settings = read_settings()
    record = anyio.run(_record, run_id)
    word = _ApplyWord(dry_run, allow_links, allow_acting, as_json)
    if settings.server:
        with TemporaryDirectory(prefix="orchestrator-") as folder:
            fetch = partial(changes_there, settings, record.run_id, Path(folder))
            kept = _kept_or_why(record, fetch)
            root = to.absolute() if to is not None else root_here(settings, record)
            do: _Apply = partial(applied_here, settings, kept, root)
            _apply(settings, kept, root, do, paths or (), word)
        return
    copies = open_copies(settings)
    kept = _kept_or_why(record, partial(copies.changes, record.run_id))
    root = to.absolute() if to is not None else kept.root
    _apply(settings, kept, root, partial(copies.apply, kept.run_id, to=root), paths or (), word)


class _ApplyWord(NamedTuple):
    """What the operator lets be applied, and how it is to be told."""

    dry_run: bool
    allow_links: bool
    allow_acting: bool
    as_json: bool


def _apply(
    settings: Settings,
    kept: Changes,
    root: Path,
    apply_to: _Apply,
    paths: Sequence[str],
    word: _ApplyWord,
) -> None:
    """Apply changes, asked about first if they act; what is done is in the audit before."""
    import anyio

    from orchestrator.containers.owner import make_state_dir
    from orchestrator.errors import OrchestratorError
    from orchestrator.state import note_decision

    run_id = kept.run_id
    dry_run, allow_links, allow_acting, as_json = word
    wanted = [_below(path, kept, root) for path in paths]
    do = partial(apply_to, paths=wanted, allow_links=allow_links)
    if not (dry_run or allow_acting or as_json) and _can_ask():
        allow_acting = _agreed(do(dry_run=True).files)
    make_state_dir(settings.state_dir)
    note = partial(note_decision, settings, "apply", str(root), run_id=run_id)
    if not dry_run:
        acting = "with files that act" * allow_acting
        anyio.run(partial(note, allowed=True, why=acting))
    try:
        with interrupted():
            applied = do(dry_run=dry_run, allow_acting=allow_acting)
    except OrchestratorError as exc:
        anyio.run(partial(note, allowed=False, why=f"{exc.code}: {exc}"))
        raise
    if as_json:
        print(json.dumps(applied.model_dump(mode="json")))
        return
    if applied.already:
        write(visible(f"nothing to do: {root} is like that already"), sys.stderr)
        return
    print_lines(changed_line(file) for file in applied.files)
    for folder in applied.kept_folders:
        write(visible(f"kept {folder}, since something else is in it"), sys.stderr)
    done = "would be changed" if dry_run else "changed"
    left = len(kept.files) - len(applied.files) if wanted else 0
    more = f"; {counted(left, 'file')} more changed in the copy" if left > 0 else ""
    write(visible(f"{counted(len(applied.files), 'file')} {done} in {root}{more}"), sys.stderr)


def _below(path: str, kept: Changes, root: Path) -> str:
    """A path as the changes have it: from their root on. What is typed is that, or a path on this
    machine, as a shell completes it.
    """
    plain = os.path.normpath(path)
    known = [change.path for change in kept.changes]
    if any(each == plain or each.startswith(f"{plain}/") for each in known):
        return plain
    for folder in (root, root.resolve()):
        with suppress(ValueError):
            return str((Path.cwd() / plain).relative_to(folder))
    return plain


def patch_styles(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The lines of a patch, and how each looks; a line that was taken away may look like a heading,
    so the lines of a hunk are counted.
    """
    old = new = 0
    for line in lines:
        if hunk := re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line):
            old, new = int(hunk[1] or 1), int(hunk[2] or 1)
            yield line, "cyan"
        elif old + new > 0 and line[:1] in ("+", "-", " "):
            old -= line[0] in "- "
            new -= line[0] in "+ "
            yield line, {"+": "green", "-": "red"}.get(line[0], "")
        else:
            yield line, "bold" if line and not line.startswith("\\") else ""


def _print_patch(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for line, style in patch_styles(visible(text).splitlines()):
        console.print(Text(line, style), soft_wrap=True)


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _agreed(files: Sequence[ChangedFile]) -> bool:
    """Whether the person at the terminal wants what acts on this machine; False if nothing does."""
    acting = [file for file in files if file.acts]
    if not acting:
        return False
    write("These act on this machine when a person or a tool uses the directory:", sys.stderr)
    for file in acting:
        write(visible(changed_line(file)), sys.stderr)
    return typer.confirm("Have you looked at them, and want them applied?", err=True)


@contextmanager
def interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP are a Ctrl-C, so that what was begun is taken back; only the first counts.

    A signal that was ignored before, as `nohup` has it, stays ignored.
    """

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 the shape of a handler
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # a second one must not break off taking back
        raise KeyboardInterrupt

    before = {
        each: handler
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if (handler := signal.getsignal(each)) not in (signal.SIG_IGN, None)
    }
    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def changed_line(file: ChangedFile) -> str:
    """A sign and a path, as git has them."""
    renamed = f"{quoted(file.old_path)} -> " if file.old_path else ""
    acts = f"  (acts: {file.acts})" if file.acts else ""
    return f"{SIGNS[file.change]}  {renamed}{quoted(file.path)}{acts}"


def record_lines(record: RunRecord) -> Iterator[str]:
    """A run for people."""
    yield f"run       {record.run_id}, {record.agent} for {record.caller}"
    yield f"status    {ended_as(record.status, record.reason)}"
    yield f"task      {' '.join(record.prompt.split())}"
    if record.trace_id:
        yield f"trace     {record.trace_id}"
    result = record.result
    if result is None:
        return
    if result.message:
        yield f"message   {one_line(result.message)}"
    if result.session:
        yield f"session   {result.session}{f', {result.session_note}' * bool(result.session_note)}"
    if said := tried(result):
        yield f"runner    {said}"
    yield f"took      {result.duration_ms / 1000:.1f} s, {costs(result)}, {result.model}"
    for heading, values in (
        ("denied", (*result.denied_hosts, *result.denied_tools)),
        ("missing", result.failed_mcp_servers),
    ):
        for value in values:
            yield f"{heading:<9} {named(value)}"
    for warning in result.warnings:
        yield f"warning   {one_line(warning)}"
    for file in result.changed_files:
        yield f"changed   {changed_line(file)}"
    if result.changed_files:
        yield f"          `orchestrator apply {record.run_id}` applies it, --patch prints it"
    answer = result.result if result.result is not None else result.partial_text
    if answer:
        yield ""
        yield answer if isinstance(answer, str) else json.dumps(answer, indent=2)


def _text(run_id: str, patch: bytes) -> str:
    from orchestrator.errors import ApplyRefused

    try:
        return patch.decode()
    except UnicodeDecodeError as exc:
        raise ApplyRefused(
            f"the patch of run {run_id} is not UTF-8, so JSON cannot hold it; "
            "print it without --json"
        ) from exc


async def _record(run_id: str) -> RunRecord:
    from orchestrator.settings import read_settings
    from orchestrator.surfaces.cli.elsewhere.server_option import open_any_book

    settings = read_settings()
    async with open_any_book(settings) as book:
        return await book.record(await book.named(run_id, settings.project))


def _patch(copies: Copies, record: RunRecord) -> bytes:
    _kept_or_why(record, partial(copies.changes, record.run_id))
    return copies.patch(record.run_id)


def _kept_or_why(record: RunRecord, load: Callable[[], T]) -> T:
    """What is kept of a run; ApplyRefused, with what its record tells, if that is nothing."""
    from orchestrator.errors import ApplyRefused

    try:
        return load()
    except ApplyRefused:
        if record.result is None:
            raise ApplyRefused(
                f"run {record.run_id} has not ended, so its changes are not known yet; "
                f"`orchestrator logs -f {record.run_id}` waits for it"
            ) from None
        if not record.result.changed_files:
            raise ApplyRefused(
                f"run {record.run_id} has changed no file, so there is nothing to apply; an agent "
                "with `workspace: copy` in its agent.md changes files in a copy of the directory "
                "that --workspace names"
            ) from None
        raise
