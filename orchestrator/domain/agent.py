"""AgentSpec: what agent.md says. The safe value is the default; its author opens things up."""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator

from orchestrator.domain import Frozen
from orchestrator.domain.container import MIB, SHM_BYTES, leaves_room
from orchestrator.domain.exchange import ApprovalBy
from orchestrator.domain.hosts import host_rule
from orchestrator.domain.names import Name
from orchestrator.domain.tool_use import ServerUse, Verdict
from orchestrator.domain.variables import Template

RunnerName = Literal["claude", "codex", "copilot", "gemini", "opencode"]
"""An agent CLI."""

DEFAULT_RUNNER: RunnerName = "claude"

RULE = r"[A-Za-z][A-Za-z0-9_*-]*(\([^()]+\))?"


def _like(pattern: str) -> WithJsonSchema:
    """For editors: how a text looks that a check of ours accepts, more or less."""
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern})$"})


def _check_rule(text: str) -> str:
    if not re.fullmatch(RULE, text):
        raise ValueError(
            "must be the name of a tool, then perhaps a pattern without parentheses in it, "
            'such as "Read", "Bash(curl:*)" or "mcp__github"'
        )
    return text


def _check_pattern(text: str) -> str:
    return text if text == "*" else _check_rule(text)


def _each_once(names: tuple[RunnerName, ...]) -> tuple[RunnerName, ...]:
    if len(set(names)) < len(names):
        raise ValueError("names a runner more than once")
    return names


VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def _check_variable_name(text: str) -> str:
    if not re.fullmatch(VARIABLE_NAME, text):
        raise ValueError("is no name of a variable; it takes letters, digits and _")
    return text


def _check_host(text: str) -> str:
    host_rule(text)
    return text


def _check_allowed(text: str) -> str:
    if host_rule(text).network is not None:
        raise ValueError("is an address, and names are wanted here; write it under allow_private")
    return text


def _check_secrets_host(text: str) -> str:
    if "*" in text:
        raise ValueError("has a wildcard, which would send the secret to strangers; write it out")
    if host_rule(text).network is not None:
        raise ValueError("is an address; name the host, whose certificate says that it is the one")
    return text


def _check_path(text: str) -> str:
    segments = text.split("/")
    if not re.fullmatch(r"(/[A-Za-z0-9._~!$&'()+,;=:@*-]+)+/?|/", text):
        raise ValueError('must be a path such as "/repos/acme/widget" or "/acme/widget.git/**"')
    if any(segment in (".", "..") for segment in segments) or "**" in segments[:-1]:
        raise ValueError('may hold no "." or ".." segment, and "**" only as its last one')
    if any("*" in segment and segment not in ("*", "**") for segment in segments):
        raise ValueError('has a "*" inside a segment; it stands for a whole one')
    return text


def _check_file(text: str) -> str:
    names = text.rstrip("/").split("/")
    if any(name in ("", ".", "..") for name in names) or not text.isprintable() or "\\" in text:
        raise ValueError(
            "must be a file or a directory in the agent's folder, such as "
            '"server.py" or "guides/style.md"'
        )
    return text


def _writes(fields: dict[str, Any]) -> Workspace:
    """Agents that edit get a copy: what they change is handed back, and nothing is lost."""
    permissions = fields.get("permissions") or Permissions()
    tools = {rule.partition("(")[0] for rule in permissions.allow}
    return Workspace(mode="copy" if tools & EDITING_TOOLS else "ro")


EDITING_TOOLS = frozenset(("Write", "Edit", "MultiEdit", "NotebookEdit"))

Rule = Annotated[str, AfterValidator(_check_rule), _like(RULE)]
"""A tool, and perhaps what of it, in the words of the agent's CLI."""

Pattern = Annotated[str, AfterValidator(_check_pattern), _like(rf"\*|{RULE}")]
"""A rule, or "*" for every tool."""

Host = Annotated[str, AfterValidator(_check_host), _like(r"[^\s/@]+(/[0-9]{1,3}(:[0-9]{1,5})?)?")]
"""A name, "*." and a name, an address or a range of them; then perhaps a port."""

HOST_NAME = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?(:[0-9]{1,5})?"

AllowedHost = Annotated[str, AfterValidator(_check_allowed), _like(rf"(\*\.)?{HOST_NAME}")]
"""The same without addresses, which are closed unless they are named as private."""

