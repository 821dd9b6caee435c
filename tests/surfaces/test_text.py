"""Texts for people: cut, joined, in columns."""

from __future__ import annotations

import pytest

from orchestrator.domain.result import RunResult, TriedRunner
from orchestrator.surfaces.text import (
    cut_json,
    one_line,
    quoted,
    shortened,
    span,
    table,
    tried,
    wrapped,
)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = (("RUN", "STATUS", "PROMPT"), ("r1", "", "do it"), ("r-long", "failed", ""))
    assert list(table(rows)) == [
        "RUN     STATUS  PROMPT",
        "r1              do it",
        "r-long  failed",
    ]
    assert list(table([])) == []


@pytest.mark.parametrize(
    ("width", "least", "prompt"),
    [(16, 0, "paint it"), (15, 0, "paint …"), (9, 0, "…"), (9, 4, "pai…"), (0, 4, "paint it")],
)
def test_the_last_column_gets_what_is_left_of_the_width(
    width: int, least: int, prompt: str
) -> None:
    assert list(table([("r1", "ok", "paint it")], width=width, least=least)) == [
        f"r1  ok  {prompt}"
    ]


def test_a_text_is_cut_only_if_it_is_too_long() -> None:
    assert [shortened("four", width) for width in (5, 4, 3)] == ["four", "four", "fo…"]
    assert cut_json({"a": "é"}, 10) == ('{"a": "é"}', 0)
    assert cut_json({"a": "é"}, 7) == ('{"a": "', 3)


def test_a_sentence_is_broken_between_words_and_in_no_command() -> None:
    said = "it is done; `orchestrator logs r1` tells more, at /a/long/path/that/is/one/word"
    assert list(wrapped(said, 30)) == [
        "it is done;",
        "  `orchestrator logs r1` tells",
        "  more, at",
        "  /a/long/path/that/is/one/word",
    ]
    assert list(wrapped(said, 200)) == [said]
    assert list(wrapped("  a row   of a table", 80)) == ["  a row   of a table"]
    assert list(wrapped("", 80)) == [""]


def test_what_a_stranger_wrote_stays_on_its_line() -> None:
    assert one_line(" paint\n\tit \x1b[2J") == "paint it �[2J"
    assert (quoted("a b"), quoted("a\nb")) == ("a b", '"a\\nb"')


def test_a_time_is_told_roughly() -> None:
    seconds = (-1, 59.4, 60, 7200, 86400)
    assert [span(each) for each in seconds] == ["0 s", "59 s", "1 min", "2 h", "1 d"]


def test_runners_that_gave_up_and_those_that_were_passed_over_are_told_apart() -> None:
    gave_up = TriedRunner(runner="claude", model="m", reason="api_rate_limit")
    over = TriedRunner(runner="copilot", model="m", reason="api_rate_limit", passed_over=True)
    ended = RunResult(
        run_id="r1", agent="a", caller="main", status="completed", reason="ok", runner="codex"
    )
    said = [
        tried(ended.model_copy(update={"tried": some}))
        for some in ((), (gave_up,), (gave_up, over), (over,))
    ]
    assert said == [
        "",
        "claude (api_rate_limit) could not go on, codex did",
        "claude (api_rate_limit) could not go on, codex did; copilot passed over",
        "copilot passed over",
    ]
    failed = ended.model_copy(update={"status": "failed", "tried": (gave_up,)})
    assert tried(failed) == "claude (api_rate_limit) could not go on, codex was the last"
