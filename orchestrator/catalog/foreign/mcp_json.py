"""`.mcp.json`, or the `mcpServers` of a client's settings -> server.yaml for each entry. Pure.

What looks like a secret there is not written down a second time: server.yaml names it, and the
operator keeps it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from orchestrator.domain.tool_use import check_server_name
from orchestrator.errors import CallInvalid

SECRET_WORDS = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
"""In the name of a variable or a header that holds one."""

FETCHERS = {"npx": "node", "bunx": "bun", "uvx": "uv", "pipx": "pipx", "docker": "docker"}
"""Programs that fetch a server when it starts, for which a container has no network."""


class ImportedServer(NamedTuple):
    """One entry: what to call it here, its server.yaml, and what its reader should know."""

    name: str
    text: str
    notes: tuple[str, ...]


def import_servers(text: str) -> tuple[ImportedServer, ...]:
    """All entries of a file; CallInvalid if it has none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise CallInvalid(f"it is not JSON: {exc}") from None
    entries = value.get("mcpServers") if isinstance(value, dict) else None
    if not isinstance(entries, dict) or not entries:
        raise CallInvalid(
            'it has no servers: {"mcpServers": {"NAME": {"command": "..."}}} is wanted'
        )
    return tuple(_imported(str(name), entry) for name, entry in entries.items())


def _imported(given: str, entry: object) -> ImportedServer:
    name, notes = _named(given), []
    if not isinstance(entry, dict):
        raise CallInvalid(f"the entry {given!r} is not an object")
    if name != given:
        notes.append(f"called {name} here, since {given!r} cannot be part of a tool's name")
    fields: dict[str, object] = {}
    if isinstance(entry.get("url"), str):
        fields["url"] = entry["url"]
        headers = entry.get("headers")
        notes += _header_fields(name, headers if isinstance(headers, dict) else {}, fields)
    elif isinstance(entry.get("command"), str):
        args = entry.get("args")
        words = [str(word) for word in args] if isinstance(args, list) else []
        fields["command"] = [entry["command"], *words]
        env = entry.get("env")
        notes += _env_fields(name, env if isinstance(env, dict) else {}, fields)
        program = entry["command"].rpartition("/")[2]
        if program in FETCHERS:
            notes.append(
                f"{program} fetches the server when it starts, and its container has no network: "
                "put it into an image that is built on ours, name that as `image`, and write the "
                "command without it"
            )
    else:
        raise CallInvalid(f"the entry {given!r} has neither a command nor a url")
    notes.append(f"look at it, then: orchestrator servers pin {name}")
    return ImportedServer(name, "".join(_lines(fields)), tuple(notes))


def _named(given: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", given).strip("-")[:32].strip("-") or "server"
    try:
        return check_server_name(given)
    except ValueError:
        return check_server_name(name)


def _env_fields(name: str, env: Mapping[str, object], fields: dict[str, object]) -> Iterator[str]:
    plain = {key: str(value) for key, value in env.items()}
    hidden = [key for key in plain if SECRET_WORDS.search(key)]
    kept = {key: value for key, value in plain.items() if key not in hidden}
    if kept:
        fields["env"] = kept
    if hidden:
        fields["secrets"] = [
            {"name": _secret(name, key), "expose": "env", "variable": key} for key in hidden
        ]
    for key in hidden:
        yield _keep(_secret(name, key), key)


def _header_fields(
    name: str, headers: Mapping[str, object], fields: dict[str, object]
) -> Iterator[str]:
    secret = next((key for key in headers if SECRET_WORDS.search(key)), None)
    if secret is not None:
        value = str(headers[secret])
        auth: dict[str, object] = {"secret": _secret(name, secret), "header": secret}
        if not value.startswith("Bearer "):
            auth["scheme"] = "plain"
        fields["auth"] = auth
        yield _keep(_secret(name, secret), f"the header {secret}")
    for key in headers:
        if key != secret:
            yield f"the header {key} is left out"


def _secret(server: str, key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{server}-{key}".lower()).strip("-")[:64]


def _keep(secret: str, what: str) -> str:
    variable = "ORCHESTRATOR_SECRET_" + re.sub(r"[^A-Z0-9]", "_", secret.upper())
    return (
        f"{what} is not written down; keep it as the secret {secret}: {variable}, or secrets.yaml"
    )


def _lines(fields: Mapping[str, object]) -> Iterator[str]:
    yield "# Imported; every field is described in agents/servers/README.md.\n"
    for key, value in fields.items():
        yield f"{key}: {json.dumps(value, ensure_ascii=False)}\n"  # JSON is YAML
