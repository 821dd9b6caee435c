"""ToolServer: what agents/servers/NAME/server.yaml says of an MCP server outside of agents."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from orchestrator.domain import Frozen
from orchestrator.domain.agent import OWN_HEADERS, Env, Network, Secret
from orchestrator.domain.container import MIB, SHM_BYTES, leaves_room
from orchestrator.domain.hosts import host_rule, normal_host, written_host
from orchestrator.domain.names import Name
from orchestrator.domain.tool_use import ServerName
from orchestrator.domain.variables import Template

SERVERS = "servers"
"""The folder beside agents whose folders hold servers."""

SERVER_NAME = "server.yaml"

Share = Literal["run", "session", "project"]


def _check_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError("is no URL") from None
    if parts.scheme not in ("https", "http") or normal_host(parts.hostname or "") is None:
        raise ValueError('must be a URL such as "https://mcp.example.org/mcp"')
    if parts.username is not None or parts.password is not None:
        raise ValueError("has a user or a password in it; name a secret under auth instead")
    if parts.fragment or port == 0 or not text.isprintable() or " " in text:
        raise ValueError("has a #, a space, port 0 or an invisible character in it; remove that")
    return text


def _check_file(text: str) -> str:
    if "/" in text or text in ("", ".", "..") or not text.isprintable():
        raise ValueError("must be the name of a file beside server.yaml")
    return text


class ServerFile(Frozen):
    """A file beside server.yaml, which is put where the server starts."""

    name: Annotated[str, AfterValidator(_check_file)]
    text: str


class SecretHeader(Frozen):
    """A secret of the operator's, sent with each request as a header."""

    kind: Literal["secret"] = "secret"
    secret: Name
    """What the operator keeps it under."""
    header: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")] = (
        "Authorization"
    )
    scheme: Literal["bearer", "plain"] = "bearer"
    """How the header holds it: "Bearer SECRET", or alone."""

    @model_validator(mode="after")
    def _is_a_header(self) -> Self:
        if self.header.lower() in OWN_HEADERS or self.header.lower().startswith(("mcp-", "proxy-")):
            raise ValueError(f"header is {self.header}, which is not for a secret")
        return self


class OAuth(Frozen):
    """A person logs in once, with `orchestrator servers login`; tokens renew themselves."""

    kind: Literal["oauth"] = "oauth"
    scopes: tuple[str, ...] = ()
    """Without any, those that the server's own challenge asks for."""
    client_id: str | None = None
    """Of an application that was registered by hand; without it, one is registered."""
    client_secret: Name | None = None
    """The secret that holds its password, if it has one."""


class ClientCredentials(Frozen):
    """OAuth without a person: the orchestrator is the client."""

    kind: Literal["client_credentials"] = "client_credentials"
    client_id: Annotated[str, StringConstraints(min_length=1)]
    client_secret: Name
    """The secret that holds its password."""
    issuer: Annotated[str, AfterValidator(_check_url)]
    """Who gave them out; they are sent nowhere else."""
    scopes: tuple[str, ...] = ()


Auth = Annotated[SecretHeader | OAuth | ClientCredentials, Field(discriminator="kind")]


