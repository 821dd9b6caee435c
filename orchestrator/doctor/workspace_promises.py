"""What we promise of a workspace: to be read, it is not written; of a copy, little comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.doctor.container_promises import Probes
from orchestrator.doctor.promise import Finding, ProbeFailed, Promise, ask
from orchestrator.domain.container import WORKSPACE, Bind, Launch, Volume
from orchestrator.errors import ApplyRefused, MountRefused
from orchestrator.workspace.applying.apply import apply
from orchestrator.workspace.transfer import collect, copy_in

BEFORE = "as it was\n"

MISCHIEF = """
echo changed > note && echo new > made && ln -s /etc/passwd out
echo evil >> .git/config; mkdir -p .git/hooks sub/.git
echo evil > .git/hooks/post-checkout; echo evil > sub/.git/config
"""


async def _read_only(probes: Probes) -> Finding:
    if probes.workspace is None:
        return True, "no directory may be shown to a container at all"
    bind = Bind(source=str(probes.workspace), read_only=True)
    try:
        async with probes.open(probes.spec.model_copy(update={"mounts": (bind,)})) as container:
            seen = await ask(container, "mounted", WORKSPACE)
    except MountRefused as exc:
        return True, f"no directory of this machine can be shown: {exc}"
    if not seen["read_only"] or seen["writable"]:
        return False, f"{probes.workspace} can be written, although it is shown to be read"
    return True, "a directory that is shown to be read is mounted read-only"


async def _copied(probes: Probes) -> Finding:
    spec = probes.spec.model_copy(update={"mounts": (Volume(target=WORKSPACE),)})
    with tempfile.TemporaryDirectory(prefix="orchestrator-doctor-") as folder:
        root = await anyio.to_thread.run_sync(_written_tree, Path(folder) / "tree")
        async with probes.open(spec) as container:
            snapshot = await copy_in(container, root)
            done = await container.run(Launch(argv=("sh", "-c", MISCHIEF), cwd=WORKSPACE))
            if done.code:
                raise ProbeFailed(f"the copy cannot be written: {done.stderr[-200:].decode()}")
            changes = await collect(container, snapshot, Path(folder) / "changes")
        paths = {change.path for change in changes.changes}
        of_git = sorted(path for path in paths if ".git" in path.lower().split("/"))
        if of_git or not {"note", "made"} <= paths:
            return False, f"handed back: {', '.join(of_git or sorted(paths)) or 'nothing'}"
        try:
            await anyio.to_thread.run_sync(apply, changes, root)
        except ApplyRefused:
            if (root / "note").read_text() == BEFORE:
                return True, "changes come back; nothing of .git does, and no link out is applied"
        return False, "a link that leads out of the workspace was applied"


def _written_tree(root: Path) -> Path:
    """Where it really is: a directory is copied by a path without symbolic links."""
    (root / ".git").mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (root / "note").write_text(BEFORE)
    return root.resolve()


WORKSPACES: tuple[Promise[Probes], ...] = (
    Promise(
        "workspace",
        "a workspace that is shown to be read cannot be written",
        _read_only,
        "do not run agents here: the engine or its OCI runtime ignores read-only mounts; compare "
        "with `docker run --volume DIRECTORY:/workspace:ro`",
    ),
    Promise(
        "workspace copy",
        "of a copy, neither git's files nor links out of it come back",
        _copied,
        "this is the orchestrator's own doing, not the engine's: report it, and do not apply what "
        "agents changed until it is mended",
    ),
)
