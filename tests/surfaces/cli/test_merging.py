"""A client's settings file + our entry -> the same file with it, all else as it was."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.surfaces.cli.setup.merging import (
    MAX_DEPTH,
    CannotMerge,
    json_entry,
    json_with,
    lines_of,
    toml_entry,
    toml_with,
)

PATH = ("servers", "ours")
ENTRY = {"command": "o", "args": ["serve"]}

JSON_FILES = {
    "": '{\n  "servers": {\n    "ours": @\n  }\n}',
    "{}": '{\n  "servers": {\n    "ours": @\n  }\n}',
    '{"a": 1}\n': '{"a": 1,\n  "servers": {\n    "ours": @\n  }\n}\n',
    '{\n\t"servers": {\n\t\t"x": {}\n\t}\n}\n': (
        '{\n\t"servers": {\n\t\t"x": {},\n\t\t"ours": @\n\t}\n}\n'
    ),
    '{\n    "servers": {}\n}\n': '{\n    "servers": {\n        "ours": @\n    }\n}\n',
    '{"servers": {"x": {}}}': '{"servers": {"x": {},\n  "ours": @\n}}',
    # Comments stay with what they are about, trailing commas are no second comma.
    '// top\n{\n  "servers": {\n    "x": {}, // of x\n    /* more */\n  },\n  "b": [1, 2,],\n}\n': (
        '// top\n{\n  "servers": {\n    "x": {}, // of x\n    /* more */\n    "ours": @\n  },\n'
        '  "b": [1, 2,],\n}\n'
    ),
    '{\n  "servers": {\n    "x": "// no } comment" // of x\n  }\n}': (
        '{\n  "servers": {\n    "x": "// no } comment", // of x\n    "ours": @\n  }\n}'
    ),
    '{\r\n  "a": 1\r\n}\r\n': '{\r\n  "a": 1,\r\n  "servers": {\r\n    "ours": @\r\n  }\r\n}\r\n',
}
"""Before, and after with the entry in the place of the @."""


@pytest.mark.parametrize("before", JSON_FILES)
def test_an_entry_is_put_between_what_is_there(before: str) -> None:
    after = json_with(before, PATH, ENTRY)
    head, entry, tail = after.partition(after[after.index('"ours": ') + 8 : _end_of_entry(after)])
    assert head + "@" + tail == JSON_FILES[before]
    assert json.loads(entry) == ENTRY == json_entry(after, PATH)


def _end_of_entry(after: str) -> int:
    start = after.index('"ours": ') + 8
    return json.JSONDecoder().raw_decode(after, start)[1]


WRONG_JSON = {
    "mine": "in line 1, there should be a value",
    "[]": "it holds no object",
    '{"servers": []}': "what is called servers in it is no object",
    '{\n"a": 1\n"b": 2}': "in line 3, there should be a comma",
    '{"a": 1, "a": 2}': '"a" is there a second time',
    '{"a": 1} {}': "something follows its end",
    '{"a" 1}': "there should be a colon",
    '{"a": [1 2]}': "there should be a comma",
    "{'a': 1}": "a name in quotes",
    '{"a": 1': "there should be a comma",
    "/* {": "there should be a value",
    "{" * 3 + '"a":' * 2: "a name in quotes",
    '{"a":' * (MAX_DEPTH + 2): "nested too deep",
    '{"servers": {"ours": null}}': "is there a second time",
}


@pytest.mark.parametrize("text", WRONG_JSON)
def test_what_is_no_json_is_told_and_not_touched(text: str) -> None:
    with pytest.raises(CannotMerge) as told:
        json_with(text, PATH, ENTRY)
    assert WRONG_JSON[text] in str(told.value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(
    value=st.dictionaries(st.sampled_from(["servers", "a", "// b"]), JSON_VALUES),
    indent=st.sampled_from([None, 0, 2, "\t"]),
)
def test_nothing_of_a_file_is_lost_whatever_is_in_it(
    value: dict[str, Any], indent: int | str | None
) -> None:
    text = json.dumps(value, indent=indent)
    if not isinstance(value.get("servers", {}), dict):
        with pytest.raises(CannotMerge):
            json_with(text, PATH, ENTRY)
        return
    if "ours" in value.get("servers", {}):
        return
    after = json_with(text, PATH, ENTRY)
    servers = {**value.get("servers", {}), "ours": ENTRY}
    assert json.loads(after) == {**value, "servers": servers}
    left = iter(after)
    assert all(char in left for char in text)  # each in its order: something was only added


TOML_PATH = ("mcp_servers", "ours")
TOML_ENTRY = {
    "command": 'a "b" \\ ü',
    "limit": 300,
    "on": True,
    "names": [f"NAME_{number}" for number in range(20)],
    "env": {"A.B": "c"},
    "tools": {"x": {"mode": "approve"}},
}


@pytest.mark.parametrize(
    "before",
    [
        "",
        "# mine\nmodel = 'x'  # which\n\n[mcp_servers.other]\ncommand = 'y'",
        "model = 'x'\r\n[[list]]\r\na = 1\r\n",
        "[mcp_servers]\nother = {command = 'y'}\n",
    ],
)
def test_a_table_is_added_at_the_end_of_toml(before: str) -> None:
    after = toml_with(before, TOML_PATH, TOML_ENTRY)
    assert after.startswith(before)
    assert toml_entry(after, TOML_PATH) == TOML_ENTRY
    was = tomllib.loads(before)
    servers = {**was.get("mcp_servers", {}), "ours": TOML_ENTRY}
    assert tomllib.loads(after) == {**was, "mcp_servers": servers}
    assert ("\r\n" in before) == ("\r\n" in after)
    assert "\n" not in after.replace("\r\n", "") or "\r\n" not in before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = ", "it is no TOML"),
        ("mcp_servers = {other = {}}\n", "cannot be added at its end"),
        ("mcp_servers = 1\n", "cannot be added at its end"),
    ],
)
def test_toml_that_cannot_have_the_table_is_told(text: str, why: str) -> None:
    with pytest.raises(CannotMerge, match=why):
        toml_with(text, TOML_PATH, TOML_ENTRY)


def test_the_lines_to_add_by_hand_are_a_file_of_their_own() -> None:
    assert json.loads("\n".join(lines_of("json", PATH, ENTRY))) == {"servers": {"ours": ENTRY}}
    lines = lines_of("toml", TOML_PATH, TOML_ENTRY)
    assert tomllib.loads("\n".join(lines)) == {"mcp_servers": {"ours": TOML_ENTRY}}
