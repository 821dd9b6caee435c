"""What the engine asks of an agent CLI. Each CLI keeps it in a package beside this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec, McpServer
from orchestrator.domain.container import File, Launch
from orchestrator.runners.signs import PermissionAsked, Sign

PARENT = "parent"
"""The name of the MCP server through which an agent reaches its caller."""

WireFormat = Literal["anthropic", "responses", "chat", "gemini"]
"""What a CLI speaks to the model gateway: Anthropic Messages, OpenAI Responses, OpenAI Chat
Completions, Gemini generateContent."""

MAX_UNANSWERED = 64
"""Of a CLI's questions that wait at a time, and of replies that wait to be written: any process in
the container can make them up."""

RuleVerdict = Literal["allow", "ask", "deny"]
"""About a call that a CLI asks about: it runs, the caller is asked, it is refused."""


class RuleDecision(Frozen):
    """What agent.md's rules say of one call."""

    verdict: RuleVerdict
    why: str = ""
    """For the agent, and for those who look at what it did."""


class Abilities(Frozen):
    """What a CLI can do besides one turn after another. The engine asks this, never a name."""

    rehearses: bool = False
    """It can do a turn that comes to nothing, after which its first real one is quick."""
    decides_by_itself: bool = False
    """It is told agent.md's rules and asks only about what they say to ask about. Otherwise it asks
    about every call, and the engine decides."""
    asks_about_all: bool = True
    """If it does not decide by itself: about every call. Otherwise not about commands that it takes
    for harmless, such as `echo` and `ls`."""
    knows_aliases: bool = False
    """It makes a model's name of "sonnet" and the like. Otherwise it takes full names."""
    counts_turns: bool = False
    """It ends by itself after max_turns. Otherwise the gateway ends it."""
    edits_input: bool = False
    """A call can be allowed with another input than the one that was asked about."""
    quotes_api: bool = False
    """What it says of a failure of the model API is what that said, not where it found it."""
    tells_reason: bool = True
    """The agent reads why a call of its own was refused. Otherwise only that it was."""
    steers: bool = True
    """What it is told in a turn is read between two steps of that. Otherwise when it is over."""
    tells_servers: bool = True
    """It tells which MCP servers have not started."""
    tells_cut: bool = True
    """Its verdict tells an answer that broke off, was refused or was cut at its length from a whole
    one. Otherwise what the gateway has seen decides."""


class ToolNames(Frozen):
    """The tools of a CLI, in the words of agent.md's rules."""

    version: str
    """Of the CLI, as messages name it: "claude 2.1.325"."""
    built_in: frozenset[str]
    other_names: dict[str, str] = {}
    """Names that rules may use as well."""
    former: dict[str, str] = {}
    """Names that rules have elsewhere -> what to do here."""


class LaunchTerms(Frozen):
    """What a CLI is launched with besides what its agent says."""

    base_url: str
    """Where the model gateway is, for all wire formats."""
    token: str
    """What the gateway knows the container by; the CLI takes it for its API key."""
    env: dict[str, str] = {}
    """The agent's variables, filled in. One of the CLI's own is refused, not overwritten."""
    mcp_servers: tuple[McpServer, ...] = ()
    """The agent's servers inside, filled in."""
    wire_format: WireFormat = "anthropic"
    """What to speak to it: the one of the CLI's own that the model can be had by."""
    cwd: str
    conversation: str = ""
    """The id (a UUID) of the conversation to keep; without one it is not written down. A CLI that
    gives ids by itself tells its own in `Listening`, and gets that one to resume it."""
    resume: bool = False
    """Take that conversation up again."""
    memory: str = ""
    """Follows the agent's prompt."""
    surroundings: dict[str, str] = {}
    """Variables of the orchestrator's own."""
    files: tuple[File, ...] = ()
    """Files of the orchestrator's own."""
    more_folders: tuple[str, ...] = ()
    """To be read besides `cwd`."""
    parent_url: str | None = None
    """Where the agent finds tools to ask its caller (MCP over HTTP, the server PARENT)."""
    tool_urls: dict[str, str] = {}
    """Where it finds servers outside of its container, by name (MCP over HTTP)."""
    defer_tools: bool = False
    """The model looks up those of their tools that it wants."""


class Dialogue(Protocol):
    """One process of a CLI: what to write to it, and what the bytes mean that it writes.

    It does no I/O. The engine writes what a method returns, whole, before what the next one
    returns; b"" is nothing to write. The CLI's bytes are a stranger's: none of them is an error.
    """

    def begin(self) -> bytes:
        """The first thing to write; the sign Listening follows when the CLI can take messages."""
        ...

    def rehearse(self) -> bytes:
        """A turn that comes to nothing, for a CLI that has that ability."""
        ...

    def say(self, text: str, message_id: str = "") -> bytes:
        """A message: it begins a turn, or is read between two steps of the one under way.

        It may be the first thing to write: a CLI that has to be begun is begun with it.
        With an id, the sign TakenUp tells when the CLI has taken it up, if it tells that at all.
        """
        ...

    def interrupt(self) -> bytes:
        """Stop the turn under way, which then ends as interrupted; the CLI stays usable."""
        ...

    def allow(self, asked: PermissionAsked, tool_input: Mapping[str, object]) -> bytes:
        """Let a call run with this input."""
        ...

    def deny(self, asked: PermissionAsked, message: str) -> bytes:
        """Refuse a call; the agent reads the message, if the CLI can pass it on."""
        ...

    def hear(self, data: bytes) -> list[Sign]:
        """What these bytes mean, together with those before them."""
        ...

    def hear_end(self) -> list[Sign]:
        """What is left to understand once no more bytes come."""
        ...

    def replies(self) -> bytes:
        """What the CLI has to be answered by itself after what was heard, without the engine."""
        ...


class Runner(Protocol):
    """An agent CLI."""

    @property
    def name(self) -> str:
        """As agent.md has it under `runner`."""
        ...

    @property
    def abilities(self) -> Abilities: ...

    @property
    def wire_formats(self) -> tuple[WireFormat, ...]:
        """What it can speak to the gateway, the best first."""
        ...

    @property
    def tools(self) -> ToolNames: ...

    @property
    def default_model(self) -> str:
        """For an agent that names none."""
        ...

    def launch(self, agent: AgentSpec, terms: LaunchTerms) -> Launch:
        """The CLI, waiting to be spoken to on stdin until that is closed. AgentInvalid if it cannot
        be launched so. Nothing of the workspace, or of a HOME that was kept, may act on it.
        """
        ...

    def is_own_variable(self, name: str, own: Mapping[str, str]) -> bool:
        """Whether agent.md cannot set a variable: it is the CLI's, or one of these besides."""
        ...

    def dialogue(self, launch: Launch) -> Dialogue:
        """For one process of this launch, from its start."""
        ...

    def decide(self, agent: AgentSpec, asked: PermissionAsked) -> RuleDecision:
        """What agent.md says about a call that the CLI asks about. Any process in the container can
        ask in its place.
        """
        ...

    def is_offered(self, agent: AgentSpec, tool: str) -> bool:
        """Whether the model is to know of a tool that the CLI sends it, by its name there."""
        ...

    def history_file(self, conversation: str, cwd: str) -> str | None:
        """Where the CLI keeps a conversation that it can take up again; None if only the CLI can
        tell whether it can (`CannotBegin`).
        """
        ...
