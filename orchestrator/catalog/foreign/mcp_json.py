"""`.mcp.json`, or the `mcpServers` of a client's settings -> server.yaml for each entry. Pure.

What looks like a secret there is not written down a second time: server.yaml names it, and the
operator keeps it. An entry whose secret has no place in server.yaml is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from orchestrator.catalog.foreign.secret_values import (
    SECRET_WORDS,
    looks_secret,
    secret_parts,
    secret_words,
)
from orchestrator.domain.tool_use import check_server_name
from orchestrator.errors import CallInvalid

FETCHERS = {"npx": "node", "bunx": "bun", "uvx": "uv", "pipx": "pipx", "docker": "docker"}
"""Programs that fetch a server when it starts, for which a container has no network."""


class ImportedServer(NamedTuple):
    """One entry: what to call it here, its server.yaml, and what its reader should know."""

    name: str
    text: str
    """"" if it is refused; the notes say why."""
    notes: tuple[str, ...]


class _Refused(Exception):
    """An entry that cannot be a server.yaml, and what to do."""


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
    try:
        if isinstance(entry.get("url"), str):
            headers = entry.get("headers")
            found = headers if isinstance(headers, dict) else {}
            notes += _url_fields(name, entry["url"], found, fields)
        elif isinstance(entry.get("command"), str):
            notes += _command_fields(name, entry, fields)
        else:
            raise CallInvalid(f"the entry {given!r} has neither a command nor a url")
    except _Refused as exc:
        return ImportedServer(name, "", (str(exc),))
    notes.append(f"look at it, then: orchestrator servers pin {name}")
    return ImportedServer(name, "".join(_lines(fields)), tuple(notes))


def _named(given: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", given).strip("-")[:32].strip("-") or "server"
    try:
        return check_server_name(given)
    except ValueError:
        return check_server_name(name)


def _command_fields(
    name: str, entry: Mapping[str, object], fields: dict[str, object]
) -> Iterator[str]:
    args, env = entry.get("args"), entry.get("env")
    words = [str(entry["command"]), *(map(str, args) if isinstance(args, list) else ())]
    plain = {key: str(value) for key, value in env.items()} if isinstance(env, dict) else {}
    hidden = {key: key for key in plain if SECRET_WORDS.search(key) or looks_secret(plain[key])}
    kept = {key: value for key, value in plain.items() if key not in hidden}
    placed: dict[int, tuple[str, str]] = {}
    for number, word in enumerate(secret_words(words)):
        variable = re.sub(r"[^A-Z0-9]+", "_", word.named.upper()).strip("_") or "ARGUMENT"
        variable = f"_{variable}" if variable[0].isdigit() else variable
        while variable in {**kept, **hidden}:
            variable += f"_{number}"
        hidden[variable] = f"the argument {word.before or word.named or word.at}"
        placed[word.at] = (word.before, variable)
    fields["command"] = _shell_command(words, placed) if placed else words
    if kept:
        fields["env"] = kept
    if hidden:
        fields["secrets"] = [
            {"name": _secret(name, key), "expose": "env", "variable": key} for key in hidden
        ]
    yield from (_keep(_secret(name, key), what) for key, what in hidden.items())
    program = str(entry["command"]).rpartition("/")[2]
    if program in FETCHERS:
        yield (
            f"{program} fetches the server when it starts, and its container has no network: "
            "put it into an image that is built on ours, name that as `image`, and write the "
            "command without it"
        )


def _shell_command(words: list[str], inside: Mapping[int, tuple[str, str]]) -> list[str]:
    """The same command, whose secrets a shell puts in, in the server's own container: `inside` are
    the words that hold one, as what stands before it and its variable. All other words are the
    shell's parameters, which it does not read.
    """
    parts, given = [], list[str]()
    for number, word in enumerate(words):
        before, variable = inside.get(number, (word, ""))
        if before:
            at = len(given)
            given.append(before)
            parts.append(f'"${at}"' if at < 10 else f'"$${{{at}}}"')  # $${ is ${ in a server.yaml
        if variable:
            joint = parts.pop() if before else ""
            parts.append(f'{joint}"${variable}"')
    return ["sh", "-c", f"exec {' '.join(parts)}", *given]


def _url_fields(
    name: str, url: str, headers: Mapping[str, object], fields: dict[str, object]
) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _Refused("its url is no URL; write a server.yaml by hand") from None
    login = parts.username is not None or parts.password is not None
    if login:
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    fields["url"] = urlunsplit(parts)
    if found := list(secret_parts(urlunsplit(parts))):
        raise _Refused(
            f"its URL holds {' and '.join(found)}, which looks like a secret, and a server.yaml "
            "is committed; write one by hand with the URL alone, and `auth: {secret: NAME, header: "
            "HEADER}` if the server takes it as a header (orchestrator help servers)"
        )
    secret = next((key for key in headers if _is_secret(key, headers[key])), None)
    if secret is not None:
        auth: dict[str, object] = {"secret": _secret(name, secret), "header": secret}
        if not str(headers[secret]).startswith("Bearer "):
            auth["scheme"] = "plain"
        fields["auth"] = auth
        yield _keep(_secret(name, secret), f"the header {secret}")
    elif login:
        kept = _secret(name, "login")
        fields["auth"] = {"secret": kept, "header": "Authorization", "scheme": "plain"}
        what = 'the login in the URL, as the text "Basic " and the base64 of USER:PASSWORD,'
        yield _keep(kept, what)
    yield from (f"the header {key} is left out" for key in headers if key != secret)


def _is_secret(header: str, value: object) -> bool:
    return SECRET_WORDS.search(header) is not None or looks_secret(str(value))


def _secret(server: str, key: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{server}-{key}".lower()).strip("-")[:64]


def _keep(secret: str, what: str) -> str:
    variable = "ORCHESTRATOR_SECRET_" + re.sub(r"[^A-Z0-9]", "_", secret.upper())
    return (
        f"{what} is not written down; keep it as the secret {secret}: {variable}, or secrets.yaml"
    )


def _lines(fields: Mapping[str, object]) -> Iterator[str]:
    yield "# Imported; `orchestrator help servers` describes every field.\n"
    for key, value in fields.items():
        yield f"{key}: {json.dumps(value, ensure_ascii=False)}\n"  # JSON is YAML