SecretsHost = Annotated[str, AfterValidator(_check_secrets_host), _like(HOST_NAME)]
"""A name, then perhaps a port."""

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

PathPattern = Annotated[str, AfterValidator(_check_path), _like(r"/\S*")]
"""A path, whole segments: "*" is any one of them, and "/**" at the end all that follow."""

VariableName = Annotated[str, AfterValidator(_check_variable_name), _like(VARIABLE_NAME)]

AgentFileName = Annotated[str, AfterValidator(_check_file), _like(r"[^/\\][^\\]*")]
"""A path in the agent's folder."""

Env = dict[VariableName, Template]


OWN_HEADERS = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "te", "upgrade", "trailer")
)
"""What no secret can be."""

NO_ONES_HEADERS = OWN_HEADERS.union(
    ("authorization", "cookie", "accept-encoding", "range", "if-range", "expect"),
    ("forwarded", "via", "x-http-method-override", "x-http-method", "x-method-override"),
    ("x-original-url", "x-rewrite-url", "x-original-method", "x-original-uri", "x-original-host"),
)
"""What a container cannot add to a request with a secret, whatever agent.md says: who asks, or for
another path; or an answer that could not be searched for the secret."""


def _check_passed_header(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,63}", text):
        raise ValueError('must be the name of a header, such as "Notion-Version"')
    if text.lower() in NO_ONES_HEADERS or text.lower().startswith(("proxy-", "x-forwarded-")):
        raise ValueError("is a header that does not pass: it could make the request another one")
    return text


class Permissions(Frozen):
    """Which tools the agent may use, in the words of its CLI. None, unless allowed."""

    allow: tuple[Rule, ...] = ()
    """Rules such as "Bash", "Bash(curl:*)", "Read", "mcp__github"."""
    deny: tuple[Rule, ...] = ()
    """Rules that win over allow."""


class McpServer(Frozen):
    """An MCP server that runs in the agent's container and is offered to it."""

    name: Name
    """Its tools are called mcp__NAME__TOOL."""
    command: Annotated[str, StringConstraints(min_length=1)]
    """A program in the agent's image."""
    args: tuple[Template, ...] = ()
    """Its arguments; variables as in env."""
    env: Env = {}
    """${VAR} and ${VAR:-default} are taken from the orchestrator's environment."""


class Network(Frozen):
    """Where the agent may talk to. Nothing, unless the agent's author wrote otherwise."""

    mode: Literal["none", "allow", "open"] = "none"
    """Nothing, what is allowed, or every public host."""
    allow: tuple[AllowedHost, ...] = ()
    """Host patterns such as "api.github.com", "*.example.org", "example.org:8443"."""
    allow_private: tuple[Host, ...] = ()
    """Hosts that may have a private address: this machine's network is closed otherwise."""
    deny: tuple[Host, ...] = ()
    """Host patterns that win over the others."""
    max_connections: Annotated[int, Field(ge=1, le=1024)] = 64
    """At once."""
    max_mb: Annotated[int, Field(ge=1, le=1024 * 1024)] = 1024
    """What a run may send and receive, in MiB."""

    @model_validator(mode="after")
    def _means_one_thing(self) -> Self:
        if self.mode == "none" and (self.allow or self.allow_private or self.deny):
            raise ValueError("mode is none, so no host can be named; leave mode out")
        if self.mode == "allow" and not (self.allow or self.allow_private):
            raise ValueError("allows nothing; name hosts in allow, or write `network: none`")
        if self.mode == "open" and self.allow:
            raise ValueError("mode is open, which allows every public host; remove allow")
        return self


