"""Process settings, read once at the edge. The only place that knows the environment.

A flag wins over the environment, that over the project's orchestrator.yaml, that over the user's
config.yaml, and that over the default. The project's file may have come with a repository that a
stranger wrote: it may hold no secret, and it may not say where secrets are sent: which model API,
which engine.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, TypeAdapter, ValidationError, model_validator

from orchestrator.domain import Frozen
from orchestrator.domain.names import Name
from orchestrator.domain.words import requirement
from orchestrator.errors import OperatorError

ANTHROPIC_BASE_URL = "https://api.anthropic.com"
OPENAI_BASE_URL = "https://api.openai.com/v1"
GOOGLE_GEMINI_BASE_URL = "https://generativelanguage.googleapis.com"
"""Where model requests go unless the operator says otherwise."""

MIN_TOKEN_CHARS = 16
"""A shorter token for the HTTP server could be guessed."""

SETTINGS_FILE = "orchestrator.yaml"
"""In the project's folder (`project_root`); its keys are the names of the fields below."""
USER_FILE = "config.yaml"
"""The user's own, for all projects, beside secrets.yaml."""

SETTINGS_BYTES = 1024 * 1024
"""The longest settings file that is read."""


RESERVED_CALLERS = ("operator", "unknown", "agent")
"""Who else is named in the audit."""

FOLDERS_OF_OTHERS = (".claude", ".github", ".copilot", ".openhands", ".agents")
"""Where other programs keep their agents/ in a project."""

MOST = 999_999_999
"""What a number may be at most: more than any of them can use."""


SERVER_FLAG: ContextVar[str] = ContextVar("server", default="")
"""The address that `--server` names, in the command that is carried out."""


WebhookEvent = Literal["run.ended", "run.waiting"]
"""A run that a caller asked for has ended; one asks something, or wants a tool call allowed."""


