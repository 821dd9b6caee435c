"""Mistakes made on purpose, MUTANTS of them by SEED: a test notices each, or it is equivalent."""

from __future__ import annotations

import os

import pytest

from tests.soak.mutants import Mutant, mutants, sample
from tests.soak.mutation_run import can_run, key, known_equivalents, run_mutants, sources

COUNT = int(os.environ.get("MUTANTS", "200"))
SEED = int(os.environ.get("SEED", "20261118"))

pytestmark = pytest.mark.timeout(0)


def test_the_tests_notice_random_mistakes_in_what_can_be_tested_without_an_engine() -> None:
    if not can_run():
        pytest.skip("needs Linux, unshare and namespaces: a mutant may kill and delete")
    print(f"\n{COUNT} mutants, seed {SEED}", flush=True)
    report = run_mutants(sample(sources(), COUNT, SEED), lambda line: print(line, flush=True))
    known = known_equivalents()
    print(*report.lines(known), sep="\n", flush=True)
    assert [str(m) for m in report.having("survived") if key(m) not in known] == []


def test_each_known_equivalent_is_a_mutant_of_the_source_as_it_is() -> None:
    """Else it would be a line that excuses nothing any more."""
    there = {key(mutant) for path, source in sources().items() for mutant in mutants(path, source)}
    assert set(known_equivalents()) - there == set()


def test_a_change_elsewhere_leaves_the_sample_as_it_is() -> None:
    source = b"def f(a, b):\n    return a < b and a + 1 != b\n"
    moved = b"X = 5 < 6\n\n\n" + source
    drawn = {m.mutation for m in sample({"one.py": source}, 3, SEED)}
    assert len(drawn) == 3
    assert drawn <= {m.mutation for m in sample({"two.py": moved}, 6, SEED)}


def _made(source: str) -> list[tuple[str, str]]:
    def shown(mutant: Mutant) -> tuple[str, str]:
        return mutant.mutation, mutant.applied(source.encode()).decode()

    return [shown(mutant) for mutant in mutants("a.py", source.encode())]


def test_each_kind_of_mistake_is_made_where_it_can_be() -> None:
    assert _made("a = b <= c\n") == [("b <= c -> b < c", "a = (b < c)\n")]
    assert _made("a = b and c\n") == [("b and c -> b or c", "a = (b or c)\n")]
    assert _made("a = not b\n") == [("not b -> b", "a = (b)\n")]
    assert _made("a = b + c\n") == [("b + c -> b - c", "a = (b - c)\n")]
    assert _made("a = b if c else d\n") == [("if c -> if False", "a = b if False else d\n")]
    assert _made("a = [3]\n") == [("3 -> 4", "a = [4]\n")]
    assert _made("a.b = c\n") == [("a.b = c -> removed", "pass\n")]
    assert _made("f('é', 1)\n") == [
        ("f('é', 1) -> removed", "pass\n"),
        ("1 -> 2", "f('é', 2)\n"),
    ]
    assert _made("def f():\n    return True\n") == [
        ("return True -> return False", "def f():\n    return False\n")
    ]
    at_once = ("f(): -> returns at once", "def f():\n    return\n    a()\n    b()\n")
    assert at_once in _made("def f():\n    a()\n    b()\n")


@pytest.mark.parametrize(
    "source",
    [
        "WAIT_SECONDS = 60 * 60\n",
        "MAX_READ = 4 * MAX_CHARS\n",
        "a = f(timeout=5)\n",
        "a: int = 5\n",
        "a: Annotated[int, Field(ge=1)]\n",
        "log.info('%d', a + b)\n",
        "a = f'{b + c}'\n",
        "a = b + 'c'\n",
        "async def f():\n    await g\n",
        "if TYPE_CHECKING:\n    a = b + c\n",
        "def __repr__(a):\n    return a + b\n",
        "assert a < b\n",
    ],
)
def test_what_is_left_out_is_not_touched(source: str) -> None:
    assert _made(source) == []
