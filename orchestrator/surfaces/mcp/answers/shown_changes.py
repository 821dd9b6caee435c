"""What an agent changed -> what an answer shows of it: a short patch of texts, the rest by name."""

from __future__ import annotations

import re

from orchestrator.domain.result import ChangedFile, RunResult

RUN_URI = "orchestrator://runs/"

PATCH_URI = "/patch"

SHOWN_PATCH_LINES = 400
"""Of the patch in an answer; a longer one is read at `patch_uri`."""

SHOWN_PATCH_CHARS = 32 * 1024

SHOWN_FILES = 200
"""Of the changed files in an answer; get_task_details names all of them."""

_BINARY = re.compile(r"^(GIT binary patch|Binary files .* differ)$", re.MULTILINE)


def shown_changes(result: RunResult, *, whole: bool = False) -> dict[str, object]:
    """Fields of an answer: the changed files, texts first, and the patch of the texts if it is
    short. All of the patch is at `patch_uri` if the answer lacks any of it.
    """
    if not result.changed_files:
        return {}
    sections = _sections(result.patch)
    listed = [_listed(file, sections.get(_header(file))) for file in result.changed_files]
    listed.sort(key=lambda file: "binary" in file)
    shown = listed if whole else listed[:SHOWN_FILES]
    said: dict[str, object] = {"changed_files": shown}
    if len(shown) < len(listed):
        said["changed_files_more"] = len(listed) - len(shown)
    texts = "".join(part for part in sections.values() if not _BINARY.search(part))
    if len(texts) > SHOWN_PATCH_CHARS or texts.count("\n") > SHOWN_PATCH_LINES:
        texts = ""
    if texts:
        said["patch"] = texts
    if texts != result.patch:
        said["patch_uri"] = f"{RUN_URI}{result.run_id}{PATCH_URI}"
    return said


def _sections(patch: str) -> dict[str, str]:
    """The patch of each file, by its first line. Lines of a file begin with a sign, so none of them
    looks like that. What has become another kind of thing has two parts.
    """
    found: dict[str, str] = {}
    for part in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE):
        header = part.partition("\n")[0]
        found[header] = found.get(header, "") + part
    return found


def _header(file: ChangedFile) -> str:
    return f"diff --git a/{file.old_path or file.path} b/{file.path}"


def _listed(file: ChangedFile, section: str | None) -> dict[str, object]:
    said: dict[str, object] = {"path": file.path, "change": file.change}
    if file.old_path:
        said["old_path"] = file.old_path
    if file.acts:
        said["acts"] = file.acts
    if section is None:
        return said
    if _BINARY.search(section):
        return {**said, "binary": True}
    lines = section.partition("\n@@ ")[2].split("\n")[1:]
    return {
        **said,
        "added_lines": sum(line.startswith("+") for line in lines),
        "removed_lines": sum(line.startswith("-") for line in lines),
    }
