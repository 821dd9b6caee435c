"""The agent CLIs that agent.md can name under `runner`."""

from __future__ import annotations

from orchestrator.runners.acp.gemini import Gemini
from orchestrator.runners.acp.opencode import Opencode
from orchestrator.runners.claude.dialogue import Claude
from orchestrator.runners.codex.runner import Codex
from orchestrator.runners.contract import Runner
from orchestrator.runners.copilot.runner import Copilot

RUNNERS: dict[str, Runner] = {
    runner.name: runner for runner in (Claude(), Codex(), Copilot(), Gemini(), Opencode())
}
