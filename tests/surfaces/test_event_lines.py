"""Events -> lines for people."""

from __future__ import annotations

import io

import pytest

from orchestrator.surfaces.event_lines import (
    EventLine,
    event_line,
    plain_line,
    shown_events,
)
from orchestrator.surfaces.text import visible, write


def test_an_event_is_one_line_whatever_its_text_holds() -> None:
    assert event_line("tool_result", "one\n\n  two\t2\n") == EventLine(
        "result", "one ⏎ two 2", "dim"
    )
    assert event_line("text", "\x1b]0;mine\x07hi\r") == EventLine("says", "�]0;mine�hi", "")


def test_an_end_is_green_only_if_it_is_good() -> None:
    assert event_line("ended", "completed").style == "bold green"
    assert event_line("ended", "it failed").style == "bold red"


def test_calls_of_servers_have_short_words() -> None:
    assert plain_line(1.25, "server_call", "it/list") == "   1.2 s  calls       it/list"
    assert plain_line(1.25, "server_denied", "it/x: no") == "   1.2 s  refused     it/x: no"


def test_a_kind_nobody_has_heard_of_is_shown_by_its_name() -> None:
    assert plain_line(1.25, "novel", "news") == "   1.2 s  novel       news"


def test_a_plain_line_has_an_end() -> None:
    line = plain_line(0, "text", "x" * 1000)
    assert len(line) < 250
    assert line.endswith("x…")


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    assert visible("a\tb\nc\x1b[2J\x9b") == "a\tb\nc�[2J�"


def test_a_stream_without_unicode_gets_question_marks() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "ascii")
    write("naïve ⏎", stream)
    assert written.getvalue() == b"na?ve ?\n"


def test_a_terminal_gets_one_cut_line_for_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "20")  # without it, rich takes a dumb terminal to be 80 wide
    monkeypatch.setenv("TERM", "dumb")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with shown_events(stream, waiting="at work") as show:
        show(0.5, "text", "[bold] " + "x" * 100)
        show(1.5, "ended", "completed")
    lines = [line.rstrip() for line in stream.getvalue().splitlines() if line.strip()]
    assert lines == [
        "   0.5 s  says        [bold] xxxxxxxxxx…",
        "   1.5 s  ended       completed",
    ]
