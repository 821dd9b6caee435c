"""`orchestrator pending --watch` at a real terminal, and what it shows, by value; `--notify`."""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.owner import Owner
from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.task import Task
from orchestrator.settings import read_settings
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.surfaces.cli.talk.alerts import ALERT_CHARS, Alerts, terminal_alert
from orchestrator.surfaces.cli.talk.watch_pending import WATCHED_LINES, WaitingItem, shown_item
from tests.surfaces.cli.terminal import Terminal

CALL = Approval(
    call_id="c1", run_id="r1", tool="Bash", input={"command": "rm -rf /\x1b[2J"}, deadline=7200.0
)
QUESTION = Question(
    message_id="m1", run_id="r1", question="Which\ncolour?", deadline=60.0, default_answer="red"
)


def test_what_would_be_allowed_is_shown_as_it_is() -> None:
    assert shown_item(WaitingItem("r1", "coder", approval=CALL), now=0.0).lines == (
        "r1: coder wants to use Bash (rejected in 2 h)",
        "    {",
        '      "command": "rm -rf /\\u001b[2J"',
        "    }",
        "  a approve   r reject   e edit   n next   q quit",
    )
    edited = shown_item(
        WaitingItem("r1", "coder", approval=CALL), now=0.0, edited={"command": "true"}
    )
    assert edited.lines[1:4] == ("  as you have edited it:", "    {", '      "command": "true"')
    assert shown_item(WaitingItem("r1", "coder", question=QUESTION), place="[1 of 2] ", now=0) == (
        (
            "[1 of 2] r1: coder asks (answers itself in 1 min)",
            "    Which",
            "    colour?",
            "  without an answer, it goes by this:",
            "    red",
            "  a answer   n next   q quit",
        ),
        True,
    )


def test_what_does_not_fit_is_not_allowed_before_it_was_shown() -> None:
    long = CALL.model_copy(update={"input": {f"field {n}": n for n in range(40)}})
    item = WaitingItem("r1", "coder", approval=long)
    first, all_ = shown_item(item, now=0.0), shown_item(item, now=0.0, whole=True)
    assert (first.whole, all_.whole) == (False, True)
    assert len(first.lines) == WATCHED_LINES + 2
    assert first.lines[-1].startswith(f"  v the other {42 - WATCHED_LINES} lines   a approve")
    assert len(all_.lines) == 42 + 2


@pytest.mark.parametrize(
    ("environ", "sent"),
    [
        ({}, "\a"),
        ({"TERM": "xterm-256color"}, "\a"),
        ({"TERM_PROGRAM": "iTerm.app"}, "\x1b]9;coder asks, [2J\a\a"),
        ({"TERM": "xterm-kitty"}, "\x1b]9;coder asks, [2J\a\a"),
        ({"WT_SESSION": "x"}, "\x1b]9;coder asks, [2J\a\a"),
        ({"TERM": "foot"}, "\x1b]777;notify;orchestrator;coder asks, [2J\a\a"),
        ({"TERM_PROGRAM": "iTerm.app", "TMUX": "/tmp/x"}, "\a"),
    ],
)
def test_a_terminal_is_told_in_its_own_way(environ: dict[str, str], sent: str) -> None:
    assert terminal_alert("coder\nasks; \x1b[2J", environ).replace("�", "") == sent
    assert len(terminal_alert("x" * 1000, {"TERM": "foot"})) < ALERT_CHARS + 40


def test_a_desktop_is_told_by_its_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "notify-send"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/told\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    Alerts(False, {"DISPLAY": ":0"}).say("not wanted")
    Alerts(True, {}).say("no desktop, and no terminal")
    assert not (tmp_path / "told").exists()
    Alerts(True, {"DISPLAY": ":0"}).say("coder <b>asks</b>")
    told = (tmp_path / "told").read_text().splitlines()
    assert told == [
        *("--app-name=orchestrator", "--", "orchestrator", "coder &lt;b&gt;asks&lt;/b&gt;")
    ]
    assert capsys.readouterr() == ("", "")


