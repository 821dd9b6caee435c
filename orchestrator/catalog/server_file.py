"""The text of server.yaml and of tools.lock.json -> nouns, or all that is wrong with them. Pure."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from orchestrator.catalog.document import FileRefused, ReadBeside, read_fields, read_json
from orchestrator.catalog.problems import Problem, Problems, found
from orchestrator.catalog.spelling import spell_network, spell_sizes, spell_time
from orchestrator.catalog.validation import Spellings, validated
from orchestrator.domain.tool_lock import ToolLock
from orchestrator.domain.tool_server import ToolServer
from orchestrator.domain.tool_use import check_server_name
from orchestrator.plain_yaml import shortened

SERVER_SIZES = ("memory", "scratch")
"""Of resources: fields that may be written with a unit."""

SERVER_TIMES = {
    "idle_after": "idle_seconds",
    "start_timeout": "start_seconds",
    "timeout": "call_seconds",
}
"""Fields that may be written with a unit, and what they are called without one."""

SERVER_FILES_CHARS = 512 * 1024
"""Of all files beside server.yaml that a server is started with: they travel in one frame."""

SERVER_SPELLINGS = Spellings(
    also={"resources": SERVER_SIZES, "": tuple(SERVER_TIMES)},
    hidden=("name",),
    unions=("auth",),
)


def parse_server(
    text: str, *, folder: str, path: Path, read_beside: ReadBeside
) -> ToolServer | tuple[Problem, ...]:
    """What the text says, or everything that is wrong with it, by line. It raises nothing."""
    problems = Problems(path)
    try:
        check_server_name(folder)
    except ValueError as exc:
        problems.add((), f"is in the folder '{shortened(folder)}'; the name of a server {exc}")
        return problems.ordered()
    value = read_fields(text, problems)
    if not isinstance(value, dict):
        if not problems.found:
            problems.add((), f"must have fields such as `command: [...]`, found {found(value)}")
        return problems.ordered()
    fields = _spelled_out(dict(value), problems, read_beside)
    server = validated(ToolServer, {**fields, "name": folder}, problems, SERVER_SPELLINGS)
    return problems.ordered() if server is None or problems.found else server


def parse_lock(text: str, path: Path) -> ToolLock | tuple[Problem, ...]:
    """What a server was pinned with, or why that cannot be used."""
    problems = Problems(path)
    value = read_json(text, problems)
    if problems.found:
        return problems.ordered()
    try:
        return ToolLock.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        said = first["msg"].removeprefix("Value error, ")
        where = ".".join(str(part) for part in first["loc"])
        said = f"{where}: {said}" if where else said
    problems.add((), f"is not what `orchestrator servers pin` wrote ({said}); pin it again")
    return problems.ordered()


def _spelled_out(
    fields: dict[str, object], problems: Problems, read_beside: ReadBeside
) -> dict[str, object]:
    if "name" in fields:
        problems.add(("name",), "is not a field; a server is called as its folder is")
        del fields["name"]
    command = fields.get("command")
    if isinstance(command, str):
        problems.add(
            ("command",), "must be a list, such as [python3, server.py]: no shell reads it"
        )
        fields["command"] = ["-"]
    spell_network(fields, problems)
    spell_sizes(fields, problems, SERVER_SIZES)
    for name, meant in SERVER_TIMES.items():
        spell_time(fields, (name,), meant, problems)
    _spell_auth(fields, problems)
    if isinstance(fields.get("files"), list):
        fields["files"] = _read_files(fields["files"], problems, read_beside)
    return fields


def _spell_auth(fields: dict[str, object], problems: Problems) -> None:
    """`oauth`, `{secret: NAME}`, `{oauth: {...}}` or `{client_credentials: {...}}`."""
    given = fields.get("auth")
    if given == "oauth":
        fields["auth"] = {"kind": "oauth"}
        return
    if given is None:
        return
    if isinstance(given, dict) and "kind" not in given:
        if "secret" in given:
            fields["auth"] = {"kind": "secret", **given}
            return
        for kind in ("oauth", "client_credentials"):
            inner = given.get(kind)
            if list(given) == [kind] and isinstance(inner, dict):
                problems.aliases[("auth",)] = ("auth", kind)
                fields["auth"] = {"kind": kind, **inner}
                return
    problems.add(
        ("auth",),
        f"found {found(given)}; allowed: oauth, `secret: NAME`, or `client_credentials:` with "
        "client_id and client_secret",
    )
    del fields["auth"]


def _read_files(names: object, problems: Problems, read_beside: ReadBeside) -> list[dict[str, str]]:
    read: list[dict[str, str]] = []
    for at, name in enumerate(names if isinstance(names, list) else ()):
        if not isinstance(name, str):
            problems.add(("files", at), f"must be the name of a file, found {found(name)}")
            continue
        try:
            _, text = read_beside(name)
        except FileRefused as exc:
            problems.add(("files", at), f"'{shortened(name)}' {exc}")
            continue
        read.append({"name": name, "text": text})
    if sum(len(file["text"]) for file in read) > SERVER_FILES_CHARS:
        most = SERVER_FILES_CHARS // 1024
        problems.add(("files",), f"are longer than {most} KiB together; make an image of them")
    return read
