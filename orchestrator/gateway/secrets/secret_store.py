"""AgentSpec or ToolServer -> the values of the secrets that it names, from where they are kept.

An agent.md says what it needs a secret for, and may have come with a repository from elsewhere. The
operator decides where the secret is kept, which agents may have it and where it may go: in
variables, and in a file that no other user can write.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process
from pydantic import ConfigDict, Field, SecretStr, ValidationError, model_validator

from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec, Host, Secret
from orchestrator.domain.names import Name
from orchestrator.domain.tool_server import ToolServer
from orchestrator.domain.words import requirement
from orchestrator.errors import OperatorError
from orchestrator.plain_yaml import YamlRefused, load_yaml
from orchestrator.redaction import MIN_SECRET, Redactor
from orchestrator.settings import CREDENTIAL_VARIABLES, SECRET_PREFIX

SECRETS_FILE_BYTES = 1024 * 1024
"""The longest secrets file that is read."""

SECRET_BYTES = 64 * 1024
"""The longest secret."""

COMMAND_SECONDS = 30.0
"""For a command to print its secret; it may have to ask a vault."""

COMMAND_REAP_SECONDS = 5.0
"""After SIGKILL, for a command to be gone."""

COMMAND_STDERR_BYTES = 4096
"""How much of a command's complaints is read."""

COMMAND_STDERR_CHARS = 300
"""And how much of them is repeated."""


