"""The text of the file that --runner-config names -> RunnerConfig, or all that is wrong with it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.catalog.document import FileRefused, read_fields
from orchestrator.catalog.folder import file_text
from orchestrator.catalog.problems import Problem, Problems, found
from orchestrator.catalog.validation import Spellings, validated
from orchestrator.domain.agent import RunnerConfig
from orchestrator.errors import OperatorError


def read_runner_config(path: Path) -> RunnerConfig:
    """What the file says; OperatorError with all that is wrong with it. Blocks."""
    try:
        parsed = parse_runner_config(file_text(path), path)
    except FileRefused as exc:
        raise OperatorError(f"--runner-config: {path} {exc}") from exc
    if isinstance(parsed, tuple):
        said = "\n".join(map(str, parsed))
        raise OperatorError(f"--runner-config cannot be used:\n{said}")
    return parsed


def parse_runner_config(text: str, path: Path) -> RunnerConfig | tuple[Problem, ...]:
    """What the text says, or everything that is wrong with it, by line. It raises nothing.

    A runner that there is none of is no mistake: such files are shared with servers that have more.
    """
    problems = Problems(path)
    value = read_fields(text, problems)
    if not isinstance(value, dict):
        if not problems.found:
            problems.add((), f"must have the field `runners`, a list; found {found(value)}")
        return problems.ordered()
    config = validated(RunnerConfig, value, problems, Spellings())
    return problems.ordered() if config is None or problems.found else config