class Secret(Frozen):
    """Something secret that the agent needs: what it is used for, not where it is kept.

    With hosts, it stays outside: requests to them go through the gateway, which adds it. Exposed,
    it enters the container, where the agent can read it.
    """

    name: Name
    """What the operator keeps it under."""
    hosts: tuple[SecretsHost, ...] = ()
    """Hosts it is for, without wildcards; reached over HTTPS, on port 443 unless written."""
    methods: tuple[Method, ...] = ("GET", "HEAD")
    """What may be asked for with it."""
    paths: tuple[PathPattern, ...] = ()
    """What of the hosts: "/repos/acme/widget", "/repos/acme/*/pulls", "/acme/widget.git/**"."""
    scheme: Literal["bearer", "basic", "plain"] = "bearer"
    """How the header holds it: "Bearer SECRET", Basic with the username, or alone."""
    header: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")] = (
        "Authorization"
    )
    username: Annotated[str, StringConstraints(pattern=r"^[\x21-\x39\x3b-\x7e]{1,64}$")] = (
        "x-access-token"
    )
    """Of Basic authentication, as git uses it."""
    headers: tuple[Annotated[str, AfterValidator(_check_passed_header)], ...] = ()
    """Headers of the agent's that pass besides the usual ones, such as "Notion-Version"."""
    expose: Literal["env"] | None = None
    """`env`: let the value itself into the container, as an environment variable."""
    variable: VariableName | None = None
    """The name of that variable; without it, the secret's name in capitals."""

    @model_validator(mode="after")
    def _is_used_in_one_way(self) -> Self:
        if self.expose is None and not self.hosts:
            raise ValueError(
                "hosts is missing: name the hosts that it is for, or write `expose: env` to let "
                "the agent have it"
            )
        if self.expose is not None and (self.hosts or self.paths):
            raise ValueError(
                "expose lets the agent have it, so hosts and paths limit nothing; remove them"
            )
        if self.hosts and not self.paths:
            raise ValueError('paths is missing: say what of the hosts, such as "/repos/acme/**"')
        if self.variable is not None and self.expose is None:
            raise ValueError("variable needs `expose: env`; otherwise no variable is set")
        if self.header.lower() in OWN_HEADERS:
            raise ValueError(
                f"header is {self.header}, which the orchestrator sets itself; rename it"
            )
        return self

    @property
    def variable_name(self) -> str:
        """What it is called inside, if it is exposed."""
        return self.variable or re.sub(r"[^A-Z0-9_]", "_", self.name.upper())


class Workspace(Frozen):
    """How a directory that the caller names is shown to the agent, at /workspace."""

    mode: Literal["none", "ro", "rw", "copy"] = "ro"
    """Not at all, to read, to write, or as a copy whose changes are handed back."""
    gitignore: bool = False
    """Of a copy: leave out what .gitignore files name."""


class Asking(Frozen):
    """Whom the agent may ask while it works, and how long it waits for an answer."""

    whom: Literal["nobody", "parent", "user"] = "nobody"
    """The caller, or the person behind it, if the caller's client can ask him."""
    answer_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600.0
    """A question without an answer for so long gets the agent's default answer, or is told so."""
    approval_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600.0
    """A tool call without a decision for so long is rejected."""

    @property
    def patience_seconds(self) -> float:
        """How long a run may wait for others in all, beside the time it has for itself."""
        return 10 * max(self.answer_seconds, self.approval_seconds)


class Session(Frozen):
    """Whether a container and its conversation are kept between calls, and for how long."""

    keep: bool = False
    idle_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 300.0
    """Without a call for so long, the CLI ends; the conversation can go on later."""
    stop_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 1800.0
    """Without a call for so long, the container stops; its files stay."""
    expire_seconds: Annotated[float, Field(gt=0, le=3650 * 86400)] = 30 * 86400.0
    """Without a call for so long, it is removed, with its files and its conversation."""

    @model_validator(mode="after")
    def _one_after_the_other(self) -> Self:
        times = ("idle_seconds", "stop_seconds", "expire_seconds")
        for sooner, later in pairwise(times):
            first, then = getattr(self, sooner), getattr(self, later)
            if then < first:
                raise ValueError(
                    f"{later} is {then:g}, less than {sooner}, which is {first:g}; idle comes "
                    f"first, then stop, then expire: raise {later}, or lower {sooner}"
                )
        return self


