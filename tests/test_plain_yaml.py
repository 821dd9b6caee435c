"""YAML text -> plain values, or the first thing that is wrong with it and where."""

from __future__ import annotations

import json

import pytest

from orchestrator.plain_yaml import YAML_DEPTH, YAML_NUMBER_CHARS, YamlRefused, load_yaml, read_yaml

NOT_READ = "is not valid YAML:"
QUOTES = "a text that begins with"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: [1, -2, 1.5, ~, true, False]", {"a": [1, -2, 1.5, None, True, False]}),
        ("[no, on, 08:30]", ["no", "on", "08:30"]),
        ("[2024-01-01, 1_000, 0x1f]", ["2024-01-01", "1_000", "0x1f"]),
        ("a: '1'\nb: |\n  2\n", {"a": "1", "b": "2\n"}),
        ("1: one\ntrue: two", {"1": "one", "true": "two"}),
        ("\ufeffa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
        (json.dumps({"a": "😀 ä", "b": [[]]}), {"a": "😀 ä", "b": [[]]}),
        ("9" * YAML_NUMBER_CHARS, int("9" * YAML_NUMBER_CHARS)),
    ],
)
def test_a_text_means_what_json_could_say(text: str, value: object) -> None:
    assert load_yaml(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: 1\nb: 2\na: 3\n", "3: a: is given twice, first on line 1; remove one of them"),
        (
            b"a:\n  - b: 1\n    b: 2\n",
            "3: a[0].b: is given twice, first on line 2; remove one of them",
        ),
        (b"1: a\n'1': b\n", "2: 1: is given twice, first on line 1; remove one of them"),
        (b"a: 1\n? [b]\n: 2\n", "2: a key must be text, found a list or a mapping"),
        (b"a: 1\nb: .inf\n", "2: b: '.inf' is not a number that JSON could say"),
        (b"a: 1e999\n", "1: a: '1e999' is not a number that JSON could say"),
        (b'a: 1\nb: "x\\0"\n', "2: b: holds a NUL character; remove it"),
        (b'a: "\\ud83d"\n', "1: a: holds half a character (a lone surrogate); remove it"),
        (b'a: "\\Uffffffff"\n', "1: is not valid YAML: there is no such character"),
        (b"a: 1\nb: \xff\n", "2: is not UTF-8 text; save it as UTF-8"),
        (b"a: 1\nb: \x07\n", "2: holds the character U+0007, which YAML does not allow"),
        (b"a: &x 1\n", f"1: {NOT_READ} anchors are not understood here ({QUOTES} & needs quotes)"),
        (
            b"a: 1\nb: !x 2\n",
            f"2: {NOT_READ} tags are not understood here ({QUOTES} ! needs quotes)",
        ),
    ],
)
def test_a_text_that_cannot_be_used_is_told_with_line_and_place(text: bytes, said: str) -> None:
    with pytest.raises(YamlRefused) as caught:
        load_yaml(text)
    assert str(caught.value) == said


def test_a_text_may_be_nested_so_deeply_and_not_more() -> None:
    assert load_yaml(b"[" * YAML_DEPTH + b"1" + b"]" * YAML_DEPTH) is not None
    with pytest.raises(YamlRefused, match=f"more than {YAML_DEPTH} levels deep"):
        load_yaml(b"[" * (YAML_DEPTH + 1) + b"1" + b"]" * (YAML_DEPTH + 1))


def test_lines_are_counted_from_where_the_text_stands_in_its_file() -> None:
    document = read_yaml("a: 1\nb:\n  - 2\nb: 3\n", first_line=5)
    assert document.value == {"a": 1, "b": [2]}
    assert document.lines == {(): 5, ("a",): 5, ("b",): 6, ("b", 0): 7}
    assert [(problem.loc, problem.line) for problem in document.problems] == [(("b",), 8)]
