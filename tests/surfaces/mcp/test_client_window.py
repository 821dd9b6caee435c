"""Who is calling -> how long a call may last."""

from __future__ import annotations

import pytest

from orchestrator.settings import read_settings
from orchestrator.surfaces.mcp.client_window import (
    CLIENTS,
    LONG_SECONDS,
    MINUTE_SECONDS,
    UNKNOWN_SECONDS,
    window_seconds,
)


@pytest.mark.parametrize(
    ("name", "version", "seconds"),
    [
        ("claude-code", "2.1.325", LONG_SECONDS),
        ("claude-ai", "0.1.0", 28.0),
        ("Claude-AI (via mcp-remote)", "", 28.0),
        ("codex-mcp-client", "0.166.0", LONG_SECONDS),
        ("codex-mcp-client", "0.171.0-alpha.2", LONG_SECONDS),
        ("codex-mcp-client", "0.47.0", MINUTE_SECONDS),
        ("codex-mcp-client", "new", MINUTE_SECONDS),
        ("copilot-cli", "1.0.102", LONG_SECONDS),
        ("copilot-cli", "1.0.9", MINUTE_SECONDS),
        ("gemini-cli-mcp-client", "0.61.0", LONG_SECONDS),
        ("gemini-cli-mcp-client", "0.0.1", MINUTE_SECONDS),
        ("opencode", "1.18.33", MINUTE_SECONDS),
        ("continue-cli-client", "1.0.0", MINUTE_SECONDS),
        ("@cline/core", "", MINUTE_SECONDS),
        ("Zed", "0.230.0", MINUTE_SECONDS),
        ("cursor-vscode", "1.0.0", MINUTE_SECONDS),
        ("Visual Studio Code - Insiders", "1.120.0", MINUTE_SECONDS),
        (" vscode ", "", MINUTE_SECONDS),
        ("CodeCompanion.nvim", "18.0.0", UNKNOWN_SECONDS),
        ("mcp", "0.1.0", UNKNOWN_SECONDS),
        ("not-claude-code", "2.1.325", UNKNOWN_SECONDS),
        ("", "", UNKNOWN_SECONDS),
    ],
)
def test_the_window_follows_the_name_and_the_version_of_the_client(
    name: str, version: str, seconds: float
) -> None:
    assert window_seconds(name, version=version) == seconds


def test_the_operators_setting_wins() -> None:
    assert window_seconds("claude-code", 7.5) == 7.5
    assert window_seconds("whoever", 7.5) == 7.5


def test_no_window_is_longer_than_what_its_client_was_seen_to_wait() -> None:
    assert UNKNOWN_SECONDS < 30  # of CodeCompanion.nvim, and of others like it
    assert MINUTE_SECONDS < 60
    assert LONG_SECONDS < 120  # when Claude Code puts a call into the background
    long = {(each.name, each.since) for each in CLIENTS if each.seconds > MINUTE_SECONDS}
    assert long == {
        ("claude-code", ()),
        ("codex", (0, 166)),
        ("copilot-cli", (1, 0, 102)),
        ("gemini-cli", (0, 61)),
    }


def test_the_setting_is_a_number_of_seconds() -> None:
    assert read_settings({"ORCHESTRATOR_WINDOW_SECONDS": "0.5"}).window_seconds == 0.5
    assert read_settings({}).window_seconds is None
    for text in ("soon", "0", "-1", "inf", "nan"):
        with pytest.raises(Exception, match=f"ORCHESTRATOR_WINDOW_SECONDS={text} must be "):
            read_settings({"ORCHESTRATOR_WINDOW_SECONDS": text})
