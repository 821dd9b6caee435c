"""The table of attacks in README.md is the one that the tests make."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.attacks.table import BEGIN, END, PAGE, ROOT

LEAST = 40
"""Attacks that were promised."""


def test_the_table_is_up_to_date() -> None:
    argv = (sys.executable, "-m", "tests.attacks.table", "--check")
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_attack_is_named_once() -> None:
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    names = re.findall(r"^\|[^|]*\| ([^|]+) \|", text, re.MULTILINE)[1:]
    assert len(names) >= LEAST
    assert len({*names}) == len(names)
