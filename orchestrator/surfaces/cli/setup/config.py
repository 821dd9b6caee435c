"""`orchestrator config`: every setting, its value, and where it came from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.surfaces.cli.options import AgentsDirOption, JsonOption
from orchestrator.surfaces.text import print_lines, table

if TYPE_CHECKING:
    from orchestrator.settings import Settings


def config(*, agents_dir: AgentsDirOption = None, as_json: JsonOption = False) -> None:
    """Show each setting, its value, and where it came from; of a secret, whether it is set."""
    from orchestrator.settings import SOURCES, read_settings_with_origins

    flags = {"agents_dir": agents_dir and agents_dir.absolute()}
    settings, origins = read_settings_with_origins(flags=flags)
    if as_json:
        rows = {
            name: {
                "value": shown_value(settings, name),
                "origin": origins[name],
                "variable": SOURCES[name].variable if name in SOURCES else None,
            }
            for name in type(settings).model_fields
        }
        print(json.dumps({"settings": rows}))
        return
    print_lines(config_lines(settings, origins))


def config_lines(settings: Settings, origins: dict[str, str]) -> Iterator[str]:
    """A line for each setting and, where there are several values, for each of them."""
    rows = []
    for name in type(settings).model_fields:
        value = shown_value(settings, name)
        lines = [str(item) for item in value] if isinstance(value, list) else [_written(value)]
        if value is None:
            lines = [_without(name)]
        for at, line in enumerate(lines or ["none"]):
            rows.append(("", "", line) if at else (name, origins[name], line))
    return table(rows)


def shown_value(settings: Settings, name: str) -> object:
    """A setting as JSON has it; of a secret, only whether it is set."""
    from pydantic import SecretStr

    value = getattr(settings, name)
    if isinstance(value, SecretStr) or "SecretStr" in str(type(settings).model_fields[name]):
        return "set" if value else "not set"
    shown = settings.model_dump(mode="json", include={name})[name]
    if isinstance(shown, str):  # an address may hold a password: https://me:secret@host
        return re.sub(r"//[^/@\s]*@", "//…@", shown)
    return shown


def _without(name: str) -> str:
    """What holds while a setting is not made."""
    from orchestrator.containers.images.claude_binary import CLAUDE_VERSION

    means = {
        "agent_image": "the one that is built here",
        "base_image": "Debian slim, pulled or made here",
        "claude_binary": "a download, by its checksum",
        "claude_version": f"{CLAUDE_VERSION}, the newest that is pinned",
        "window_seconds": "as long as the client is known to wait",
    }
    return means.get(name, "none")


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
