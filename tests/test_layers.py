"""The drawing of the house, kept true: imports go one way, each outside world has one home."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "orchestrator"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"surfaces"}),
    frozenset({"app"}),
    frozenset({"engine", "doctor"}),
    frozenset({"gateway", "plan", "store"}),
    frozenset(
        {"catalog", "access", "output", "redaction", "surroundings", "runners", "containers"}
        | {"workspace"}
    ),
    frozenset({"settings"}),
    frozenset({"wire", "plain_yaml"}),
    frozenset({"domain"}),
    frozenset({"errors"}),
)
"""From the top down; a part may import from the layers below its own, and from itself."""

HOMES = {
    "docker": {"containers"},
    "requests": {"containers"},
    "mcp": {"surfaces", "gateway"},
    "yaml": {"plain_yaml"},
    "h11": {"gateway"},
    "httpx": {"gateway"},
    "jsonschema": {"output"},
    "jsonschema_specifications": {"output"},
    "referencing": {"output"},
    "typer": {"surfaces"},
    "rich": {"surfaces"},
}
"""Which part may import which library."""

MODULES = sorted(ROOT.rglob("*.py"))


def part(path: Path) -> str:
    inside = path.relative_to(ROOT)
    return inside.parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            yield node.module or ""


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    depth = {name: n for n, layer in enumerate(LAYERS) for name in layer}
    mine = part(path)
    if mine == "__init__":
        assert not [name for name in imports(path) if name.startswith("orchestrator.")]
        return
    for name in imports(path):
        if name.startswith("orchestrator."):
            theirs = name.split(".")[1]
            assert theirs == mine or depth[theirs] > depth[mine], f"{mine} imports {theirs}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_outside_world_has_one_home(path: Path) -> None:
    for name in imports(path):
        library = name.split(".")[0]
        assert part(path) in HOMES.get(library, {part(path)}), f"{library} in {path}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_settings_reads_the_environment(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
            assert part(path) == "settings", f"{path}:{node.lineno}"


def test_the_warden_needs_nothing_but_the_standard_library() -> None:
    allowed = {"__future__", "_signal", "_socket", "collections.abc", "errno", "os", "select"}
    allowed |= {"struct", "sys", "time", "traceback"}
    assert set(imports(ROOT / "wire" / "warden.py")) <= allowed


def test_the_program_inside_a_copy_needs_nothing_but_the_standard_library() -> None:
    allowed = {"__future__", "collections.abc", "errno", "hashlib", "json", "os", "stat"}
    assert set(imports(ROOT / "workspace" / "inside.py")) <= allowed | {"struct", "sys", "typing"}
