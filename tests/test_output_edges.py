"""How much of a long complaint is repeated."""

from __future__ import annotations

from orchestrator.output import SHOWN_VALUE_CHARS, read_answer


def test_a_complaint_is_shown_whole_up_to_its_limit_and_cut_in_the_middle_beyond() -> None:
    schema = {"type": "integer"}
    around = len(read_answer('""', schema).errors[0]) - len("/: ")
    whole = "x" * (2 * SHOWN_VALUE_CHARS - around)
    (said,) = read_answer(f'"{whole}"', schema).errors
    assert "…" not in said
    assert whole in said
    assert len(said) == len("/: ") + 2 * SHOWN_VALUE_CHARS
    (said,) = read_answer(f'"{whole}x"', schema).errors
    assert "…" in said