class Webhook(Frozen):
    """One receiver."""

    name: Name
    url: Annotated[str, Field(max_length=2000)]
    events: Annotated[tuple[WebhookEvent, ...], Field(min_length=1)] = ("run.ended", "run.waiting")
    private: bool = False
    """It is on this machine, or at a private address; it may speak plain HTTP then."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the url of a webhook begins with https:// and has a host")
        if parts.username or parts.password:
            raise ValueError("the url of a webhook has no password in it; its secret is apart")
        if parts.scheme == "http" and not self.private:
            raise ValueError(
                "the url of a webhook begins with https://, unless it is `private: true`"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of its URL."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


class Settings(Frozen):
    """What the operator decides for the whole process."""

    state_dir: Path
    """ORCHESTRATOR_STATE_DIR: locks and records, shared by all orchestrators of a user."""
    cache_dir: Path
    """ORCHESTRATOR_CACHE_DIR: downloads that can be fetched again."""
    agents_dir: Path = Path("agents")
    """ORCHESTRATOR_AGENTS_DIR: a folder for each agent."""
    engine_candidates: tuple[str, ...]
    """Addresses to try for a container engine, first answer wins. DOCKER_HOST alone, if set."""
    tls_dir: Path | None = None
    """DOCKER_CERT_PATH, when DOCKER_TLS_VERIFY is set."""
    allowed_roots: tuple[Path, ...] = ()
    """ORCHESTRATOR_ALLOWED_ROOTS: directories below which a container may be shown something."""
    trusted: tuple[Path, ...] = ()
    """ORCHESTRATOR_TRUSTED: directories whose agents are trusted, whatever they want to reach."""
    secrets_file: Path
    """ORCHESTRATOR_SECRETS_FILE: where the secrets are kept that agents may ask for."""
    home: Path
    agent_image: str | None = None
    """ORCHESTRATOR_AGENT_IMAGE: use this image for claude instead of the one that we build."""
    claude_binary: Path | None = None
    """ORCHESTRATOR_CLAUDE_BINARY: a claude executable for Linux to put into the image."""
    claude_version: str | None = None
    """ORCHESTRATOR_CLAUDE_VERSION: one whose checksum we know; None is the newest."""
    npm_registry: str | None = None
    """NPM_CONFIG_REGISTRY: the npm index to fetch agent CLIs from where there is no npm."""
    base_image: str | None = None
    """ORCHESTRATOR_BASE_IMAGE: build on this Debian or Ubuntu image instead of the default."""
    caller: str = "main"
    """ORCHESTRATOR_CALLER: who calls through this process, unless a token says otherwise."""
    callers: tuple[str, ...] = ()
    """ORCHESTRATOR_CALLERS: who calls besides main, default, agents and the names of tokens."""
    deny_on_missing_caller: bool = False
    """ORCHESTRATOR_DENY_ON_MISSING_CALLER: refuse whoever calls without a name."""
    scripted: bool = False
    """ORCHESTRATOR_SCRIPTED: let each agent's script.yaml play the model; for demos and tests."""
    http_tokens: dict[str, SecretStr] = {}
    """ORCHESTRATOR_HTTP_TOKENS: who may call over HTTP, as caller=token, separated by commas."""
    http_hosts: tuple[str, ...] = ()
    """ORCHESTRATOR_HTTP_HOSTS: further names by which clients reach the HTTP server."""
    webhooks: Annotated[tuple[Webhook, ...], Field(max_length=20)] = ()
    """ORCHESTRATOR_WEBHOOKS: receivers that are told of runs; as a variable, a list in JSON."""
    webhook_secrets: dict[str, SecretStr] = {}
    """ORCHESTRATOR_WEBHOOK_SECRETS: what messages are signed with, as name=whsec_…, by commas."""
    max_runs: Annotated[int, Field(ge=1, le=MOST)] = 8
    """ORCHESTRATOR_MAX_RUNS: how many runs at once; later ones wait for their turn."""
    max_runs_per_agent: Annotated[int, Field(ge=1, le=MOST)] = 8
    """ORCHESTRATOR_MAX_RUNS_PER_AGENT: the same for each agent."""
    runner: str = ""
    """ORCHESTRATOR_RUNNER: the agent CLI to try first, for agents whose agent.md names none."""
    runner_config: Path | None = None
    """ORCHESTRATOR_RUNNER_CONFIG: a file with the CLIs to try, their order and their models."""
    dynamic_template: str = ""
    """ORCHESTRATOR_DYNAMIC_TEMPLATE: the agent that callers may make smaller ones of; none."""
    max_spares: Annotated[int, Field(ge=0, le=MOST)] = 8
    """ORCHESTRATOR_MAX_SPARES: how many containers may wait, of all agents together."""
    max_spares_mb: Annotated[int, Field(ge=0, le=MOST)] = 4096
    """ORCHESTRATOR_MAX_SPARES_MB: what they may take of memory, in MiB."""
    pause_spares_seconds: Annotated[int, Field(ge=1, le=MOST)] = 30
    """ORCHESTRATOR_PAUSE_SPARES_SECONDS: after so long, a waiting CLI is paused."""
    keep_days: Annotated[int, Field(ge=1, le=MOST)] = 90
    """ORCHESTRATOR_KEEP_DAYS: runs that ended longer ago are removed."""
    keep_mb: Annotated[int, Field(ge=1, le=MOST)] = 2048
    """ORCHESTRATOR_KEEP_MB: what the record of runs may take, in MiB; beyond it, the oldest
    runs go of the agent whose runs take most."""
    upload_mb: Annotated[int, Field(ge=0, le=MOST)] = 1024
    """ORCHESTRATOR_UPLOAD_MB: the largest workspace that callers may send over HTTP, in MiB."""
    server: str = ""
    """ORCHESTRATOR_SERVER: the orchestrator elsewhere that commands about runs go to; none."""
    token: SecretStr | None = None
    """ORCHESTRATOR_TOKEN: what we are known by there."""
    token_file: Path | None = None
    """ORCHESTRATOR_TOKEN_FILE: a file with that token in it instead."""
    window_seconds: Annotated[float, Field(gt=0, le=MOST)] | None = None
    """ORCHESTRATOR_WINDOW_SECONDS: how long one MCP call may last; None follows its client."""
    compatibility: bool = False
    """ORCHESTRATOR_COMPATIBILITY: offer the tool names of older subagent servers too."""
    otlp_endpoint: str = ""
    """OTEL_EXPORTER_OTLP_ENDPOINT: where traces go, over HTTP; none are made without it."""
    otlp_headers: SecretStr | None = None
    """OTEL_EXPORTER_OTLP_HEADERS: sent along, as name=value, separated by commas."""
    trace_content: bool = False
    """OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: traces hold prompts and answers too."""
    metrics: str = ""
    """ORCHESTRATOR_METRICS: HOST:PORT where `serve` answers a Prometheus; none without it."""
    log_json: bool = False
    """ORCHESTRATOR_LOG_JSON: what servers log is JSON, and tells of each run."""
    gateway_rules: Path | None = None
    """GATEWAY_RULES: what agents outside may call; None looks in the usual places."""
    gateway_default_agent: str = ""
    """GATEWAY_DEFAULT_AGENT: which of these agents calls without an agent_id."""
    gateway_debug: bool = False
    """GATEWAY_DEBUG: offer agents outside the tool get_gateway_status."""
    anthropic_api_key: SecretStr | None = None
    """ANTHROPIC_API_KEY. The model credentials stay in this process; no container sees them."""
    anthropic_auth_token: SecretStr | None = None
    """ANTHROPIC_AUTH_TOKEN: a bearer token instead of a key."""
    claude_code_oauth_token: SecretStr | None = None
    """CLAUDE_CODE_OAUTH_TOKEN: a bearer token from a login."""
    anthropic_base_url: str = ANTHROPIC_BASE_URL
    """ANTHROPIC_BASE_URL: where requests to models of Anthropic's go."""
    openai_api_key: SecretStr | None = None
    """OPENAI_API_KEY: for runners that speak OpenAI's formats."""
    openai_base_url: str = OPENAI_BASE_URL
    """OPENAI_BASE_URL: where their requests go; also that of a provider that is compatible."""
    gemini_api_key: SecretStr | None = None
    """GEMINI_API_KEY: for runners that speak Gemini's format."""
    google_api_key: SecretStr | None = None
    """GOOGLE_API_KEY: the same, by its other name."""
    google_gemini_base_url: str = GOOGLE_GEMINI_BASE_URL
    """GOOGLE_GEMINI_BASE_URL: where their requests go."""

    @property
    def secret_values(self) -> tuple[str, ...]:
        """All that is secret in these settings, for what is to be kept out of a log."""
        found = [getattr(self, name) for name in type(self).model_fields]
        single = [each.get_secret_value() for each in found if isinstance(each, SecretStr)]
        several = (*self.http_tokens.values(), *self.webhook_secrets.values())
        return (*single, *(each.get_secret_value() for each in several))

    @property
    def named_caller(self) -> str:
        """The caller that the operator has named for this process; "" if he has named none."""
        named = "caller" in self.model_fields_set and self.caller != "default"
        return self.caller if named else ""

    @property
    def known_callers(self) -> tuple[str, ...]:
        """Who may call, as far as the settings say; agents call too, by their names."""
        return tuple(dict.fromkeys(("main", "default", *self.callers, *self.http_tokens)))

    @property
    def project_dir(self) -> Path:
        """The real path of the directory that agents/ is in, or of an agents directory of another
        name: whose runs these are.
        """
        agents = self.agents_dir.absolute()
        # A folder of another name is a project by itself: beside it may be somebody else's agents.
        path = agents.parent if agents.name == "agents" else agents
        if agents.name == "agents" and path.name in FOLDERS_OF_OTHERS:  # .claude/agents
            path = path.parent
        return path.resolve()

    @property
    def project(self) -> str:
        """The same, fit for the store and JSON."""
        return os.fsencode(self.project_dir).decode(errors="backslashreplace")


