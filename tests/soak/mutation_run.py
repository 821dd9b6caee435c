"""Mutants -> which of them the tests notice.

The tests are run once on the source as it is: those that pass without an engine, and the functions
each of them calls. A mutant is then run against the tests that call its function, the ones that
call the least first, until one fails. Nothing here touches the checkout: two copies of it are
made, and each run has its copy alone to write to (a mount namespace with the rest read-only) and
its own processes alone to kill (a process namespace, and a session): a mutant of the warden kills
everything it can see, and its process group, which is the caller's if nobody makes another.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from tests.soak.mutants import Mutant, sample

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

TARGETS = (
    *("access.py", "output.py", "redaction.py", "surroundings.py", "plan.py", "plain_yaml.py"),
    *("catalog/**/*.py", "domain/**/*.py", "runners/**/*.py"),
    *("workspace/paths.py", "workspace/reading/ignore*.py", "workspace/applying/states.py"),
    *("workspace/changes/listing.py", "workspace/changes/plain_patch.py"),
    *("workspace/changes/objects.py", "workspace/git/config.py"),
    *("surfaces/mcp/client_window.py", "surfaces/mcp/batch.py", "surfaces/event_lines.py"),
    *("wire/**/*.py", "store/**/*.py", "gateway/**/*.py"),
)
"""What is mutated, below orchestrator/."""

RUN_APART = {"orchestrator/wire/warden.py": "tests/wire/"}
"""What tests run as a process of its own, where its calls are not seen -> where those tests are."""

NOT_COPIED = (".git", ".venv", ".cache", ".*_cache", ".hypothesis", "__pycache__", "dist")

RUNS = 2
"""At a time."""

RECORD_PARTS = 12
"""Into so many parts the tests are divided for their run on the source as it is."""

RECORD_SECONDS = 1800
"""For each of these."""

SLOW_SECONDS = 20.0
"""A test that takes longer is not asked about mutants."""

SELECTED_SECONDS = 60.0
"""How much testing one mutant gets: the tests that call the least, for so long in all."""

MEMORY_KB = 8 * 1024 * 1024
"""Of address space for each process: a mutant may grow without end."""

SANDBOX = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / && ulimit -v "$2" || exit 99
cd "$1/tree"; shift 2; exec "$@"
"""

Fate = Literal["killed", "timed out", "survived"]
Key = tuple[str, str, str, str]
"""File, line above, line, mutation."""


@dataclass(frozen=True)
class Seen:
    """A test, on the source as it is."""

    name: str
    seconds: float
    called: frozenset[tuple[str, int]]


@dataclass
class Report:
    """What became of the mutants."""

    fates: dict[Mutant, Fate] = field(default_factory=dict)

    def having(self, *fates: Fate) -> list[Mutant]:
        return sorted((m for m, f in self.fates.items() if f in fates), key=str)

    def lines(self, known: Mapping[Key, str]) -> Iterator[str]:
        survived = self.having("survived")
        equivalent = [mutant for mutant in survived if key(mutant) in known]
        killed, late = len(self.having("killed")), len(self.having("timed out"))
        yield from (f"survived: {mutant}" for mutant in survived if key(mutant) not in known)
        yield from (f"equivalent: {m} ({known[key(m)]})" for m in equivalent)
        yield from (f"timed out: {mutant}" for mutant in self.having("timed out"))
        real = len(self.fates) - len(equivalent)
        score = 100 * (killed + late) / real if real else 100.0
        yield (
            f"{len(self.fates)} mutants: {killed} killed, {late} timed out, "
            f"{len(survived) - len(equivalent)} survived, {len(equivalent)} equivalent; "
            f"score {score:.1f} %"
        )


def key(mutant: Mutant) -> Key:
    """By what a known equivalent is known: its line may move."""
    return mutant.path, mutant.above, mutant.source, mutant.mutation


