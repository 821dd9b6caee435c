"""What `apply_changes` answers, for models and for programs: on a server, and where a relay applies
the changes itself. Pure.
"""

from __future__ import annotations

from orchestrator.domain.result import ChangedFile
from orchestrator.surfaces.mcp.answers.steps import after_look, without_empty
from orchestrator.surfaces.text import quoted
from orchestrator.workspace.applying.apply import Applied


def applied_words(
    applied: Applied, run_id: str, *, dry_run: bool, allow_acting: bool
) -> tuple[str, dict[str, object]]:
    """The text, and the structured content."""
    done = "can be applied" if dry_run else "are applied"
    lines = [f"{len(applied.files)} changed files, which {done}:", *map(_changed, applied.files)]
    acting = any(file.acts for file in applied.files)
    if dry_run and not allow_acting and acting:
        lines.append(
            "Those with a reason act on this machine: show them to the person first, and apply "
            "with allow_acting true only if the person agrees."
        )
    step = after_look(run_id, acting=acting) if dry_run and not applied.already else ""
    if step:
        lines.append(f"Next: {step}.")
    if applied.already:
        lines = ["Nothing to do: the workspace is like that already."]
    found = applied.model_dump(mode="json", exclude={"files"})
    files = [without_empty(file.model_dump(mode="json")) for file in applied.files]
    return "\n".join(lines), {"files": files, **without_empty({**found, "next": step})}


def _changed(file: ChangedFile) -> str:
    return f"{file.change} {quoted(file.path)}{f' ({file.acts})' * bool(file.acts)}"