# At a real terminal


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A run of an orchestrator that lives, which waits for three things."""
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "TMUX", "TERM_PROGRAM", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
    now = time.time()
    times = {"deadline": now + 7200}

    async def fill(store: Store) -> None:
        project = read_settings().project
        exchanges = Exchanges(store)
        await store.add_run(Task(agent="coder", prompt="p", run_id="r1", project=project))
        await store.set_status("r1", "running")
        await exchanges.ask(QUESTION.model_copy(update={"asked": now, **times}))
        for at, call in enumerate(("c1", "c2"), 1):
            asked = {"call_id": call, "asked": now + at, "input": {"command": call}, **times}
            await exchanges.request(CALL.model_copy(update=asked))

    with Owner(tmp_path) as owner:
        store = Store(tmp_path / "runs.sqlite", owner.id)
        anyio.run(fill, store)
        yield store
        store.close()


def test_what_waits_is_decided_with_keys(state: Store, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/c1/edited/ "$1"\n')
    editor.chmod(0o700)
    terminal = Terminal("pending", "--watch", "--notify", EDITOR=str(editor))
    try:
        terminal.until(b"[1 of 3] r1: coder asks")
        terminal.press(b"a", b"answer: ")
        os.write(terminal.own, b"blue\n")
        terminal.until(b"answered: blue")

        terminal.until(b"[1 of 2] r1: coder wants to use Bash")
        terminal.press(b"n", b"[2 of 2] r1: coder wants to use Bash")
        terminal.press(b"n", b"[1 of 2] r1: coder wants to use Bash")
        terminal.press(b"e", b"as you have edited it:")
        terminal.until(b"q quit")
        terminal.press(b"a", b"approved: Bash")

        terminal.until(b'"command": "c2"')
        terminal.until(b"q quit")
        terminal.press(b"r", b"why not")
        os.write(terminal.own, b"not today\n")
        terminal.until(b"rejected: Bash")
        terminal.until(b"nothing waits for you; q quits")

        async def ask_more() -> None:
            late = {"call_id": "c3", "asked": time.time(), "deadline": time.time() + 60}
            await Exchanges(state).request(CALL.model_copy(update=late))

        anyio.run(ask_more)
        terminal.until(b"\a")
        terminal.until(b"q quit")
        os.write(terminal.own, b"q")
        assert terminal.process.wait(60) == 0
        assert termios.tcgetattr(terminal.own) == terminal.usual
    finally:
        terminal.close()

    async def kept() -> tuple[dict[str, Approval], tuple[Question, ...]]:
        exchanges = Exchanges(state)
        calls = {each.call_id: each for each in await exchanges.approvals("r1")}
        return calls, await exchanges.questions("r1")

    calls, (question,) = anyio.run(kept)
    assert question.answer == "blue"
    assert (calls["c1"].decision, calls["c1"].new_input) == ("approved", {"command": "edited"})
    assert (calls["c2"].decision, calls["c2"].message) == ("rejected", "not today")
    assert calls["c3"].decision == "pending"


def test_without_an_id_the_call_is_shown_and_asked_about(state: Store) -> None:
    async def leave_one() -> None:
        await Exchanges(state).decide("r1", "c1", "rejected")

    anyio.run(leave_one)
    for typed, code, decision in ((b"n\n", 1, "pending"), (b"y\n", 0, "approved")):
        terminal = Terminal("approve")
        try:
            terminal.until(b'{"command": "c2"}')
            terminal.until(b"Allow it? [y/N]")
            os.write(terminal.own, typed)
            assert terminal.process.wait(60) == code
        finally:
            terminal.close()
        found = anyio.run(Exchanges(state).approvals, "r1")
        assert {each.call_id: each.decision for each in found}["c2"] == decision


def test_waiting_rings_when_it_is_over(state: Store) -> None:
    terminal = Terminal("wait", "r1", "--notify")
    try:
        terminal.until(b"\a")
        terminal.until(b"r1: coder waiting_parent_reply")
        assert terminal.process.wait(60) == 10
    finally:
        terminal.close()


def test_a_live_table_of_runs_has_all_its_columns_in_eighty(state: Store) -> None:
    terminal = Terminal("runs", "--watch")
    try:
        terminal.until(b"RUN  AGENT  STATUS  AGE  COST     STEP OR TASK")
        terminal.until(b"r1   coder  asks    ")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(60) == 130
    finally:
        terminal.close()


def test_a_signal_gives_the_terminal_back(state: Store) -> None:
    terminal = Terminal("pending", "--watch")
    try:
        terminal.until(b"q quit")
        terminal.process.terminate()
        terminal.process.wait(60)
        assert termios.tcgetattr(terminal.own) == terminal.usual
    finally:
        terminal.close()