def known_equivalents() -> dict[Key, str]:
    """Mutants that no caller, operator or agent could tell from the source, and why that is so."""
    table = tomllib.loads((HERE / "equivalent_mutants.toml").read_text())
    return {(e["file"], e["above"], e["line"], e["mutation"]): e["why"] for e in table["known"]}


def sources(tree: Path = ROOT, targets: tuple[str, ...] = TARGETS) -> dict[str, bytes]:
    paths = {path for pattern in targets for path in (tree / "orchestrator").glob(pattern)}
    return {str(path.relative_to(tree)): path.read_bytes() for path in paths}


def run_mutants(drawn: list[Mutant], say: Callable[[str], None], tree: Path = ROOT) -> Report:
    """Try them all."""
    report = Report()
    with ExitStack() as stack, ThreadPoolExecutor(RUNS) as pool:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-")))
        free: queue.Queue[Copy] = queue.Queue()
        for number in range(RUNS):
            free.put(stack.enter_context(Copy(tree, folder / str(number))))

        def recorded(files: list[str]) -> list[Seen]:
            with _taken(free) as copy:
                return _recorded(files, copy)

        def tried(mutant: Mutant) -> tuple[Mutant, Fate]:
            with _taken(free) as copy:
                return mutant, _fate(mutant, _selected(mutant, tests, copy), copy)

        began = time.monotonic()
        tests = [test for some in pool.map(recorded, _parts(tree)) for test in some]
        say(f"{len(tests)} tests need no engine; {time.monotonic() - began:.0f} s")
        for number, (mutant, fate) in enumerate(pool.map(tried, drawn), 1):
            report.fates[mutant] = fate
            if fate != "killed":
                say(f"{number}/{len(drawn)} {fate}: {mutant}")
    return report