Writer = Literal["project", "user", "environment"]


class Source(NamedTuple):
    """Where a setting may come from."""

    variable: str
    parts: Callable[[str], object] = str
    """The variable's text -> the texts in it, for a setting of several values."""
    only_with: str = ""
    """Another variable: unless it is set too, this one does not count."""
    writer: Writer = "project"
    """Whose file may say it. orchestrator.yaml may come with a repository of a stranger's, so what
    decides over this machine is the user's; what is secret, or says where secrets go, is in none.
    """


def read_settings(
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    flags: Mapping[str, object] | None = None,
) -> Settings:
    """Flags, the environment and orchestrator.yaml -> Settings."""
    return read_settings_with_origins(environ, cwd, flags)[0]


def read_settings_with_origins(
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    flags: Mapping[str, object] | None = None,
) -> tuple[Settings, dict[str, str]]:
    """The settings, and for each of them where it came from. A flag that is None was not given."""
    env = os.environ if environ is None else environ
    root = project_root(cwd or Path.cwd(), _home(env))
    layers = (
        *_defaults(env, root),
        *_from_file(_config_dir(env) / USER_FILE, "user"),
        *_from_file(root / SETTINGS_FILE, "project"),
        *_from_environment(env),
        ("server", SERVER_FLAG.get() or None, "--server"),
        *((name, value, f"--{name.replace('_', '-')}") for name, value in (flags or {}).items()),
    )
    values: dict[str, object] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    for name, value, origin in layers:
        if value is None or (
            origin == str(root / SETTINGS_FILE) and _is_looser(name, value, values)
        ):
            continue
        values[name], origins[name] = value, origin
    if "caller" in values:
        values["caller"] = values["caller"] or "default"
    settings = Settings.model_validate(values)
    for caller in (settings.caller, *settings.callers, *settings.http_tokens):
        if caller in RESERVED_CALLERS or not caller.isprintable() or " " in caller:
            raise OperatorError(
                f"no caller can be called {caller!r}: {', '.join(RESERVED_CALLERS)} are words of "
                "the audit, and a name has no spaces"
            )
    check_declared(settings, settings.caller, origins["caller"])
    return settings, origins