class SecretEntry(Frozen):
    """Where one secret is kept, and for whom."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """A variable of the orchestrator's environment."""
    file: Annotated[str, Field(min_length=1)] | None = None
    """A file that holds nothing else; its path starts from the secrets file's directory."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """A program and its arguments, which prints the secret and nothing else."""
    agents: tuple[Name, ...] | None = None
    """The agents that may use it; without it and `servers`, every one that names it."""
    servers: tuple[Name, ...] | None = None
    """The servers of tools that may use it, in the same way."""
    hosts: tuple[Host, ...] | None = None
    """Where it may be sent, whatever an agent.md says; with it, no agent is given the value."""

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if sum(place is not None for place in (self.env, self.file, self.command)) != 1:
            raise ValueError("needs one of env, file and command, and only one")
        if self.env in CREDENTIAL_VARIABLES:
            raise ValueError(f"{self.env} pays for the model and cannot be an agent's secret")
        return self


class SecretStore:
    """Where the operator keeps secrets. Nothing is read before a run needs it."""

    def __init__(self, file: Path, environ: Mapping[str, str], *, stand_in: str = "") -> None:
        """With a stand-in, no secret is missing: for runs in which a script plays the model."""
        self._file = file
        self._environ = environ
        self._stand_in = stand_in

    def __repr__(self) -> str:
        return f"SecretStore({str(self._file)!r})"  # not the environment, which holds secrets

    async def resolve(self, agent: AgentSpec | ToolServer) -> dict[str, SecretStr]:
        """The values of its secrets by their names; OperatorError if one is not to be had.

        They are looked up anew for each run, so that a changed secret needs no restart.
        """
        wanted = agent.secrets if isinstance(agent, AgentSpec) else agent.wanted_secrets
        if not wanted:
            return {}
        entries = await anyio.to_thread.run_sync(_read_entries, self._file)
        found: dict[str, SecretStr] = {}
        for secret in wanted:
            entry = entries.get(secret.name)
            if entry is not None:  # its limits count wherever the value comes from
                self._check_use(agent, secret, entry)
            found[secret.name] = await self._value(secret, entry, tuple(found.values()))
        return found

    def _check_use(self, agent: AgentSpec | ToolServer, secret: Secret, entry: SecretEntry) -> None:
        what = "agent" if isinstance(agent, AgentSpec) else "server"
        named = entry.agents if what == "agent" else entry.servers
        limited = entry.agents is not None or entry.servers is not None
        if limited and agent.name not in (named or ()):
            raise OperatorError(
                f"the secret {secret.name} is not for the {what} {agent.name}; the operator "
                f"can add it to {what}s in {self._file}"
            )
        if entry.hosts is None:
            return
        elsewhere = sorted(set(secret.hosts) - set(entry.hosts))
        if secret.expose is not None or elsewhere:
            wanted = ", ".join(elsewhere) or "the container itself"
            raise OperatorError(
                f"the secret {secret.name} may not be sent to {wanted}, as the {what} {agent.name} "
                f"wants it; the operator can add to hosts in {self._file}"
            )

    async def _value(
        self, secret: Secret, entry: SecretEntry | None, others: tuple[SecretStr, ...]
    ) -> SecretStr:
        variable = variable_of(secret.name)
        text = self._environ.get(variable, "")
        where = f"the variable {variable}"
        if not text and entry is not None:
            where = _described(entry)
            text = await self._kept(secret.name, entry, others)
        elif not text and self._stand_in:
            return SecretStr(self._stand_in)
        elif not text:
            raise OperatorError(
                f"the secret {secret.name} is not there: {where} is not set, and {self._file} "
                "does not name it; set the variable or add it to the file"
            )
        problem = _unfit(secret, text)
        if problem:
            raise OperatorError(f"the secret {secret.name}, from {where}, {problem}")
        return SecretStr(text)

    async def _kept(self, name: str, entry: SecretEntry, others: tuple[SecretStr, ...]) -> str:
        """The value, from where the file says."""
        if entry.env is not None:
            text = self._environ.get(entry.env, "")
            if not text:
                raise OperatorError(
                    f"the secret {name} is not there: {self._file} says that it is in the variable "
                    f"{entry.env}, which is not set"
                )
            return text
        if entry.file is not None:
            return await anyio.to_thread.run_sync(_read_value, name, self._file, entry.file)
        assert entry.command is not None  # noqa: S101 it has one of the three
        inherited = {
            key: value
            for key, value in self._environ.items()
            if not key.startswith(SECRET_PREFIX) and key not in CREDENTIAL_VARIABLES
        }
        known = [other.get_secret_value() for other in others]
        return await _printed(name, entry.command, inherited, self._file.parent, known)


def secret_files(file: Path) -> tuple[Path, ...]:
    """Files that the secrets file names, which no agent may see: those that hold a secret, and
    those that a command runs or reads. Blocks.
    """
    entries = _read_entries(file).values()
    held = [_placed(file, entry.file) for entry in entries if entry.file is not None]
    programs = [entry.command[0] for entry in entries if entry.command]
    words = [word for entry in entries for word in entry.command or ()]
    words += [value for word in words if (value := word.partition("=")[2])]  # --file=PATH
    named = [_placed(file, word) for word in words]
    named += [Path(found) for program in programs if (found := shutil.which(program))]
    return tuple(dict.fromkeys((*held, *(path for path in named if _is_file(path)))))


def _placed(beside: Path, written: str) -> Path:
    """Where a path of the secrets file leads; nowhere, if it is none."""
    with suppress(RuntimeError):  # there is no such user
        return beside.absolute().parent / Path(written).expanduser()
    return beside.absolute().parent / written


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def variable_of(name: str) -> str:
    """The variable that holds a secret by itself."""
    return SECRET_PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def _read_entries(path: Path) -> dict[str, SecretEntry]:
    """What the secrets file says; nothing, if there is none."""
    try:
        data = _read(path, SECRETS_FILE_BYTES, ours=True)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exc:
        raise OperatorError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    try:
        written = load_yaml(data)
    except YamlRefused as exc:
        line, message = exc.problem.line, exc.problem.message
        # Otherwise not what the reader says: it quotes what it did not understand.
        said = f": a key {message}" if exc.problem.key_twice else " is not valid YAML; correct it"
        raise OperatorError(f"{path}:{line}{said}") from None
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise OperatorError(f"{path} must be a mapping, such as `GITHUB_TOKEN: {{env: GH_TOKEN}}`")
    return {name: _entry(path, name, value) for name, value in written.items()}


def _entry(path: Path, name: str, value: Any) -> SecretEntry:
    if not isinstance(value, dict):
        raise OperatorError(
            f"{path}: {name[:64]!r} must say where it is kept, such as {{env: VARIABLE}}, "
            "{file: PATH} or {command: [PROGRAM, ARGUMENT]}; the secret itself does not belong here"
        )
    lists = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    try:
        return SecretEntry.model_validate(lists)
    except ValidationError as exc:
        first = exc.errors(include_input=False, include_context=False, include_url=False)[0]
        inside = [str(part) for part in first["loc"] if part in SecretEntry.model_fields]
        place = ".".join((name[:64], *inside))
        unknown = first["type"] == "extra_forbidden"
        known = f"has something else than {', '.join(SecretEntry.model_fields)}"
        said = known if unknown else requirement(first["type"], first["msg"])
        raise OperatorError(f"{path}: {place}: {said}") from None


def _read(path: Path, most: int, *, ours: bool = False) -> bytes:
    """A regular file, bounded; if it has to be ours, one that no other user can write."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(handle, "rb") as file:  # noqa: PTH123 what is looked at must be what is read
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OperatorError(f"{path} is not a file; name one")
        if ours and status.st_uid not in (os.geteuid(), 0):
            raise OperatorError(f"{path} belongs to another user, so it is not believed; chown it")
        if ours and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OperatorError(
                f"{path} can be written by others, so it is not believed; chmod go-w {path}"
            )
        data = file.read(most + 1)
    if len(data) > most:
        raise OperatorError(f"{path} is longer than {most // 1024} KiB; make it shorter")
    return data