def can_run() -> bool:
    """Whether a run can be kept to its own files and processes here."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        (Path(folder) / "tree").mkdir()
        try:
            return subprocess.run(_argv(Path(folder), "true"), capture_output=True).returncode == 0
        except FileNotFoundError:
            return False


class Copy:
    """A copy of the tree, and a worker that runs tests in it, in namespaces of its own."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree = folder / "tree"
        self.folder = folder
        ignored = shutil.ignore_patterns(*NOT_COPIED)
        shutil.copytree(tree, self.tree, ignore=ignored, symlinks=True)
        # By hash: a mutant may have the size and the time of the source as it is.
        by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self.tree / "orchestrator", quiet=1, invalidation_mode=by_hash)
        for name in ("mutation_plugin.py", "mutation_worker.py"):
            shutil.copy(HERE / name, folder)
        (folder / "tmp").mkdir()
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "tmp"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": f"{self.tree}:{folder}",
            "DOCKER_HOST": "unix:///no/engine.sock",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "tmp" / "hypothesis"),
        }
        self._worker = subprocess.Popen(
            _argv(folder, sys.executable, "-m", "mutation_worker"),
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a process group reaches out of a namespace
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.kill()  # --kill-child: all in its namespace go with it
        self._worker.communicate()

    def pytest(self, argv: list[str], seconds: float, **env: str) -> tuple[int, str]:
        """Its exit code, -1 if it took too long, and what it said."""
        quiet = ("-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")
        plain = ["-p", "mutation_plugin", "--hypothesis-seed=0"]
        plain += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the worker has imported them
        output = self.folder / "output"
        asked = {
            "argv": [*quiet, *plain, *argv],
            "env": env,
            "mutant": "MUTATION_SELECT" in env,
            "output": str(output),
            "seconds": seconds,
        }
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        print(json.dumps(asked), file=self._worker.stdin, flush=True)
        code = self._worker.stdout.readline()
        if not code:
            raise RuntimeError(f"the worker ended: {self._worker.wait()}")
        shutil.rmtree(self.folder / "tmp")
        (self.folder / "tmp").mkdir()
        return int(code), output.read_text(errors="replace")


@contextmanager
def _taken(free: queue.Queue[Copy]) -> Iterator[Copy]:
    copy = free.get()
    try:
        yield copy
    finally:
        free.put(copy)


def _parts(tree: Path) -> list[list[str]]:
    """The test files, in parts that take about the same time."""
    files = sorted(
        str(path.relative_to(tree))
        for path in (tree / "tests").rglob("test_*.py")
        if not any(part in path.parts for part in ("soak", "bench"))
    )
    return [files[number::RECORD_PARTS] for number in range(RECORD_PARTS)]


def _recorded(files: list[str], copy: Copy) -> list[Seen]:
    """Those of these files that pass on the source as it is, and what they call."""
    written = copy.folder / "recorded.json"
    argv = ["--timeout", str(SLOW_SECONDS * 3), *files]
    code, said = copy.pytest(argv, RECORD_SECONDS, MUTATION_RECORD=str(written))
    if code not in (0, 1, 5):  # 1: some fail, and are left out; 5: all need an engine
        raise RuntimeError(f"the tests cannot be run: {code} {said[-2000:]}")
    return [
        Seen(name, test["seconds"], frozenset((path, line) for path, line in test["called"]))
        for name, test in json.loads(written.read_text()).items()
        if test["seconds"] < SLOW_SECONDS
    ]


def _selected(mutant: Mutant, tests: list[Seen], copy: Copy) -> list[Seen]:
    """The tests that may notice: those that call the function it is in.

    What is in no function is run by whoever imports the file: those who call something of it, or
    else those who name it.
    """
    apart = RUN_APART.get(mutant.path)
    called = (mutant.path, mutant.function_line)
    if mutant.function:
        found = [test for test in tests if called in test.called]
    else:
        found = [test for test in tests if any(path == mutant.path for path, _ in test.called)]
    if apart is not None:
        found += [t for t in tests if t.name.startswith(apart) and t not in found]
    if not found and not mutant.function:
        module = mutant.path.removesuffix(".py").replace("/", ".")
        naming = {t.name.split("::")[0] for t in tests}
        naming = {name for name in naming if module in (copy.tree / name).read_text()}
        found = [test for test in tests if test.name.split("::")[0] in naming]
    found.sort(key=lambda test: (len(test.called), test.seconds))
    chosen, seconds = [], 0.0
    for test in found:
        seconds += test.seconds
        if seconds > SELECTED_SECONDS:
            break
        chosen.append(test)
    return chosen


NO_TEST_RAN = (4, 5)
"""pytest's exit codes for a wrong command line and for nothing to run: no verdict on a mutant."""


def _fate(mutant: Mutant, tests: list[Seen], copy: Copy) -> Fate:
    if not tests:
        return "survived"
    select = copy.folder / "selected.json"
    select.write_text(json.dumps([test.name for test in tests]))
    patience = 15 + 3 * max(test.seconds for test in tests)
    seconds = 60 + 4 * sum(test.seconds for test in tests)
    argv = ["-x", "--timeout", str(patience), *{test.name.split("::")[0] for test in tests}]
    file = copy.tree / mutant.path
    source = file.read_bytes()
    file.write_bytes(mutant.applied(source))
    code, said = copy.pytest(argv, seconds, MUTATION_SELECT=str(select))
    file.write_bytes(source)
    if code == 0:
        return "survived"
    if code in NO_TEST_RAN:
        raise RuntimeError(f"no test ran for {mutant}: {said[-2000:]}")
    return "timed out" if code < 0 or "Timeout (>" in said else "killed"


def _argv(copy: Path, *command: str) -> list[str]:
    own = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["unshare", *own, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return [*spaces, "sh", "-c", SANDBOX, "sh", str(copy), str(MEMORY_KB), *command]


def main() -> None:
    """`python -m tests.soak.mutation_run [tree]`: MUTANTS, SEED and MUTATE (more targets)."""
    count, seed = int(os.environ.get("MUTANTS", "200")), int(os.environ.get("SEED", "20261118"))
    tree = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    targets = (*TARGETS, *os.environ.get("MUTATE", "").split())
    report = run_mutants(sample(sources(tree, targets), count, seed), _say, tree)
    for line in report.lines(known_equivalents()):
        _say(line)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