def project_root(here: Path, home: Path) -> Path:
    """The folder of the project that a folder belongs to: the first one, from it upwards, that has
    agents or an orchestrator.yaml; the folder itself if none has.

    As git does, it stays in the repository, and passes by what another user could have put there:
    agents of theirs would run for this user. A home is a project only to those who are in it.
    """
    for folder in (here, *here.parents):
        if folder != here and (folder == home or not _is_own(folder)):
            break
        if (folder / SETTINGS_FILE).is_file() or any(folder.glob("agents/*/agent.md")):
            return folder
        if (folder / ".git").exists():
            break
    return here


def _is_own(folder: Path) -> bool:
    """Whether this user, and no other, decides what is in a folder."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & stat.S_IWOTH


def user_file() -> Path:
    """The user's own settings, whether or not they are there."""
    return _config_dir(os.environ) / USER_FILE


def _is_looser(name: str, value: object, values: Mapping[str, object]) -> bool:
    """Whether a project's file would let more pass than the user does: it may only let less."""
    usual = values.get(name, Settings.model_fields[name].default)
    if name in _ONLY_LOWER:
        return isinstance(value, int) and isinstance(usual, int) and value > usual
    return name == "deny_on_missing_caller" and bool(usual) and not value


def check_declared(settings: Settings, caller: str, origin: str) -> None:
    """OperatorError where the operator declares the callers, and this one is not among them."""
    if settings.callers and caller not in settings.known_callers:
        close = difflib.get_close_matches(caller, settings.known_callers, n=1)
        known = ", ".join(settings.known_callers)
        guess = f"did you mean {close[0]!r}?" if close else f"there are {known}."
        raise OperatorError(
            f"{origin}: no caller is declared as {caller!r}; {guess} ORCHESTRATOR_CALLERS "
            "declares them"
        )


def _defaults(env: Mapping[str, str], root: Path) -> tuple[tuple[str, object, str], ...]:
    """The defaults that depend on where we are; the others are written in Settings."""
    home = _home(env)
    state = Path(env.get("XDG_STATE_HOME") or home / ".local/state")
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    context = _docker_context(env, home)
    return (
        ("home", home, "HOME"),
        ("state_dir", state / "subagent-orchestrator", "default"),
        ("cache_dir", cache / "subagent-orchestrator", "default"),
        ("secrets_file", _config_dir(env) / "secrets.yaml", "default"),
        ("agents_dir", root / "agents", "default"),
        ("allowed_roots", tuple(dict.fromkeys((home, root))), "default"),
        ("engine_candidates", _usual_sockets(env, home), "default"),
        ("engine_candidates", (context,) if context else None, "docker context"),
        (
            "tls_dir",
            home / ".docker" if env.get("DOCKER_TLS_VERIFY") else None,
            "DOCKER_TLS_VERIFY",
        ),
    )


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    for name, source in SOURCES.items():
        text = env.get(source.variable)
        if name == "caller" and text == "":  # said, and no name: not who it would be without a word
            yield name, "default", source.variable
        if text and (not source.only_with or env.get(source.only_with)):
            yield name, _from_text(name, source, text), source.variable


