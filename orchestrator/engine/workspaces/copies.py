"""Workspaces that agents work on as copies: in when a run begins, its changes out at its end."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from orchestrator.containers.file_lock import file_lock
from orchestrator.containers.mounts import JudgedDirectory, MountPolicy
from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import MIB, Bind, Cover
from orchestrator.domain.task import Task
from orchestrator.domain.words import counted
from orchestrator.engine.record import Record
from orchestrator.errors import ApplyRefused, CallerError, CopyFailed, MountRefused
from orchestrator.plan import Plan
from orchestrator.workspace.applying.apply import Applied, apply
from orchestrator.workspace.applying.barred import barred
from orchestrator.workspace.applying.part import part_of
from orchestrator.workspace.archives.uploads import UPLOADS, Uploads
from orchestrator.workspace.changes.collected import Changes, load_changes
from orchestrator.workspace.git.mounts import git_mounts
from orchestrator.workspace.git.named import named_by_git
from orchestrator.workspace.guards import changes_in_place, guarded_mounts
from orchestrator.workspace.kept import Handed, Kept
from orchestrator.workspace.paths import Root
from orchestrator.workspace.reading.pack import NAMED_PATHS, in_words, shown
from orchestrator.workspace.reading.tree import Snapshot, nowhere
from orchestrator.workspace.snapshots import Snapshots, rebased, updated
from orchestrator.workspace.special_files import covers
from orchestrator.workspace.survey import survey
from orchestrator.workspace.transfer import carry_in, collect, copy_in, is_there

log = logging.getLogger(__name__)

PATCH_CHARS = 64 * 1024
"""A longer patch is not in the result; it is kept, and can be asked for."""

LOCK_SECONDS = 60.0
"""For another process to be done with applying what the same session changed."""

SNAPSHOTS = "snapshots"
"""The folder beside that of the changes: what copies in sessions were made of."""


class Mounted(NamedTuple):
    """What is known of a workspace that is mounted."""

    workspace: Bind | None = None
    git: tuple[Bind, ...] = ()
    covers: tuple[Cover, ...] = ()


class Copies:
    """Copies of workspaces, and what is kept of them."""

    def __init__(self, folder: Path, policy: MountPolicy, uploads: Uploads | None = None) -> None:
        self.kept = Kept(folder)
        self.uploads = uploads or Uploads(folder.parent / UPLOADS, 0)
        self._policy = policy
        self._snapshots = Snapshots(folder.parent / SNAPSHOTS)

    def check(self, agent: AgentSpec, task: Task) -> None:
        """MountRefused if the workspace is not there, or not for agents; in every mode with the
        same words. Blocks.
        """
        if task.workspace is None or agent.workspace.mode == "none":
            return
        if not self.uploads.holds(task.workspace):
            self._policy.directory(task.workspace, read_only=agent.workspace.mode != "rw")
        elif agent.workspace.mode != "copy" or not self._may_have(task):
            raise MountRefused(f"{task.workspace} is no workspace of yours; name another")

    def _may_have(self, task: Task) -> bool:
        """Whether an uploaded tree is there, and of who asks."""
        workspace = task.workspace
        owner = upload_owner(task.project, task.caller)
        return workspace is not None and self.uploads.is_of(owner, workspace) and workspace.is_dir()

    def shown_to(self, agent: AgentSpec, task: Task) -> AgentSpec:
        """The agent as this task finds it: of a tree that was sent it gets a copy, whatever its
        author says of directories; none of them is ever mounted.
        """
        workspace = agent.workspace
        sent = task.workspace is not None and self.uploads.holds(task.workspace)
        if not sent or workspace.mode in ("none", "copy"):
            return agent
        copied = workspace.model_copy(update={"mode": "copy"})
        return agent.model_copy(update={"workspace": copied})

    def git_mounts(self, agent: AgentSpec, task: Task) -> tuple[Bind, ...]:
        """What a workspace that is mounted needs besides, for git's sake and for ours. Blocks."""
        mode = agent.workspace.mode
        if task.workspace is None or mode not in ("ro", "rw") or not task.workspace.is_dir():
            return ()
        # First this: what no agent may see is not looked through either.
        self._policy.directory(task.workspace, read_only=mode == "ro")
        if mode == "ro":
            return git_mounts(task.workspace, "ro", self._may_read)
        root = task.workspace.resolve()
        found = survey(root)
        git = git_mounts(root, "rw", self._may_read, found.git)
        named = named_by_git(root, found.working_trees, self._policy.home, self._policy.git_configs)
        return guarded_mounts(found, named, git)

    def mounted(self, agent: AgentSpec, task: Task) -> Mounted:
        """A workspace that is mounted, and what has to be mounted with it. Blocks."""
        mode, workspace = agent.workspace.mode, task.workspace
        if workspace is None or mode not in ("ro", "rw") or not workspace.is_dir():
            return Mounted()
        judged = self._policy.judged(workspace, read_only=mode == "ro")
        binds = self.git_mounts(agent, task)
        shown = Bind(source=str(judged.path), read_only=mode == "ro", identity=judged.identity)
        return Mounted(shown, binds, covers((shown, *binds)))

    @asynccontextmanager
    async def watched_git(self, plan: Plan, record: Record) -> AsyncIterator[None]:
        """Tell of every .git that an agent makes in a workspace: git would run what it says. So of
        what it changes there that acts on this machine, or that is an orchestrator's.
        """
        workspace = plan.task.workspace
        if workspace is None or plan.agent.workspace.mode != "rw" or not workspace.is_dir():
            yield
            return
        root = workspace.resolve()
        before = await anyio.to_thread.run_sync(survey, root)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                told = await anyio.to_thread.run_sync(changes_in_place, before)
            for warning in told:
                record.note("warning", warning)

    async def bring(
        self, workspace: Path, agent: AgentSpec, container: Container, record: Record
    ) -> Snapshot:
        """The workspace into the container; in a session, once, as long as its copy is there."""
        sent = self.uploads.holds(workspace)
        judge = judged_upload if sent else self._policy.judged
        judged = await anyio.to_thread.run_sync(judge, workspace)
        root = judged.path
        keep = agent.session.keep
        known = (
            await anyio.to_thread.run_sync(self._snapshots.get, container.name) if keep else None
        )
        if known is not None and known.root == root:
            # A session that was removed and begun anew has the same name, and an empty volume.
            if await is_there(container, known):
                return known
            record.note("warning", f"the session's copy of {root} is gone; here is a new one")
        snapshot = await copy_in(
            container,
            root,
            identity=judged.identity,
            gitignore=agent.workspace.gitignore,
            limit_bytes=agent.resources.disk_bytes,
            allowed=nowhere if sent else self._may_read,
            marked=keep,
        )
        if keep:
            await anyio.to_thread.run_sync(self._keep_snapshot, container.name, snapshot)
        size = snapshot.total_bytes / MIB
        record.note(
            "workspace",
            f"a copy of {'what was sent' if sent else root}: "
            f"{counted(snapshot.total_count, 'file')}, {size:.1f} MiB",
            files=snapshot.total_count,
            bytes=snapshot.total_bytes,
        )
        for warning in snapshot.warnings:
            record.note("warning", warning)
        return snapshot

    def _keep_snapshot(self, container: str, snapshot: Snapshot) -> None:
        with self._alone(container):
            self._snapshots.keep(container, snapshot)

    async def hand_back(
        self, plan: Plan, container: Container, snapshot: Snapshot, record: Record
    ) -> Handed:
        """What the agent changed; every process inside is ended for it.

        CopyFailed, and an earlier checkpoint stays, if it is not all of it.
        """
        run_id = plan.task.run_id
        changes, handed = await self._collect(plan, container, snapshot, record, at_work=False)
        earlier = await anyio.to_thread.run_sync(self.kept.checkpoints, run_id)
        if earlier and not changes.complete:
            raise CopyFailed(changes.warnings[-1])
        files = len(handed.changed_files)
        line = "; ".join((f"{counted(files, 'file')} changed", *changes.by_products))
        record.note("workspace", line, files=files)
        told = await anyio.to_thread.run_sync(self._worth_a_look, changes)
        for warning in (*changes.warnings, *told):
            record.note("warning", warning)
        await self._keep(run_id, handed, at_work=False)
        return handed

    def _worth_a_look(self, changes: Changes) -> list[str]:
        """What a person should know of the changes before they are applied. Blocks."""
        try:
            with Root(changes.root) as tree:
                never = barred(
                    changes,
                    tree,
                    self._policy.own_places(),
                    self._policy.home,
                    self._policy.git_configs,
                )
        except OSError:
            never = []  # it is gone, or another one; `apply` will say so
        told = [f"the changes cannot be applied as they are: {in_words(never, 3)}"] if never else []
        if changes.acting:
            acting = [f"{shown(path)} ({why})" for path, why in changes.acting.items()]
            told.append(
                "some of the changed files act on this machine when a person or a tool uses the "
                f"directory, so `apply` wants a word for them: {in_words(acting, NAMED_PATHS)}"
            )
        return told

    async def checkpoint(
        self, plan: Plan, container: Container, snapshot: Snapshot, record: Record
    ) -> None:
        """Save what the agent has changed so far, while it goes on; CopyFailed if it cannot be."""
        changes, handed = await self._collect(plan, container, snapshot, record, at_work=True)
        if not changes.complete:
            raise CopyFailed(changes.warnings[-1])
        await self._keep(plan.task.run_id, handed, at_work=True)
        if files := len(handed.changed_files):
            record.note("workspace", f"{counted(files, 'file')} changed so far; saved", files=files)

    async def carry_over(self, run_id: str, container: Container, record: Record) -> bool:
        """Do to a new copy what the run has handed back of the one before, on another runner;
        False if that is nothing, or, and it is told, cannot be done.
        """
        if await anyio.to_thread.run_sync(self.kept.handed, run_id) is None:
            return False
        folder = self.kept.of(run_id)
        try:
            changes = await anyio.to_thread.run_sync(load_changes, folder)
            await carry_in(container, changes)
        except (ApplyRefused, CopyFailed) as exc:
            aside = self.kept.next_aside(run_id)
            message = f"what the runner before had changed is not in the copy: {exc}"
            record.note("warning", f"{message}. It stays in {aside} once this one hands back")
            return False
        files = len(changes.files)
        line = f"{counted(files, 'file')} that the runner before had changed are in the copy"
        record.note("workspace", line, files=files)
        return True

    async def recall(self, run_id: str, record: Record) -> Handed | None:
        """The last checkpoint, of a run that cannot hand back."""
        handed = await anyio.to_thread.run_sync(self.kept.recall, run_id)
        if handed is not None:
            record.note("warning", f"of its changes, those up to {handed.when} are handed back")
        return handed

    def changes(self, run_id: str) -> Changes:
        """What a run changed; ApplyRefused if nothing is kept of it. Blocks."""
        return load_changes(self.kept.of(run_id))

    def patch(self, run_id: str) -> bytes:
        """All of it, as `git apply` takes it; ApplyRefused if there is none. Blocks."""
        path = self.changes(run_id).patch_path
        if path is None:
            raise ApplyRefused(f"there is no patch of run {run_id}, but its files are kept")
        return path.read_bytes()

    def apply(
        self,
        run_id: str,
        *,
        to: Path | None = None,
        paths: Sequence[str] = (),
        dry_run: bool,
        allow_links: bool = False,
        allow_acting: bool = False,
    ) -> Applied:
        """Do to the workspace what the agent did to its copy, or to these paths of it. Blocks.

        A copy that stays in a session counts from then on as made of what is there now, so that
        what the agent does next is compared with that.
        """
        changes = self.changes(run_id)
        if to is None and self.uploads.holds(changes.root):
            raise ApplyRefused(
                f"the workspace of run {run_id} was sent here by a client, so there is nothing to "
                "apply its changes to; apply them there: `orchestrator apply RUN --server URL`, or "
                "apply_changes through `orchestrator connect`"
            )
        judged = self._policy.judged(to or changes.root)
        root = judged.path
        do = partial(
            apply,
            root=root,
            identity=judged.identity,
            dry_run=dry_run,
            allow_links=allow_links,
            allow_acting=allow_acting,
            own=self._policy.own_places(),
            home=self._policy.home,
            configs=self._policy.git_configs,
        )
        handed = self.kept.handed(run_id)
        if handed is None or not handed.container:
            return do(part_of(changes, paths))
        with self._alone(handed.container):
            known = self._snapshots.get(handed.container)
            if known is None or (known.marker, known.root) != (handed.marker.encode(), root):
                return do(part_of(changes, paths), in_session=True)
            changes = part_of(rebased(changes, known, at=handed.at), paths)
            applied = do(changes, in_session=True)
            if not dry_run:
                kept = applied.kept_folders
                after = updated(known, changes, kept, at=handed.at, now=time.time())
                self._remember(handed, after)
            return applied

    @contextmanager
    def _alone(self, container: str) -> Iterator[None]:
        """Nobody else reads and writes the snapshot of this session's copy; others may, of theirs.

        One that is read before another is made, and written after it, would lose the new copy.
        """
        lock = self._snapshots.folder / f"{container}.lock"
        with file_lock(lock, LOCK_SECONDS, lambda: None):
            yield

    def _remember(self, handed: Handed, snapshot: Snapshot) -> None:
        try:
            self._snapshots.keep(handed.container, snapshot)
        except OSError as exc:  # the changes are applied; to apply them again mends this
            log.warning(
                "what was applied is not noted for the session, which may refuse to apply more of "
                "the same files until you apply it again: %s",
                exc.strerror,
            )

    async def _collect(
        self, plan: Plan, container: Container, snapshot: Snapshot, record: Record, *, at_work: bool
    ) -> tuple[Changes, Handed]:
        seen: dict[str, object] = {"at": time.time()}
        if plan.agent.session.keep:
            seen |= {"container": container.name, "marker": snapshot.marker.decode()}
            latest = await anyio.to_thread.run_sync(self._snapshots.get, container.name)
            if latest is not None and latest.marker == snapshot.marker:
                snapshot = latest  # something was applied since the run began
        folder = await anyio.to_thread.run_sync(self.kept.new, plan.task.run_id)
        limit = plan.agent.resources.disk_bytes
        changes = await collect(container, snapshot, folder, limit_bytes=limit, at_work=at_work)
        patch, why = await anyio.to_thread.run_sync(_short_patch, changes)
        if why and not at_work:
            record.note(
                "warning",
                f"the patch is not in the result, since {why}; "
                f"`orchestrator show {plan.task.run_id} --patch` prints it",
            )
        seen["changed_files"] = record.clean_value([file.model_dump() for file in changes.files])
        seen["patch"] = record.clean(patch)
        return changes, Handed.model_validate(seen)

    async def _keep(self, run_id: str, handed: Handed, *, at_work: bool) -> None:
        try:
            await anyio.to_thread.run_sync(partial(self.kept.keep, run_id, handed, at_work=at_work))
        except OSError as exc:
            place = self.kept.of(run_id)
            raise CopyFailed(f"the changes cannot be kept in {place}: {exc.strerror}") from exc

    def _may_read(self, path: Path) -> bool:
        """Whether a resolved path is for agents, and has not become a link to what is."""
        try:
            return self._policy.directory(path) == path
        except CallerError:
            return False


def upload_owner(project: str, caller: str) -> str:
    """Whose uploads are whose: one name for each caller of a project."""
    return f"{project}\0{caller}"


def judged_upload(tree: Path) -> JudgedDirectory:
    """A tree that was sent, and that is the task's to copy. MountRefused if it is gone. Blocks."""
    try:
        with Root(tree) as top:
            return JudgedDirectory(path=tree, identity=top.identity)
    except OSError as exc:
        raise MountRefused(
            "the workspace that was sent is not there any more; send it again"
        ) from exc


def _short_patch(changes: Changes) -> tuple[str, str]:
    """The patch for a result, byte for byte; without it, why it is not there."""
    path = changes.utf8_patch_path
    if path is None:
        return "", ""  # the changes say why
    if path.stat().st_size > PATCH_CHARS:
        return "", f"it has more than {PATCH_CHARS // 1024} KiB"
    try:
        return path.read_bytes().decode(), ""
    except UnicodeDecodeError:
        return "", "it is not UTF-8"
