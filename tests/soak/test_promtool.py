"""Prometheus' own tool on our numbers, and on what the board asks. Debian's package of it is put
into the cache, and not installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from orchestrator.settings import read_settings
from tests.telemetry.test_metrics import TELEMETRY, Counted, served

pytestmark = pytest.mark.anyio

FETCH_SECONDS = 280

STAND_INS = {"$__rate_interval": "5m", "$__range": "6h", "$agent": ".*"}
"""What Grafana puts in the place of its variables."""


@pytest.fixture(scope="module")
def promtool() -> str:
    installed = shutil.which("promtool")
    if installed is not None:
        return installed
    if shutil.which("apt-get") is None:
        pytest.skip("promtool is not here, nor apt-get to fetch it")
    place = read_settings().cache_dir / "promtool"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            _do("apt-get", "download", "prometheus", folder=scratch)
            (package,) = Path(scratch).glob("prometheus_*.deb")
            _do("dpkg-deb", "-x", str(package), "x", folder=scratch)
            (Path(scratch) / "x/usr/bin/promtool").rename(place)
    return str(place)


def _do(*argv: str, folder: str) -> None:
    done = subprocess.run(argv, cwd=folder, capture_output=True, timeout=FETCH_SECONDS)
    assert done.returncode == 0, done.stderr.decode()


async def test_promtool_has_nothing_to_say_of_our_numbers(promtool: str) -> None:
    counted = Counted()
    await served(counted)
    text = await counted.metrics.exposition()
    check = [promtool, "check", "metrics"]
    done = subprocess.run(check, input=text, capture_output=True)  # noqa: ASYNC221 nothing else runs
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_promtool_understands_every_query_of_the_board(promtool: str, tmp_path: Path) -> None:
    board = json.loads((TELEMETRY / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for variable, value in STAND_INS.items():
        queries = [query.replace(variable, value) for query in queries]
    assert not [query for query in queries if "$" in query]
    rules = [{"record": f"board:query{n}", "expr": query} for n, query in enumerate(queries)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert f"{len(queries)} rules found" in done.stdout.decode()
