"""Serving MCP as a command does, without the library of command lines: a client waits for a hello,
and that library takes a tenth of the time until then.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from orchestrator.surfaces.cli.failures import LogLines, exit_with, log_as_json

if TYPE_CHECKING:
    from orchestrator.settings import Settings
    from orchestrator.surfaces.mcp.transports.served import OpenServed


def serve_at_once(args: Sequence[str]) -> None:
    """Serve one client and exit, if that is all that a command line asks for; otherwise do nothing:
    the command line says what is wrong with it, or what there is.
    """
    match args:
        case ["serve"]:
            agents_dir = None
        case ["serve", "--agents-dir", str(folder)] if folder and not folder.startswith("-"):
            agents_dir = Path(folder)
        case _:
            return

    def command() -> int:
        serve_stdio(agents_dir)
        return 0

    exit_with(command, as_json=False, is_process=True)


def serve_stdio(agents_dir: Path | None, **flags: object) -> None:
    """Serve one client on stdin and stdout, until it leaves. The flags are settings."""
    settings = settings_to_serve(agents_dir, **flags)
    with no_collecting():
        from orchestrator.surfaces.mcp.transports import stdio
    with served_here(settings) as open_served:
        anyio.run(stdio.serve, settings, open_served)


@contextmanager
def served_here(settings: Settings) -> Iterator[OpenServed]:
    """What a transport serves. What can go wrong with its other ports does so now: later, the
    thread that reads stdin would keep an error from its client.
    """
    from orchestrator.surfaces.mcp.transports.served import orchestrator_served
    from orchestrator.surfaces.metrics_port import metrics_listener

    with metrics_listener(settings.metrics) as listener:
        yield partial(orchestrator_served, metrics_at=listener)


def settings_to_serve(agents_dir: Path | None, **more: object) -> Settings:
    """The settings with what the command line says, and a log as they say; what is wrong with them
    is told at once.
    """
    log_in_lines()
    with no_collecting():
        from orchestrator.settings import read_settings

    flags = {"agents_dir": agents_dir and _served(agents_dir), **more}
    # Without the flag, a directory that is not there yet is fine: agents may come while we serve.
    settings = read_settings(flags=flags)
    if settings.runner or settings.runner_config:  # told now, not to the first caller
        with no_collecting():
            from orchestrator.app import runner_wish
        runner_wish(settings)
    if settings.otlp_endpoint:  # the same
        with no_collecting():
            from orchestrator.telemetry.exporting import check_exporter
        check_exporter(settings)
    if settings.webhooks:  # the same
        with no_collecting():
            from orchestrator.gateway.webhook_post import webhook_key
        for hook in settings.webhooks:
            webhook_key(hook.name, settings.webhook_secrets.get(hook.name))
    if settings.log_json:
        log_as_json(settings)
    return settings


def _served(agents_dir: Path) -> Path:
    """Where a directory that was named really is; AgentsDirMissing if it cannot be served: its user
    would wait for agents that never come.
    """
    from orchestrator.errors import AgentsDirMissing

    try:
        real = agents_dir.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise AgentsDirMissing(
            f"--agents-dir {agents_dir} cannot be used: {why}; name a directory that is there, by "
            "its absolute path"
        ) from exc
    if not real.is_dir():
        raise AgentsDirMissing(f"--agents-dir {agents_dir} is not a directory; name one")
    if real == Path(real.anchor):
        raise AgentsDirMissing(
            f"--agents-dir {agents_dir} is the whole machine; name the directory with your agents"
        )
    return real


def log_in_lines() -> None:
    """Before the SDK does it in its own way: a screen full of boxes for each error, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


@contextmanager
def no_collecting() -> Iterator[None]:
    """What imports make stays: looking for garbage in it takes a sixth of the time, and more."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # nor does it need to be looked through ever again
        gc.enable()
