"""The drawing of the house, kept true: imports go one way, each outside world has one home."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "orchestrator"

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"surfaces"}),
    frozenset({"app"}),
    frozenset({"state"}),
    frozenset({"engine", "doctor", "checker", "telemetry"}),
    frozenset({"gateway", "plan", "store", "client"}),
    frozenset({"tool_rules"}),
    frozenset(
        {"catalog", "access", "output", "redaction", "surroundings", "runners", "containers"}
        | {"workspace", "trust"}
    ),
    frozenset({"settings", "outside_access"}),
    frozenset({"wire", "plain_yaml", "links", "shipped"}),
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
    "httpx2": {"gateway", "client"},
    "httpcore2": {"gateway"},
    "mcp_types": {"surfaces", "gateway"},
    "jsonschema": {"output"},
    "jsonschema_specifications": {"output"},
    "referencing": {"output"},
    "opentelemetry": {"telemetry"},
    "prometheus_client": {"telemetry"},
    "typer": {"surfaces"},
    "rich": {"surfaces"},
}
"""Which part may import which library."""

MODULES = sorted(ROOT.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """Each rule reads all modules; each is parsed once."""
    return ast.parse(path.read_text())


def part(path: Path) -> str:
    inside = path.relative_to(ROOT)
    return inside.parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            yield node.module or ""


def ours_in(path: Path) -> list[str]:
    return [name for name in imports(path) if name.startswith("orchestrator.")]


def test_only_the_packages_of_agent_clis_know_one_of_them() -> None:
    shared = {"contract", "known", "signs", "json_fields", "launching", "rule_names"}
    shared |= {"rules", "choice"}
    for path in MODULES:
        if part(path) == "runners":
            continue
        used = {name.split(".")[2] for name in ours_in(path) if ".runners." in name}
        assert used <= shared, f"{path} imports {used - shared}"


def test_imports_go_one_way() -> None:
    depth = {name: n for n, layer in enumerate(LAYERS) for name in layer}
    assert ours_in(ROOT / "__init__.py") == []
    for path in MODULES:
        mine = part(path)
        for name in ours_in(path):
            theirs = name.split(".")[1]
            assert theirs == mine or depth[theirs] > depth[mine], f"{path} imports {theirs}"


def test_http_knows_nothing_of_what_is_served_over_it() -> None:
    for path in MODULES:
        if path.is_relative_to(ROOT / "gateway" / "http"):
            ours = [name for name in ours_in(path) if name.startswith("orchestrator.gateway")]
            served = [name for name in ours if not name.startswith("orchestrator.gateway.http")]
            assert served == [], path


def test_each_outside_world_has_one_home() -> None:
    for path in MODULES:
        for name in imports(path):
            library = name.split(".")[0]
            assert part(path) in HOMES.get(library, {part(path)}), f"{library} in {path}"


def test_only_settings_reads_the_environment() -> None:
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
                assert part(path) == "settings", f"{path}:{node.lineno}"


def test_the_warden_needs_nothing_but_the_standard_library() -> None:
    allowed = {"__future__", "_signal", "_socket", "collections.abc", "errno", "os", "select"}
    allowed |= {"struct", "sys", "time", "traceback"}
    assert set(imports(ROOT / "wire" / "warden.py")) <= allowed


def test_the_program_inside_a_copy_needs_nothing_but_the_standard_library() -> None:
    allowed = {"__future__", "collections.abc", "errno", "hashlib", "json", "os", "stat"}
    assert set(imports(ROOT / "workspace" / "inside.py")) <= allowed | {"struct", "sys", "typing"}


# Surfaces translate, and nothing else


STATEMENT = re.compile(
    r"\s*(SELECT\s|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|WITH\s+\w+"
    r"|(CREATE|ALTER|DROP)\s+(TABLE|INDEX|VIEW)\s|PRAGMA\s|VACUUM\b|BEGIN\b)"
)
"""How a statement of SQL begins."""

COMPOSE = ("app.py", "state.py")
"""The modules that choose the parts of an orchestrator and put them together."""


NOUNS = ("orchestrator.domain", "orchestrator.errors")
"""What is made anywhere."""

GIVEN = {"Service", "Tasks", "OutsideService"}
"""Parts that surfaces are handed, ready made, and name in their signatures."""


def called(node: ast.Call) -> str:
    """The name that is called, without what it belongs to."""
    if isinstance(node.func, ast.Subscript):  # Pool[WaitingStage](...)
        return ast.unparse(node.func.value)
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def sql_in(tree: ast.Module) -> list[int]:
    """The lines that hold SQL, or give it to a database."""
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and STATEMENT.match(str(node.value)))
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("execute", "executemany", "executescript", "select")
        )
    )


@cache
def parts() -> frozenset[str]:
    """The classes that are composed, and what makes an engine or a runtime on one."""
    found = {"connect", "open_docker"}
    for module in COMPOSE:
        tree = parsed(ROOT / module)
        ours = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("orchestrator.")
            and not (node.module or "").startswith(NOUNS)
            for alias in node.names
        }
        made = {called(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        found |= {name for name in made & ours if name[0].isupper()}
    return frozenset(found)


def composed_in(tree: ast.Module) -> list[int]:
    """The lines that make a part, or import one for more than its type."""
    makes = parts()
    types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Call) and called(node) in makes)
        or (
            isinstance(node, ast.ImportFrom)
            and node not in types
            and not makes.isdisjoint({alias.name for alias in node.names} - GIVEN)
        )
    )


def test_only_the_store_speaks_sql() -> None:
    for path in MODULES:
        if part(path) != "store":
            assert sql_in(parsed(path)) == [], path


def test_surfaces_compose_nothing() -> None:
    for path in MODULES:
        if part(path) == "surfaces":
            assert composed_in(parsed(path)) == [], path


def test_what_surfaces_may_not_do_would_be_seen() -> None:
    known = {"Store", "Owner", "Exchanges", "Kept", "TaskBook", "Tasks", "Service", "Staging"}
    assert known | {"Pool", "SessionRows", "LazyRuntime", "connect", "open_docker"} <= parts()
    assert composed_in(
        ast.parse("a = 1\nstore = Store(path)\nbook = task_book.TaskBook(store)")
    ) == [2, 3]
    assert composed_in(ast.parse("engine = connect(settings)\npool = Pool[int](2)")) == [1, 2]
    assert composed_in(
        ast.parse("from a import Store\nif TYPE_CHECKING:\n    from a import Owner")
    ) == [1]
    assert sql_in(ast.parse("x = 1\ny = f'SELECT {x} FROM runs'\ndb.execute(y)")) == [2, 3]
    assert sql_in(ast.parse("say('DELETE')\nsay('WITHOUT')\nsay('select one')")) == []
