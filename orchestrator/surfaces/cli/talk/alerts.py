"""`--notify`: a person who looks elsewhere is told that something waits, or has ended.

By a notification of the desktop where there is one, else by the terminal: a bell, and with those
that can show one, a notification.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import sys
from collections.abc import Mapping

from orchestrator.surfaces.text import one_line, shortened

ALERT_CHARS = 120
"""Of a notification."""

NOTIFY_SECONDS = 5.0
"""For the desktop to take it."""

BELL = "\a"

OSC_9 = ("iTerm.app", "WezTerm", "ghostty", "kitty")
"""Terminals, as TERM_PROGRAM or TERM names them, that show what comes with OSC 9."""

OSC_777 = ("rxvt", "foot", "vte")
"""The same for OSC 777."""


class Alerts:
    """Tells a person, if that is wanted."""

    def __init__(self, wanted: bool, environ: Mapping[str, str]) -> None:
        self._wanted = wanted
        self._environ = environ

    def say(self, text: str) -> None:
        """Tell it at once; whatever goes wrong is of no account. Blocks for a moment."""
        if not self._wanted:
            return
        if _has_desktop(self._environ) and _notified(text):
            return
        if sys.stderr.isatty():
            sys.stderr.write(terminal_alert(text, self._environ))
            sys.stderr.flush()


def terminal_alert(text: str, environ: Mapping[str, str]) -> str:
    """What a terminal is sent: what it obeys is ours, and the text is made harmless. Pure."""
    said = shortened(one_line(text).replace(";", ","), ALERT_CHARS)
    if environ.get("TMUX"):  # it passes on bells alone
        return BELL
    names = " ".join(environ.get(name, "") for name in ("TERM_PROGRAM", "TERM"))
    if environ.get("WT_SESSION") or any(name in names for name in OSC_9):
        return f"\x1b]9;{said}{BELL}{BELL}"
    if environ.get("VTE_VERSION") or any(name in names for name in OSC_777):
        return f"\x1b]777;notify;orchestrator;{said}{BELL}{BELL}"
    return BELL


def _has_desktop(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def _notified(text: str) -> bool:
    program = shutil.which("notify-send")
    if program is None:
        return False
    body = html.escape(shortened(one_line(text), ALERT_CHARS))  # desktops take it for markup
    try:
        done = subprocess.run(
            [program, "--app-name=orchestrator", "--", "orchestrator", body],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=NOTIFY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
