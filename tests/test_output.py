"""Final text -> JSON -> schema -> feedback, by value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.result import RunResult
from orchestrator.output import (
    ANSWER_CHARS,
    ANSWER_DEPTH,
    Answer,
    check_schema,
    feedback,
    instruction,
    may_be_slow,
    read_answer,
)

SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}, "why": {"type": "string"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 3}',
        '  {"n": 3}\n',
        'Here it is:\n```json\n{"n": 3}\n```\nAnything else?',
        '```\n{"n": 3}\n```',
        'The answer is {"n": 3}, as you see.',
        'I thought of {"n": 0} first, but it is {"n": 3}.',
        'Not [this], not {that}; but {"n": 3}',
    ],
)
def test_the_value_is_found_wherever_the_model_put_it(text: str) -> None:
    assert read_answer(text, SCHEMA) == Answer(value={"n": 3})


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("no idea", ("the answer is not JSON",)),
        ("", ("the answer is not JSON",)),
        ('{"n": NaN}', ("the answer is not JSON",)),
        ("{}", ("/: 'n' is a required property",)),
        ('{"n": 0}', ("/n: 0 is less than the minimum of 1",)),
        ('{"n": "x"}', ("/n: 'x' is not of type 'integer'",)),
        (
            '{"n": 1, "extra": 2, "why": 3}',
            (
                "/: Additional properties are not allowed ('extra' was unexpected)",
                "/why: 3 is not of type 'string'",
            ),
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, errors: tuple[str, ...]) -> None:
    assert read_answer(text, SCHEMA).errors == errors


def test_many_problems_are_counted_and_long_values_cut() -> None:
    schema: dict[str, object] = {"type": "array", "items": {"type": "integer"}}
    errors = read_answer(json.dumps(["x" * 5000] * 20), schema).errors

    assert errors[-1] == "and 12 more"
    assert all(len(error) < 300 for error in errors)


def test_json_without_a_schema_is_any_json() -> None:
    assert read_answer("[1, 2]", None) == Answer(value=[1, 2])
    assert read_answer("7", None) == Answer(value=7)


def test_a_reference_out_of_the_schema_is_never_fetched() -> None:
    schema: dict[str, object] = {"$ref": "http://127.0.0.1:9/schema.json"}
    (error,) = read_answer("{}", schema).errors
    assert "refers to something that is not in it" in error


@pytest.mark.parametrize(
    ("schema", "slow"),
    [
        (None, False),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, False),
        ({"properties": {"n": {"type": "string", "pattern": "^(a+)+$"}}}, True),
        ({"$defs": {"x": {"uniqueItems": True}}}, True),
        ({"oneOf": [{"properties": {"arg": {"$ref": "#"}}}, {"properties": {"a": {}}}]}, True),
    ],
)
def test_a_schema_that_can_take_for_ever_is_known(
    schema: dict[str, object] | None, slow: bool
) -> None:
    assert may_be_slow("{}", schema) is slow


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "#/$defs/a"}, "$ref leads to '#/$defs/a', which is not in the schema"),
        ({"properties": {"x": {"items": {"$ref": "https://example.org/s"}}}}, "not in the schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, None),
        ({"$ref": "#node", "$defs": {"a": {"$anchor": "node"}}}, None),
        ({"required": ["x"], "not": {"$ref": "#/required/x"}}, "not in the schema"),
        ({"minLength": 3, "not": {"$ref": "#/minLength/x"}}, "not in the schema"),
        ({"enum": [{"$ref": "#/nowhere"}]}, None),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, None),
        ({"$id": "https://e.org/s", "$ref": "s#/$defs/a", "$defs": {"a": True}}, None),
        ({"$defs": {"a": {"$id": "https://example.org/a"}}, "$ref": "https://example.org/a"}, None),
    ],
)
def test_a_reference_to_nothing_is_found_before_anybody_answers(
    schema: dict[str, object], says: str | None
) -> None:
    found = check_schema(schema)
    assert (found is None) if says is None else (found is not None and says in found[1])


def test_a_schema_that_is_none_is_found_out() -> None:
    assert check_schema(SCHEMA) is None
    assert check_schema({"type": "objekt"}) is not None
    found = check_schema({"properties": {"a": 5}})
    assert found is not None
    assert found[0] == ("properties", "a")


def test_feedback_names_every_problem_and_the_schema() -> None:
    said = feedback(("/n: 0 is less than the minimum of 1",), SCHEMA)
    assert "/n: 0 is less than the minimum of 1" in said
    assert json.dumps(SCHEMA) in said
    assert json.dumps(SCHEMA) in instruction(SCHEMA)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (r'{"a": "\ud800"}', "half a character"),
        (r'{"\udfff": 1}', "half a character"),
        (nested(ANSWER_DEPTH + 1), "nested more than 100 deep"),
        (nested(900), "nested more than 100 deep"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested more than 100 deep"),
        ("[1e999]", "a number that is too large"),
        ('"' + "x" * ANSWER_CHARS + '"', "longer than 1048576 characters"),
    ],
)
@pytest.mark.parametrize("schema", [None, {}])
def test_what_could_not_be_kept_is_sent_back(
    text: str, error: str, schema: dict[str, object] | None
) -> None:
    answer = read_answer(text, schema)
    (said,) = answer.errors
    assert error in said
    assert answer.value is None


def test_the_deepest_answer_is_kept_and_compared_with_its_schema() -> None:
    schema: dict[str, object] = {"type": "array", "items": {"$ref": "#"}}
    answer = read_answer(nested(ANSWER_DEPTH), schema)
    assert answer.errors == ()
    result = RunResult(
        run_id="r", agent="a", caller="c", status="completed", reason="ok", result=answer.value
    )
    assert RunResult.model_validate_json(result.model_dump_json()) == result


def test_a_schema_that_goes_round_in_circles_is_an_error_and_no_crash() -> None:
    (error,) = read_answer("{}", {"$ref": "#"}).errors
    assert "nested too deep" in error


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "```" + "\n" * (ANSWER_CHARS - 3),
        "`" * ANSWER_CHARS,
        "```\n" * (ANSWER_CHARS // 4),
        "[" * ANSWER_CHARS,
        '["' * (ANSWER_CHARS // 2),
        "[" * 100 + "[]," * 300_000,
        ("[" * 900 + "1," * 50) * 1000,
    ],
    ids=["newlines", "ticks", "fences", "brackets", "strings", "bulk", "deep bulk"],
)
def test_an_answer_that_is_made_to_be_slow_is_given_up_soon(text: str) -> None:
    assert read_answer(text, SCHEMA).errors


def test_more_problems_than_anybody_reads_are_not_all_looked_for() -> None:
    schema: dict[str, object] = {"type": "array", "items": {"type": "integer"}}
    assert read_answer(json.dumps(["x"] * 5000), schema).errors[-1] == "and many more"


@given(st.text())
def test_no_text_is_more_than_an_error(text: str) -> None:
    read_answer(text, SCHEMA)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_value_is_read_back(value: object) -> None:
    assert read_answer(json.dumps(value), None) == Answer(value=value)
