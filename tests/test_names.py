"""One word, one thing: no class has two meanings, no constant two values."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent / "orchestrator"

ALONE = {"wire/warden.py", "workspace/inside.py", "doctor/probe.py", "containers/disk_count.py"}
"""Programs that run inside a container by themselves: they can import nothing of ours."""


def top_level() -> Iterator[tuple[Path, ast.stmt]]:
    for path in sorted(ROOT.rglob("*.py")):
        if str(path.relative_to(ROOT)) not in ALONE:
            yield from ((path, node) for node in ast.parse(path.read_text()).body)


def test_a_class_or_type_name_stands_in_one_module() -> None:
    homes: dict[str, set[str]] = defaultdict(set)
    for path, node in top_level():
        name = ""
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.id if isinstance(target, ast.Name) else ""
            if name.isupper() or not name[:1].isupper():
                name = ""  # a constant or a variable
        if name and name != "T":  # a type variable means nothing by itself
            homes[name].add(str(path.relative_to(ROOT)))
    assert {name: sorted(at) for name, at in homes.items() if len(at) > 1} == {}


def test_a_constant_has_one_value() -> None:
    values: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for path, node in top_level():
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1:
                values[target.id].add((str(path.relative_to(ROOT)), ast.unparse(node.value)))
    assert {name: sorted(at) for name, at in values.items() if len(at) > 1} == {}