def _from_text(name: str, source: Source, text: str) -> object:
    """The value that a variable's text means; OperatorError if it means none."""
    try:
        read = _kind(name).validate_python(source.parts(text))
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        said = requirement(error["type"], error["msg"])
        said = "is neither 1 nor 0" if error["type"] == "bool_parsing" else said
        raise OperatorError(f"{source.variable}={text[:60]} {said}; correct or unset it") from exc
    return _placed(read, Path())


def _from_file(path: Path, writer: Writer) -> Iterator[tuple[str, object, str]]:
    """What a file says, if there is one; paths in it start from its directory."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            # A link to /dev/stdin or a pipe would be waited for, for ever.
            data = file.read(SETTINGS_BYTES + 1) if stat.S_ISREG(found.st_mode) else None
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as exc:
        raise OperatorError(f"{path} cannot be read: {exc.strerror}") from exc
    from orchestrator.plain_yaml import (  # noqa: PLC0415 most directories have no such file
        YamlRefused,
        load_yaml,
    )

    if data is None:
        raise OperatorError(f"{path} is not a regular file; remove it")
    if writer == "user" and (found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022):
        raise OperatorError(
            f"{path} can be written by another user, who could decide over this machine with it; "
            f"make it yours alone: chmod 600 {path}"
        )
    if len(data) > SETTINGS_BYTES:
        raise OperatorError(f"{path} is longer than {SETTINGS_BYTES // 1024} KiB; make it shorter")
    try:
        written = load_yaml(data)
    except YamlRefused as exc:
        raise OperatorError(f"{path}:{exc}") from exc
    if written is None:
        return
    if not isinstance(written, dict):
        raise OperatorError(f"{path} must be a mapping, such as `max_runs: 4`")
    for name, value in written.items():
        yield name, _written(path, writer, name, value), str(path)


def _written(path: Path, writer: Writer, name: str, value: object) -> object:
    """One value of a file; OperatorError if it has no business there, or is none."""
    source = SOURCES.get(name)
    mine = ("project", writer)
    known = [key for key, each in SOURCES.items() if each.writer in mine]
    if source is None:
        close = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
        guess = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise OperatorError(f"{path}: there is no setting {name[:60]!r}; {guess}")
    if source.writer == "user" and writer == "project":
        raise OperatorError(
            f"{path}: {name} decides over this machine, and this file may have come with a "
            f"repository; remove it, and set the variable {source.variable}, or write it into "
            f"your own {USER_FILE}"
        )
    if source.writer not in mine:
        raise OperatorError(
            f"{path}: {name} is not read from a file, which others may read or have written; "
            f"remove it and set the variable {source.variable}"
        )
    if value is None:
        return None
    try:
        # As JSON: there a text can be a path and a list a tuple, but "8" is no number.
        read = _kind(name).validate_json(json.dumps(value), strict=True)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        must = requirement(error["type"], error["msg"])
        raise OperatorError(f"{path}: {name}: found {str(value)[:60]!r}; it {must}") from exc
    placed = _placed(read, path.parent)
    if name == "agents_dir" and writer == "project" and not _is_below(placed, path.parent):
        raise OperatorError(
            f"{path}: agents_dir must be a folder below {path.parent}, since this file may have "
            f"come with a repository; name another one in {source.variable} or in your own "
            f"{USER_FILE}"
        )
    return placed


def _is_below(path: object, folder: Path) -> bool:
    real = path.resolve() if isinstance(path, Path) else folder
    return real != folder.resolve() and real.is_relative_to(folder.resolve())


def _kind(name: str) -> TypeAdapter[object]:
    """What a setting must be, as its field says: type and limits."""
    field = Settings.model_fields[name]
    return TypeAdapter(
        Annotated[field.annotation, field]  # type: ignore[arg-type]  # known at run time only
    )


def _placed(value: object, folder: Path) -> object:
    """The same, with paths starting from a folder, or from the user's home where they say ~."""
    if isinstance(value, Path):
        try:
            return folder / value.expanduser()
        except RuntimeError as exc:  # there is no such user
            raise OperatorError(f"{value} is no path here: {exc}") from exc
    if isinstance(value, tuple):
        return tuple(_placed(item, folder) for item in value)
    return value


