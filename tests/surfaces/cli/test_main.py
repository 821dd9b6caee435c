"""The command line, from outside: what it prints where, and what it exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer.main

from orchestrator import __version__
from orchestrator.surfaces.cli.main import app, main


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def command_paths() -> Iterator[tuple[str, ...]]:
    """Every command, as it is typed."""
    group = typer.main.get_group(app)
    yield ()
    for name, command in group.commands.items():
        yield (name,)
        yield from ((name, sub) for sub in getattr(command, "commands", ()))


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "images" in capsys.readouterr().out


@pytest.mark.parametrize("path", list(command_paths()), ids=" ".join)
def test_each_page_of_help_is_plain(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*path, "-h") == 0
    page = capsys.readouterr().out
    assert not re.search(r"[{}]|<\w|\[\[|list\[|\[x", page), page
    assert max(map(len, page.splitlines())) <= 80
    assert run(*path, "--help") == 0
    assert capsys.readouterr().out == page


def test_version_says_which_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"orchestrator {__version__}\n"


def test_an_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("no-such-command") == 2
    assert "no-such-command" in capsys.readouterr().err


def test_with_json_an_unknown_command_is_exactly_one_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("frobnicate", "--json") == 2
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        "error": {
            "code": "usage",
            "message": "there is no command 'frobnicate'; `orchestrator -h` tells more",
        }
    }
    assert said.err == ""


def test_help_loads_neither_docker_nor_rich() -> None:
    code = (
        "import sys\n"
        "from orchestrator.surfaces.cli.main import main\n"
        "try:\n    main(['images', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print(sorted({'docker', 'rich', 'requests'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_images_list_as_json_is_exactly_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("images", "list", "--json") == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert list(said) == ["images"]
    assert captured.err == ""
    # Which of them is current depends on files that may be under edit; what each row says does not.
    for row in said["images"]:
        assert list(row) == [
            "tag",
            "kind",
            "image_id",
            "created_seconds",
            "size_bytes",
            "in_use",
            "current",
        ]


def test_images_build_as_json_is_exactly_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("images", "build", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said) == ["image", "images", "seconds"]
    assert said["images"] == [said["image"]]
    assert said["image"].startswith("subagent-orchestrator/claude:")


def test_images_build_of_an_unknown_runner_names_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("images", "build", "--runner", "cobol") == 2
    assert "no runner 'cobol'; known: claude, codex" in capsys.readouterr().err


def test_images_list_is_a_line_for_each_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("images", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith("subagent-orchestrator/") for line in lines)


def test_an_engine_that_does_not_answer_is_one_sentence_and_exit_code_6(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    assert run("images", "list") == 6
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no container engine answers; start Docker")


def test_an_error_as_json_is_exactly_one_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    assert run("images", "build", "--json") == 6
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert said["error"]["code"] == "engine_unreachable"
    assert list(said["error"]) == ["code", "message"]
    assert captured.err == ""