def _read_value(name: str, beside: Path, written: str) -> str:
    path = _placed(beside, written)
    try:
        data = _read(path, SECRET_BYTES)
    except OSError as exc:
        raise OperatorError(
            f"the secret {name} is not there: {path} cannot be read ({exc.strerror or exc})"
        ) from exc
    return _decoded(data)


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape").rstrip("\r\n")


async def _printed(
    name: str, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path, known: Iterable[str]
) -> str:
    """What a command prints. No shell is involved, and COMMAND_SECONDS bound it."""
    missing = f"the secret {name} is not there: {argv[0]!r}"
    try:
        process = await anyio.open_process(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or "its arguments cannot be used"
        raise OperatorError(f"{missing} cannot be started ({why})") from None
    said = {"stdout": b"", "stderr": b""}
    try:
        with anyio.move_on_after(COMMAND_SECONDS) as limit:
            await _hear(process, said)
            await process.wait()
    finally:
        await _end(process)
    if len(said["stdout"]) > SECRET_BYTES:
        raise OperatorError(f"{missing} prints more than {SECRET_BYTES // 1024} KiB")
    if limit.cancelled_caught:
        raise OperatorError(
            f"{missing} was not done after {COMMAND_SECONDS:.0f} s; it has no terminal to ask on"
        )
    printed = _decoded(said["stdout"])
    if process.returncode:
        hidden = Redactor((*known, printed, *printed.split()))
        complaint = " ".join(hidden.text(said["stderr"].decode(errors="replace")).split())
        raise OperatorError(
            f"{missing} failed with code {process.returncode}: "
            f"{complaint[-COMMAND_STDERR_CHARS:] or 'it did not say why'}"
        )
    return printed


async def _hear(process: Process, said: dict[str, bytes]) -> None:
    """All that it prints, up to what a secret may have; of its complaints the beginning."""

    async def complaints(stream: ByteReceiveStream) -> None:
        async for data in stream:
            said["stderr"] += data[: COMMAND_STDERR_BYTES - len(said["stderr"])]

    assert process.stdout is not None  # noqa: S101 both are pipes
    assert process.stderr is not None  # noqa: S101
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(complaints, process.stderr)
        async for data in process.stdout:
            said["stdout"] += data
            if len(said["stdout"]) > SECRET_BYTES:
                process.kill()
                tasks.cancel_scope.cancel()
                return


async def _end(process: Process) -> None:
    """End a command and whatever it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with anyio.move_on_after(COMMAND_REAP_SECONDS, shield=True):
        await process.aclose()


def _described(entry: SecretEntry) -> str:
    if entry.env is not None:
        return f"the variable {entry.env}"
    return entry.file or f"the command {(entry.command or ('',))[0]!r}"


def _unfit(secret: Secret, text: str) -> str:
    """Why a value cannot be used, or an empty text."""
    if len(text) < MIN_SECRET:
        return (
            f"is shorter than {MIN_SECRET} characters, too short to be kept out of records; use a "
            "longer one"
        )
    if len(text) > SECRET_BYTES or "\0" in text:
        return f"is longer than {SECRET_BYTES // 1024} KiB or holds a NUL; it cannot be used"
    if secret.hosts and not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", text):
        return (
            "holds a character that no HTTP header can carry, such as a line break, or begins or "
            "ends with a space; copy it again"
        )
    return ""