def _paths(text: str) -> list[str]:
    return [part for part in text.split(os.pathsep) if part]


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _tokens(text: str) -> dict[str, str]:
    tokens = {}
    for pair in _names(text):
        caller, equals, token = pair.partition("=")
        if not equals or len(token) < MIN_TOKEN_CHARS:  # and no word of what it is
            raise OperatorError(
                f"{SOURCES['http_tokens'].variable} must be caller=token pairs, separated by "
                f"commas, each token at least {MIN_TOKEN_CHARS} characters long"
            )
        tokens[caller] = token
    return tokens


def _webhook_secrets(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in _names(text)]
    if not all(name and value for name, _, value in pairs):
        raise OperatorError(  # and no word of what it is
            f"{SOURCES['webhook_secrets'].variable} must be name=secret pairs, separated by commas"
        )
    return {name: value for name, _, value in pairs}


def _json_list(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


_VARIABLES = {
    "engine_candidates": "DOCKER_HOST",
    "tls_dir": "DOCKER_CERT_PATH",
    "anthropic_api_key": "ANTHROPIC_API_KEY",
    "anthropic_auth_token": "ANTHROPIC_AUTH_TOKEN",
    "claude_code_oauth_token": "CLAUDE_CODE_OAUTH_TOKEN",
    "anthropic_base_url": "ANTHROPIC_BASE_URL",
    "openai_api_key": "OPENAI_API_KEY",
    "openai_base_url": "OPENAI_BASE_URL",
    "gemini_api_key": "GEMINI_API_KEY",
    "google_api_key": "GOOGLE_API_KEY",
    "google_gemini_base_url": "GOOGLE_GEMINI_BASE_URL",
    "npm_registry": "NPM_CONFIG_REGISTRY",
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "otlp_headers": "OTEL_EXPORTER_OTLP_HEADERS",
    "trace_content": "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
    "gateway_rules": "GATEWAY_RULES",
    "gateway_default_agent": "GATEWAY_DEFAULT_AGENT",
    "gateway_debug": "GATEWAY_DEBUG",
}
"""Those that other programs read too; every other one is ORCHESTRATOR_ and the field's name."""

_PARTS: dict[str, Callable[[str], object]] = {
    "allowed_roots": _paths,
    "callers": _names,
    "trusted": _paths,
    "http_hosts": _names,
    "http_tokens": _tokens,
    "webhooks": _json_list,
    "webhook_secrets": _webhook_secrets,
    "engine_candidates": lambda text: [text],
}

_SECRET = frozenset(
    name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)
)
_NO_FILE = _SECRET | {
    *("anthropic_base_url", "openai_base_url", "google_gemini_base_url"),
    *("engine_candidates", "secrets_file", "tls_dir"),
    *("otlp_endpoint", "trace_content"),
}

_USER = frozenset(
    (
        *("state_dir", "cache_dir", "allowed_roots", "scripted", "http_hosts"),
        *("agent_image", "base_image", "claude_binary", "npm_registry"),
        *("trusted", "keep_days", "keep_mb", "upload_mb", "server", "token_file"),
        *("metrics", "log_json", "webhooks"),
        *("gateway_rules", "gateway_default_agent", "gateway_debug"),
    )
)
"""What decides over this machine: files that are written and removed, what may be shown to a
container, what plays the model, who may call and what, what runs as PID 1, whose agents are
trusted, and how long the runs of all projects are kept."""

SOURCES = {
    name: Source(
        variable=_VARIABLES.get(name, f"ORCHESTRATOR_{name.upper()}"),
        parts=_PARTS.get(name, str),
        only_with="DOCKER_TLS_VERIFY" if name == "tls_dir" else "",
        writer="environment" if name in _NO_FILE else "user" if name in _USER else "project",
    )
    for name in Settings.model_fields
    if name != "home"
}
"""Every setting that an operator can make, by the name of its field."""