class Resources(Frozen):
    """What a run may use up."""

    memory_mb: Annotated[int, Field(ge=256, le=1024 * 1024)] = 2048
    """Memory and swap together, in MiB; the CLI alone wants some 300."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    """Processors."""
    pids: Annotated[int, Field(ge=32, le=65536)] = 256
    """Processes and threads."""
    scratch_mb: Annotated[int, Field(ge=16, le=1024 * 1024)] = 256
    """The size of /tmp, and of the home directory that goes with its container. It counts as
    memory."""
    open_files: Annotated[int, Field(ge=256, le=1048576)] = 4096
    """In each process."""
    disk_mb: Annotated[int, Field(ge=16, le=1024 * 1024)] = 2048
    """What a copied workspace may grow to, and a session's files, in MiB."""
    output_mb: Annotated[int, Field(ge=1, le=64 * 1024)] = 256
    """What the CLI may write out in a run, in MiB."""
    events_per_second: Annotated[int, Field(ge=1, le=10_000)] = 100
    """How many events are kept; of a flood, only that there was one."""

    @model_validator(mode="after")
    def _scratch_leaves_room(self) -> Self:
        scratch = 2 * self.scratch_bytes + self.shm_bytes
        if not leaves_room(scratch, self.memory_bytes):
            raise ValueError(
                f"scratch_mb is {self.scratch_mb}, for /tmp and for the home directory, which is "
                f"too much of a memory_mb of {self.memory_mb}: together with shared memory they "
                f"take {scratch // MIB}, and may take three quarters; lower scratch_mb or raise "
                "memory_mb"
            )
        return self

    @property
    def memory_bytes(self) -> int:
        return self.memory_mb * MIB

    @property
    def scratch_bytes(self) -> int:
        return self.scratch_mb * MIB

    @property
    def shm_bytes(self) -> int:
        """Shared memory between processes; less than usual where scratch space is."""
        return min(SHM_BYTES, self.scratch_bytes)

    @property
    def disk_bytes(self) -> int:
        return self.disk_mb * MIB


def _format_for_schema(fields: dict[str, Any]) -> Literal["text", "json"]:
    return "text" if fields.get("output_schema") is None else "json"


def _approvers(fields: dict[str, Any]) -> ApprovalBy:
    """Who is asked is who approves, unless the author says otherwise."""
    asking = fields.get("ask") or Asking()
    return "user" if asking.whom == "user" else "parent"


