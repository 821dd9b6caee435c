"""On which line a text is not YAML."""

from __future__ import annotations

import pytest

from orchestrator.plain_yaml import YamlRefused, load_yaml


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff", "1: is not UTF-8"),
        (b"\n\xff", "2: is not UTF-8"),
        (b"a: 1\n\n\xff", "3: is not UTF-8"),
        (b"\x01", "1: holds the character U"),
        (b"\n\x01", "2: holds the character U"),
        (b"a: [\n", "2: "),
        (b'\na: "\\UFFFFFFFF"\n', "2: is not valid YAML: there is no such character"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(data: bytes, says: str) -> None:
    with pytest.raises(YamlRefused) as refused:
        load_yaml(data)
    assert str(refused.value).startswith(says)