OWN_VARIABLES = (
    *dict.fromkeys(source.variable for source in SOURCES.values()),
    *("DOCKER_TLS_VERIFY", "DOCKER_CONTEXT", "DOCKER_CONFIG"),
    *("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"),
)
"""What a process that is to be the orchestrator has to be given of a person's environment."""

_ONLY_LOWER = frozenset(("max_runs", "max_runs_per_agent", "max_spares", "max_spares_mb"))
"""What a project's file may lower, and not raise: all projects of the user share these."""

CREDENTIAL_VARIABLES = frozenset(SOURCES[name].variable for name in _SECRET)
"""What stays in this process, whatever an agent.md says."""

SECRET_PREFIX = "ORCHESTRATOR_SECRET_"  # noqa: S105 the beginning of a variable's name
"""Variables that begin so hold a secret each, for the agents that the operator allows it."""


CREDENTIAL_FOLDER_VARIABLES = (
    *("XDG_CONFIG_HOME", "GNUPGHOME", "DOCKER_CONFIG", "CLAUDE_CONFIG_DIR", "CODEX_HOME"),
    *("PASSWORD_STORE_DIR", "AZURE_CONFIG_DIR", "CLOUDSDK_CONFIG", "COLIMA_HOME", "LIMA_HOME"),
)
"""Where a person has moved what programs keep below a home otherwise, in folders of their own."""


def moved_credentials(home: Path, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """The folders that these variables name, unless one would be the whole home."""
    env = os.environ if environ is None else environ
    named = [Path(env[name]) for name in CREDENTIAL_FOLDER_VARIABLES if env.get(name)]
    return tuple(path for path in named if path.is_absolute() and not home.is_relative_to(path))


def git_configurations(home: Path, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Files that this user's git reads for every repository."""
    env = os.environ if environ is None else environ
    moved = env.get("XDG_CONFIG_HOME")
    named = (env.get("GIT_CONFIG_GLOBAL"), env.get("GIT_CONFIG_SYSTEM"))
    return (
        *(home / ".gitconfig", home / ".config/git/config", Path("/etc/gitconfig")),
        *((Path(moved) / "git/config",) if moved else ()),
        *(Path(path) for path in named if path),
    )


def whole_environment() -> Mapping[str, str]:
    """Every variable, credentials too: for another process that is the orchestrator itself."""
    return dict(os.environ)


def environment() -> Mapping[str, str]:
    """What ${VAR} in an agent.md refers to: this process's variables, but no credential of ours."""
    found = secret_environment()
    return {name: value for name, value in found.items() if not name.startswith(SECRET_PREFIX)}


def secret_environment() -> Mapping[str, str]:
    """Where the secret store looks: the same, and the variables that hold secrets."""
    return {name: value for name, value in os.environ.items() if name not in CREDENTIAL_VARIABLES}


def _config_dir(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CONFIG_HOME") or _home(env) / ".config") / "subagent-orchestrator"


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or Path.home())


def _usual_sockets(env: Mapping[str, str], home: Path) -> tuple[str, ...]:
    """Where an engine listens unless the operator names one; Podman's last."""
    run = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    sockets = (
        Path("/var/run/docker.sock"),
        Path(run) / "docker.sock",
        home / ".docker/run/docker.sock",
        home / ".orbstack/run/docker.sock",
        home / ".colima/default/docker.sock",
        Path(run) / "podman/podman.sock",
        Path("/run/podman/podman.sock"),
    )
    return tuple(f"unix://{path}" for path in sockets)


def _docker_context(env: Mapping[str, str], home: Path) -> str | None:
    """The address that `docker context use` selected, if it is not the default one."""
    base = Path(env.get("DOCKER_CONFIG") or home / ".docker")
    try:
        config = json.loads((base / "config.json").read_text())
        name = env.get("DOCKER_CONTEXT") or config.get("currentContext") or "default"
    except (OSError, ValueError):
        name = env.get("DOCKER_CONTEXT") or "default"
    if name == "default":
        return None
    meta = base / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    try:
        host = json.loads(meta.read_text())["Endpoints"]["docker"]["Host"]
    except (OSError, ValueError, KeyError):
        return None
    return str(host)
