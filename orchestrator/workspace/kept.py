"""What is kept of the copies of runs, in one folder.

RUN is what a run has handed back, RUN.MILLISECONDS a checkpoint: what it had changed by then. Both
are written as RUN.new and renamed, so that a crash leaves the checkpoint before it as it was. A run
that goes on with another runner hands back once more; what was RUN is RUN.tried-1 then.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from orchestrator.domain import Frozen
from orchestrator.domain.result import ChangedFile
from orchestrator.errors import ApplyRefused

CHANGES = "changes"
"""The folder, in the state directory."""

HANDED = "handed.json"

EARLIER_COPY = ".before"
"""Of the name: what a run had saved before its orchestrator was killed and it began again."""

TRIED_COPY = ".tried-"
"""The same, and a number, of what it had handed back on a runner that could not go on. It is there
once another has handed back: until then it is the run's."""

RUN_ID = re.compile(r"r[0-9a-f]{1,32}")
"""The ids that we give: a record of runs that another program wrote may hold any text."""


class Handed(Frozen):
    """What a run hands back of its copy, without secrets; beside it are the files themselves."""

    at: float
    changed_files: tuple[ChangedFile, ...] = ()
    patch: str = ""
    """Empty if it is too long, or no text."""
    container: str = ""
    """Whose copy it is, if that stays in its session."""
    marker: str = ""
    """Which one of its copies."""

    @property
    def when(self) -> str:
        return time.strftime("%H:%M:%S UTC", time.gmtime(self.at))


class Kept:
    """One run's next to the other's. All of it blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, run_id: str) -> Path:
        """Where a run's changes are, once it has ended."""
        if not RUN_ID.fullmatch(run_id):  # it becomes a path, and what is there is removed
            raise ApplyRefused(f"{run_id[:60]!r} is no run; `orchestrator runs` lists them")
        for place in (self._folder, self._folder / run_id, self._folder / f"{run_id}.new"):
            if place.is_symlink():  # what is there is read, written over and removed
                raise ApplyRefused(f"{place} is a link, which no orchestrator makes; remove it")
        return self._folder / run_id

    def new(self, run_id: str) -> Path:
        """Where changes are written, which no reader looks at until they are kept."""
        place = self.of(run_id).with_suffix(".new")
        shutil.rmtree(place, ignore_errors=True)  # a crash, or a run that ended, may have left it
        return place

    def checkpoints(self, run_id: str) -> list[Path]:
        """The last one comes last; there are two only after a crash."""
        return sorted(self._folder.glob(f"{self.of(run_id).name}.[0-9]*"))

    def keep(self, run_id: str, handed: Handed, *, at_work: bool) -> None:
        """Let what was written replace what was kept before; nothing, if nothing has changed."""
        before, new = self.checkpoints(run_id), self.of(run_id).with_suffix(".new")
        if handed.changed_files:
            (new / HANDED).write_text(handed.model_dump_json())
        if not at_work:
            self._put_by(run_id)
        if handed.changed_files:
            name = f".{int(handed.at * 1000)}" if at_work else ""
            new.rename(self.of(run_id).with_suffix(name))
        for stale in (*before, new):
            shutil.rmtree(stale, ignore_errors=True)

    def recall(self, run_id: str) -> Handed | None:
        """What is kept of a run that cannot hand back any more: its checkpoint becomes its changes.

        Several processes may do so at once.
        """
        before, handed = self.checkpoints(run_id), self.handed(run_id)
        for last in before[-1:]:
            if handed is not None and _saved_at(last) > handed.at:  # on an earlier runner
                self._put_by(run_id)
            with suppress(OSError):  # another process was faster, or the run had just handed back
                last.rename(self.of(run_id))
        for stale in (*before, self.new(run_id)):
            shutil.rmtree(stale, ignore_errors=True)
        return self.handed(run_id)

    def next_aside(self, run_id: str) -> Path:
        """Where what a run has handed back is once it hands back again, on another runner."""
        own = self.of(run_id)
        places = (own.with_suffix(f"{TRIED_COPY}{number}") for number in itertools.count(1))
        return next(place for place in places if not os.path.lexists(place))

    def _put_by(self, run_id: str) -> None:
        with suppress(FileNotFoundError):  # there is nothing, as a rule
            self.of(run_id).rename(self.next_aside(run_id))

    def set_aside(self, run_id: str) -> Handed | None:
        """Make room for a run that begins again; what it had saved, which RUN.before has then."""
        if self.recall(run_id) is None:
            return None
        aside = self.of(run_id).with_suffix(EARLIER_COPY)
        shutil.rmtree(aside, ignore_errors=True)
        saved = self.handed(run_id)
        self.of(run_id).rename(aside)
        return saved

    def handed(self, run_id: str) -> Handed | None:
        """What a run has handed back; None if it has not, or if that cannot be read."""
        try:
            return Handed.model_validate_json((self.of(run_id) / HANDED).read_text())
        except (OSError, ValidationError):
            return None

    def remove(self, run_id: str) -> None:
        own = self.of(run_id)
        earlier = (own.with_suffix(EARLIER_COPY), *self._folder.glob(f"{own.name}{TRIED_COPY}*"))
        for place in (own, *earlier, self.new(run_id), *self.checkpoints(run_id)):
            shutil.rmtree(place, ignore_errors=True)

    def sizes(self) -> dict[str, int]:
        """What is kept of each run takes so many bytes on the disk."""
        sizes: Counter[str] = Counter()
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            sizes[folder.name.partition(".")[0]] += sum(map(_size, folder.rglob("*")))
        return sizes


def _saved_at(checkpoint: Path) -> float:
    return int(checkpoint.suffix[1:]) / 1000 if checkpoint.suffix[1:].isdecimal() else 0.0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:  # removed by another process in between
        return 0
