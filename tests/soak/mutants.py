"""Source -> mutants: the same source with one small mistake in it. Pure.

The mistakes, each at a place of its own:

- compare: `<` for `<=`, `==` for `!=`, `in` for `not in`, `is` for `is not`, and back
- logic: `and` for `or` and back; `not` left away
- arithmetic: `+` for `-` and back
- condition: the condition of an `if`, a `while` or a conditional expression is False
- bool: `return True` for `return False` and back
- number: a whole number is one more
- return: a function that gives nothing returns at once
- removed: a call whose value is not used, an assignment to an attribute or an item, `raise`,
  `del`, `continue` or `break` is not there

Left out, because no test should care:

- strings: a message may be worded anew
- log lines, `__repr__` and `__str__`: they are for people
- numbers that are choices: constants and defaults that are a number or made of numbers, and
  arguments whose name ends in a unit; whether the bound itself is kept is asked by `compare`
- annotations and decorators, with the limits of fields in them: choices too
- what is never run (`if TYPE_CHECKING:`, `assert`)

Left out, because every test would notice:

- `+` beside a string, bytes, a list or a tuple, which have no `-`
- `await x` as a statement: what it starts would never be awaited, which is a warning, and those are
  errors

Left out, because Python 3.11 does not tell where it stands: what is inside an f-string.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

UNIT = re.compile(
    r"(^|_)(seconds|timeout|deadline|ms|bytes|chars|size|limit|max|min|maxsize|lines|depth)$",
    re.IGNORECASE,
)
"""Of a name: what it names is a number that somebody has chosen."""

SHOWN_CHARS = 100
"""Of the source on either side of a mutation."""


@dataclass(frozen=True)
class Mutant:
    """One mistake: bytes `start` to `end` of the file at `path` are `text` instead."""

    path: str
    line: int
    source: str
    """The line in which it begins."""
    above: str
    """The line before that: a `break` by itself says little."""
    mutation: str
    """What was there -> what is there."""
    function: str
    """The innermost function around it, by its qualified name; "" outside all functions."""
    function_line: int
    """Where that function begins, with its decorators; 0 outside all functions."""
    start: int
    end: int
    text: bytes

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.mutation}"


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


def sample(sources: Mapping[str, bytes], count: int, seed: int) -> list[Mutant]:
    """So many mutants of all these files, at random.

    A mutant is drawn for what it is, not for where it stands: a change elsewhere, or a file that
    has moved, leaves the sample as it is.
    """
    seen: Counter[str] = Counter()
    ranked = []
    for path in sorted(sources):
        for mutant in mutants(path, sources[path]):
            name = f"{mutant.function}|{mutant.source}|{mutant.mutation}"
            seen[name] += 1
            rank = hashlib.sha256(f"{seed}|{name}|{seen[name]}".encode()).digest()
            ranked.append((rank, mutant))
    ranked.sort(key=lambda pair: pair[0])
    sound = (m for _, m in ranked if _compiles(m.applied(sources[m.path])))
    return sorted(islice(sound, count), key=lambda m: (m.path, m.start))


def _compiles(source: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as for `1 is 2`
        try:
            compile(source, "mutant", "exec")
        except (SyntaxError, SyntaxWarning):
            return False
    return True


class _Finder(ast.NodeVisitor):
    """Walks over what may be mutated, and remembers in which function it is."""

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._functions: list[tuple[str, int]] = []
        self._scopes: list[str] = []

    # What is left out

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_Call(self, node: ast.Call) -> None:
        if _is_log(node):
            return
        self.visit(node.func)
        for part in node.args:
            self.visit(part)
        for keyword in node.keywords:
            if keyword.arg is None or not UNIT.search(keyword.arg) or not _chosen(keyword.value):
                self.visit(keyword.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._removable(node, node.targets)
        constant = isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
        if not (constant and _chosen(node.value)):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._removable(node, [node.target])
        if node.value is not None and not _chosen(node.value):
            self.visit(node.value)

    # Where we are

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scopes.append(node.name)
        self._all(node.body)
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        self._all(default for default in defaults if not _chosen(default))
        self._scopes.append(node.name)
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        self._functions.append((".".join(self._scopes), first))
        self._returns_at_once(node)
        self._all(node.body)
        self._functions.pop()
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    # Mistakes

    def visit_Compare(self, node: ast.Compare) -> None:
        for at, operator in enumerate(node.ops):
            ops = [*node.ops[:at], COMPARED[type(operator)](), *node.ops[at + 1 :]]
            self._instead(node, ast.Compare(node.left, ops, node.comparators))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._instead(node, ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._instead(node, node.operand)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub) and not (_joins(node.left) or _joins(node.right)):
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            self._instead(node, ast.BinOp(node.left, other, node.right))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._removable(node, [node.target], local=True)
        if isinstance(node.op, ast.Add | ast.Sub) and not _joins(node.value):
            other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            self._instead(node, ast.AugAssign(node.target, other, node.value), parens=False)
        self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test) or "__name__" in ast.unparse(node.test):
            return
        self._never(node)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._never(node)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._never(node)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            self._instead(node, ast.Return(ast.Constant(not value.value)), parens=False)
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._instead(node, ast.Constant(node.value + 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not _is_log(node.value):
            self._without(node)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._without(node)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._without(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._without(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._without(node)

    def _never(self, node: ast.If | ast.While | ast.IfExp) -> None:
        word = "while" if isinstance(node, ast.While) else "if"
        said = f"{word} {_short(node.test)} -> {word} False"
        self._replace(node.test, "False", said)

    def _removable(self, node: ast.stmt, targets: list[ast.expr], *, local: bool = False) -> None:
        """Without an assignment to a variable, its next use fails: that would tell nothing."""
        if local or all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            if isinstance(node, ast.AnnAssign) and node.value is None:
                return
            self._without(node)

    def _returns_at_once(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        body = node.body[1:] if _is_docstring(node.body[0]) else node.body
        if len(body) < 2 or node.name == "__init__" or any(_gives(part) for part in body):
            return
        first = body[0]
        start = self._at(first.lineno, first.col_offset)
        text = "return\n" + " " * first.col_offset
        self._add(first, start, start, text, f"{node.name}(): -> returns at once")

    def _without(self, node: ast.stmt) -> None:
        self._replace(node, "pass", f"{_short(node)} -> removed")

    def _instead(self, node: ast.AST, other: ast.AST, *, parens: bool = True) -> None:
        text = ast.unparse(ast.fix_missing_locations(other))
        if parens and not isinstance(other, ast.Constant):
            text = f"({text})"  # it may bind less than what was there
        self._replace(node, text, f"{_short(node)} -> {_short(other)}")

    def _replace(self, node: ast.AST, text: str, said: str) -> None:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._at(node.lineno, node.col_offset)
        end = self._at(node.end_lineno, node.end_col_offset)
        self._add(node, start, end, text, said)

    def _add(self, node: ast.expr | ast.stmt, start: int, end: int, text: str, said: str) -> None:
        function, line = self._functions[-1] if self._functions else ("", 0)
        source = self._lines[node.lineno - 1].decode().strip()
        above = self._lines[node.lineno - 2].decode().strip() if node.lineno > 1 else ""
        self.found.append(
            Mutant(
                path=self._path,
                line=node.lineno,
                source=source,
                above=above,
                mutation=said,
                function=function,
                function_line=line,
                start=start,
                end=end,
                text=text.encode(),
            )
        )

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _chosen(node: ast.expr) -> bool:
    """A number, or numbers put together, some of them by their names."""
    if isinstance(node, ast.BinOp):
        return _chosen(node.left) and _chosen(node.right)
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _joins(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _is_log(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "log"
    )


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _gives(node: ast.AST) -> bool:
    """It returns or yields a value, other than in a function of its own."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    if isinstance(node, ast.Yield | ast.YieldFrom):
        return True
    if isinstance(node, ast.Return) and node.value is not None:
        return True
    return any(_gives(part) for part in ast.iter_child_nodes(node))
