"""The map in orchestrator/README.md: complete, true, and in folders that can be taken in."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent / "orchestrator"

MAP = (ROOT / "README.md").read_text()

MODULES = sorted(path for path in ROOT.rglob("*.py") if path.stem != "__init__")

MOST_MODULES = 16
"""In one folder."""


def placed(text: str) -> set[str]:
    """The modules that the table names, as `folder/module`; a top-level one has no folder."""
    found: set[str] = set()
    part = ""
    for line in text[text.index("## Where things are") :].splitlines():
        if not line.startswith("| "):
            continue
        where, what = line.strip("| ").split(" | ", 1)
        if "`" in where and "&nbsp;" not in where:
            found |= set(re.findall(r"`(\w+)`", where))
            part = "".join(re.findall(r"`(\w+)/`", where)[:1])
        folder = "/".join([part, *re.findall(r"`(\w+)/`", where)] if "&nbsp;" in where else [part])
        for words in re.split(r"(?=`\w+/`)", what):
            inner = re.match(r"`(\w+)/`", words)
            here = f"{folder}/{inner.group(1)}" if inner else folder
            found |= {f"{here}/{name}" for name in re.findall(r"`(\w+)`", words)}
    return found


def test_the_map_names_every_module() -> None:
    modules = {str(path.relative_to(ROOT).with_suffix("")) for path in MODULES}
    assert modules - placed(MAP) == set()


def test_every_file_of_the_way_of_a_run_is_there() -> None:
    hops = re.findall(r"^\| \d \| `([^`]+)`", MAP, re.MULTILINE)
    assert len(hops) == 8
    assert [hop for hop in hops if not (ROOT / hop).is_file()] == []


def test_no_folder_has_more_modules_than_one_can_take_in() -> None:
    folders = [path.parent for path in MODULES]
    assert {f.name: folders.count(f) for f in folders if folders.count(f) > MOST_MODULES} == {}
