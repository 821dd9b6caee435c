"""How much of an untrusted value is handed on."""

from __future__ import annotations

from orchestrator.runners.json_fields import VALUE_PARTS, bounded_dict_of, has_more_parts


def test_a_value_is_handed_on_up_to_its_most_parts_and_left_out_beyond() -> None:
    def handed_on(items: int) -> object:
        return bounded_dict_of({"input": {"list": [0] * items}}, "input")["list"]

    assert handed_on(VALUE_PARTS - 1) == [0] * (VALUE_PARTS - 1)  # the list itself is a part
    assert handed_on(VALUE_PARTS) == "…"


def test_as_many_parts_as_may_be_are_not_more() -> None:
    text = '{"a": "one, two, three, four, five, six", "b": [1, 2]}'
    parts = 3 + 4  # texts; commas and brackets outside of them
    assert has_more_parts(text, parts - 1)
    assert not has_more_parts(text, parts)