class ServerResources(Frozen):
    """What a server's container may use up."""

    memory_mb: Annotated[int, Field(ge=64, le=1024 * 1024)] = 512
    """Memory and swap together, in MiB."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """Processors."""
    pids: Annotated[int, Field(ge=16, le=65536)] = 128
    """Processes and threads."""
    scratch_mb: Annotated[int, Field(ge=4, le=1024 * 1024)] = 64
    """The size of /tmp, and of the home directory. It counts as memory."""
    open_files: Annotated[int, Field(ge=64, le=1048576)] = 1024
    """In each process."""

    @model_validator(mode="after")
    def _scratch_leaves_room(self) -> Self:
        if not leaves_room(2 * self.scratch_mb * MIB + self.shm_bytes, self.memory_mb * MIB):
            raise ValueError(
                f"scratch_mb is {self.scratch_mb}, for /tmp and for the home directory, which is "
                f"too much of a memory_mb of {self.memory_mb}; lower it or raise memory_mb"
            )
        return self

    @property
    def shm_bytes(self) -> int:
        """Shared memory between processes."""
        return min(SHM_BYTES, self.scratch_mb * MIB)


class ToolServer(Frozen):
    """One MCP server: in a locked container of its own, or at a URL. No agent sees its secrets."""

    name: ServerName
    """As its folder is called; its tools are called mcp__NAME__TOOL."""
    description: str = ""
    """One or two sentences for people."""
    command: tuple[Template, ...] = ()
    """A program in the image and its arguments, which speaks MCP on its stdin and stdout."""
    image: Annotated[str, StringConstraints(min_length=1)] | None = None
    """What it runs in; without it, the image that agents run in."""
    files: tuple[ServerFile, ...] = ()
    """Files beside server.yaml that are put into the directory that the command starts in."""
    env: Env = {}
    """Variables for it; ${VAR} and ${VAR:-default} are the orchestrator's."""
    url: Annotated[str, AfterValidator(_check_url)] | None = None
    """Instead of a command: where it is reached, by MCP's streamable HTTP."""
    auth: Auth | None = None
    """How the orchestrator says who it is, at a URL."""
    secrets: tuple[Secret, ...] = ()
    """What secrets the container needs, and for what; as in agent.md."""
    network: Network = Network()
    """Where the container may talk to: nowhere, unless allowed. With a URL, hosts besides its own:
    where tokens come from, or that its own has a private address."""
    resources: ServerResources = ServerResources()
    """What the container may use up."""
    runtime: Name | None = None
    """Another OCI runtime of the engine, such as runsc (gVisor)."""
    seccomp: Literal["strict", "engine"] = "strict"
    """Which system calls exist: ours only, or the engine's own choice."""
    share: Share = "run"
    """Who uses one instance: one run, the runs of one session, or all runs of the project."""
    idle_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0
    """Without a call for so long, an instance that is shared ends."""
    start_seconds: Annotated[float, Field(gt=0, le=600)] = 60.0
    """For it to start, and to say what it can do."""
    call_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0
    """For one call to be answered; each sign of progress begins it anew."""
    result_kb: Annotated[int, Field(ge=1, le=4096)] = 64
    """What of an answer the agent is shown, in KiB; the rest is put into a file."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError(
                "needs a `command` that is run in a container, or a `url`, and only one of them"
            )
        if self.url is None:
            if self.auth is not None:
                raise ValueError("auth is for a `url`; write what the container needs as secrets")
            return self
        inside = ("image", "files", "env", "secrets", "resources", "runtime", "seccomp")
        given = [field for field in inside if field in self.model_fields_set]
        if given:
            raise ValueError(f"{given[0]} is for a server in a container; remove it, or the url")
        host, port = self.address
        own = f'under network.allow_private: "{written_host(host)}:{port}"'
        if not self._is_private and urlsplit(self.url).scheme == "http":
            raise ValueError(
                "url is plain HTTP, which others can read; use https, or, if its host is on this "
                f"network, name that {own}"
            )
        if not self._is_private and not isinstance(normal_host(host), str):
            raise ValueError(f"url has an address; write a name, or name the address {own}")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        kept = [secret.name for secret in self.secrets]
        if len(set(kept)) < len(kept):
            raise ValueError("secrets has a name more than once; put its hosts and paths together")
        files = [file.name for file in self.files]
        if len(set(files)) < len(files):
            raise ValueError("files has a name more than once; remove one")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of its URL."""
        parts = urlsplit(self.url or "")
        return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)

    @property
    def _is_private(self) -> bool:
        """Its author says that its own host is on the inside."""
        host, port = self.address
        wanted = normal_host(host)
        rules = [rule for rule in map(host_rule, self.network.allow_private) if rule.closes(port)]
        if isinstance(wanted, str):
            return any(rule.matches(wanted) for rule in rules if rule.network is None)
        return wanted is not None and any(rule.holds(wanted) for rule in rules)

    @property
    def wanted_secrets(self) -> tuple[Secret, ...]:
        """All secrets of the operator's that it uses, and where they go."""
        auth, (host, port) = self.auth, self.address
        if isinstance(auth, SecretHeader):
            where = host if port == 443 else f"{host}:{port}"
            # Not validated: the host may be an address, which the network has to allow.
            return (Secret.model_construct(name=auth.secret, hosts=(where,), paths=("/**",)),)
        if isinstance(auth, OAuth | ClientCredentials) and auth.client_secret:
            return (Secret(name=auth.client_secret, expose="env"),)
        return self.secrets

    @property
    def secret_names(self) -> tuple[str, ...]:
        return tuple(secret.name for secret in self.wanted_secrets)

    @property
    def templates(self) -> tuple[tuple[str, str], ...]:
        """Texts that variables of the orchestrator are filled into, and what each of them is."""
        words = [(f"an argument of the server {self.name}", text) for text in self.command]
        return (*words, *((f"{key} of the server {self.name}", t) for key, t in self.env.items()))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
