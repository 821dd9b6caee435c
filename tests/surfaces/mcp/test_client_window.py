"""Who is calling -> how long a call may last."""

from __future__ import annotations

import pytest

from orchestrator.settings import read_settings
from orchestrator.surfaces.mcp.client_window import CLIENTS, UNKNOWN_SECONDS, window_seconds


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("claude-code", 100.0),
        ("claude-ai", 28.0),
        ("Claude-AI (via mcp-remote)", 28.0),
        ("codex-mcp-client", 45.0),
        ("cursor-vscode", 45.0),
        ("Visual Studio Code - Insiders", 50.0),
        (" vscode ", 50.0),
        ("mcp", UNKNOWN_SECONDS),
        ("not-claude-code", UNKNOWN_SECONDS),
        ("", UNKNOWN_SECONDS),
    ],
)
def test_the_window_follows_the_name_of_the_client(name: str, seconds: float) -> None:
    assert window_seconds(name) == seconds


def test_the_operators_setting_wins() -> None:
    assert window_seconds("claude-code", 7.5) == 7.5
    assert window_seconds("whoever", 7.5) == 7.5


def test_every_window_but_claude_codes_is_below_the_usual_minute() -> None:
    assert UNKNOWN_SECONDS < 60
    assert {name for name, seconds in CLIENTS.items() if seconds >= 60} == {"claude-code"}
    assert CLIENTS["claude-code"] < 120


def test_the_setting_is_a_number_of_seconds() -> None:
    assert read_settings({"ORCHESTRATOR_WINDOW_SECONDS": "0.5"}).window_seconds == 0.5
    assert read_settings({}).window_seconds is None
    for text in ("soon", "0", "-1", "inf", "nan"):
        with pytest.raises(Exception, match=f"ORCHESTRATOR_WINDOW_SECONDS={text} is not "):
            read_settings({"ORCHESTRATOR_WINDOW_SECONDS": text})