class AgentSpec(Frozen):
    """One agent: its frontmatter, and its system prompt."""

    name: Name
    """What callers call it by; the same as its folder."""
    description: Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
    """One or two sentences for the caller that chooses an agent."""
    prompt: str = ""
    """The system prompt: the text below the frontmatter."""
    session: Session = Session()
    """Keep the container and the conversation between calls."""
    memory: Literal["none", "ro", "rw"] = "ro"
    """What a session agent may do with memory.md beside its agent.md: nothing, read, propose."""
    warm: Annotated[int, Field(ge=0, le=64)] = 0
    """How many containers wait, with the CLI started, so that a call is answered at once."""
    allowed_callers: tuple[Name, ...] = ("main",)
    """Who may run it."""
    timeout_ms: Annotated[int, Field(ge=1000, le=24 * 3600 * 1000)] = 120_000
    """From start to answer; before the end the agent is told to finish."""
    permissions: Permissions = Permissions()
    """Which tools it may use: none, unless allowed."""
    mcp_servers: tuple[McpServer, ...] = ()
    """MCP servers that run beside it in its container; their tools are allowed."""
    server_uses: tuple[ServerUse, ...] = ()
    """Servers outside its container, and which tools of theirs it may call; in agent.md they are
    entries of mcp_servers that say `use: NAME`."""
    files: Annotated[tuple[AgentFileName, ...], Field(max_length=64)] = ()
    """Files and directories beside agent.md that the agent finds in /agent, to read."""
    output_schema: dict[str, object] | None = None
    """A JSON Schema that the answer must satisfy; also the name of a file beside agent.md."""
    output_format: Literal["text", "json"] = Field(default_factory=_format_for_schema)
    """What the answer must be: text, or json, which is the default with an output_schema."""
    model: Annotated[str, StringConstraints(min_length=1)] = "sonnet"
    """An alias such as "sonnet", or a model's full name."""
    image: Annotated[str, StringConstraints(min_length=1)] | None = None
    """An image built on ours; None is ours."""
    runner: Annotated[tuple[RunnerName, ...], AfterValidator(_each_once)] = ()
    """The agent CLI that does the work; several, and the next goes on where one has no credential
    or its model takes no more. None: it is chosen by the model."""
    models: dict[RunnerName, Annotated[str, StringConstraints(min_length=1)]] = {}
    """Models for runners that cannot have `model`."""
    workspace: Workspace = Field(default_factory=_writes)
    """How a directory that the caller names is shown to the agent, at /workspace."""
    ask: Asking = Asking()
    """Whom it may ask while it works."""
    approval: dict[Pattern, Verdict] = {}
    """Which allowed tools need the caller's approval: rules, or "*", and auto, ask, deny."""
    approval_by: ApprovalBy = Field(default_factory=_approvers)
    """Who may allow those: the caller, which may be a model, or only a person."""
    subagents: tuple[Name, ...] = ()
    """Agents that it may run itself."""
    network: Network = Network()
    """Where it may talk to: nowhere, unless allowed. Its model it can always reach."""
    secrets: tuple[Secret, ...] = ()
    """What secrets it needs, and for what."""
    resources: Resources = Resources()
    """What a run may use up."""
    runtime: Name | None = None
    """Another OCI runtime of the engine, such as runsc (gVisor)."""
    seccomp: Literal["strict", "engine"] = "strict"
    """Which system calls exist: ours only, or the engine's own choice."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 50
    """Answers of the model, tool calls included, before the run is ended."""
    max_budget_usd: Annotated[float, Field(gt=0)] | None = None
    """What the model may cost in one run; the request after that is refused."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often an answer that breaks the schema is sent back with what is wrong."""
    env: Env = {}
    """Variables for the agent; ${VAR} and ${VAR:-default} as for MCP servers."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.output_schema is not None and self.output_format != "json":
            raise ValueError(
                f"output_format is {self.output_format}, but an output_schema describes json; "
                "remove one of them"
            )
        names = [server.name for server in self.mcp_servers]
        names += [use.use for use in self.server_uses]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"mcp_servers has {', '.join(twice)} more than once; rename one")
        if self.memory == "rw" and not self.session.keep:
            raise ValueError("memory is rw, but only a session has a memory; add `session: true`")
        if self.warm and self.session.keep:
            raise ValueError("warm is for agents without sessions; remove warm, or session")
        if self.workspace.gitignore and self.workspace.mode != "copy":
            raise ValueError("workspace.gitignore is for copies; write `mode: copy`, or remove it")
        kept = [secret.name for secret in self.secrets]
        if len(set(kept)) < len(kept):
            raise ValueError("secrets has a name more than once; put its hosts and paths together")
        return self

    @property
    def ask_rules(self) -> tuple[Rule, ...]:
        """Tool calls that need the caller's approval."""
        return self._rules("ask")

    @property
    def deny_rules(self) -> tuple[Rule, ...]:
        """Tools that it may not use, whatever is allowed."""
        return tuple(dict.fromkeys((*self.permissions.deny, *self._rules("deny"))))

    @property
    def parent_tools(self) -> tuple[str, ...]:
        """What it finds inside to reach those outside."""
        asks = ("ask_parent", "update_status") if self.ask.whom != "nobody" else ()
        return (*asks, *(("run_subagent",) if self.subagents else ()))

    @property
    def may_wait(self) -> bool:
        """A run of it may wait for its caller, or for a subagent that does."""
        approved = any("ask" in use.approve.values() for use in self.server_uses)
        return self.ask.whom != "nobody" or approved or bool(self.ask_rules or self.subagents)

    @property
    def searches_web(self) -> bool:
        """It may have the model API search, which sends out what is searched for."""
        return any(rule.partition("(")[0] == "WebSearch" for rule in self.permissions.allow)

    @property
    def templates(self) -> tuple[tuple[str, str], ...]:
        """Texts that variables of the orchestrator are filled into, and what each of them is."""
        found = [(f"its {key}", text) for key, text in self.env.items()]
        for server in self.mcp_servers:
            of = f"of its MCP server {server.name}"
            found += [(f"{key} {of}", text) for key, text in server.env.items()]
            found += [(f"an argument {of}", text) for text in server.args]
        return tuple(found)

    def _rules(self, verdict: str) -> tuple[Rule, ...]:
        named = [rule for rule, said in self.approval.items() if said == verdict and rule != "*"]
        if self.approval.get("*") == verdict:
            named += [rule for rule in self.permissions.allow if rule not in self.approval]
        return tuple(dict.fromkeys(named))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]


PlainWord = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class RunnerEntry(Frozen):
    """One of the runners that may be tried."""

    name: PlainWord
    priority: Annotated[int, Field(gt=0)]
    """Smaller ones are tried first."""
    models: tuple[PlainWord, ...] = ()
    """The models that it is tried for; none is all."""


class RunnerConfig(Frozen):
    """What --runner-config says."""

    runners: tuple[RunnerEntry, ...]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [entry.name for entry in self.runners]
        if not names:
            raise ValueError("runners must not be empty; leave the file out to have every runner")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"runners names {twice} twice; write one entry for it")
        return self


class RunnerWish(Frozen):
    """What the operator says about runners, for agents whose agent.md names none."""

    preferred: str = ""
    """The one to try first, if it has the agent's model; "" is none."""
    config: RunnerConfig | None = None
