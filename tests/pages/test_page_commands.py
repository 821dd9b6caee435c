"""What of a page is a command, and what is not."""

from __future__ import annotations

from tests.pages.page_commands import PageCommand, page_commands

PAGE = """\
Text.

    one   # a comment
    # only a comment
    two \\
      more
    cat > file <<'EOF'
        in the file
    EOF

- a list
  goes on

```console
$ three
printed
  more
$ four   # exit code 3: refused
```

```text
five
```

    six   # by hand: it needs another machine
"""


def test_a_page_is_read_as_its_reader_does() -> None:
    assert page_commands(PAGE) == [
        PageCommand(3, "one   # a comment"),
        PageCommand(5, "two \\\n  more"),
        PageCommand(7, "cat > file <<'EOF'\n    in the file\nEOF"),
        PageCommand(15, "three", prints="printed\n  more"),
        PageCommand(18, "four   # exit code 3: refused", exit_code=3),
        PageCommand(25, "six   # by hand: it needs another machine", by_hand=True),
    ]
