"""Which agent CLIs to try, in which order and for which models: the file that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.catalog.runner_file import parse_runner_config
from orchestrator.domain.agent import RunnerConfig, RunnerEntry

PATH = Path("order.yaml")

WRITTEN_FOR_ANOTHER_SERVER = """\
runners:
  - name: codex
    priority: 1
    models:
      - "gpt-5.1-codex"
      - " o3 "

  - name: some-other-cli
    priority: 2
"""


def test_a_file_of_the_server_that_it_was_thought_up_for_is_read() -> None:
    codex = RunnerEntry(name="codex", priority=1, models=("gpt-5.1-codex", "o3"))
    other = RunnerEntry(name="some-other-cli", priority=2)
    assert parse_runner_config(WRITTEN_FOR_ANOTHER_SERVER, PATH) == RunnerConfig(
        runners=(codex, other)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "order.yaml:1: must have the field `runners`, a list; found nothing"),
        ("- claude\n", "order.yaml:1: must have the field `runners`, a list; found a list"),
        ("runners: []\n", "order.yaml:1: runners: must not be empty; leave the file out"),
        ("runners:\n- name: ''\n  priority: 1\n", "order.yaml:2: runners[0].name: must not be "),
        ("runners:\n- name: codex\n", "order.yaml:2: runners[0].priority: is missing"),
        (
            "runners:\n- name: codex\n  priority: '1'\n",
            "order.yaml:3: runners[0].priority: must be a whole number",
        ),
        (
            "runners:\n- {name: codex, priority: 1, model: o3}\n",
            "order.yaml:2: runners[0].model: unknown field; did you mean 'models'?",
        ),
        (
            "runners:\n- {name: codex, priority: 1}\n- {name: codex, priority: 2}\n",
            "order.yaml:1: runners: names codex twice; write one entry for it",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, said: str) -> None:
    problems = parse_runner_config(text, PATH)
    assert isinstance(problems, tuple)
    assert str(problems[0]).startswith(said), problems
