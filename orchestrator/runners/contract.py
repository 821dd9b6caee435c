"""What the engine asks of an agent CLI. Each CLI keeps it in a package beside this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec
from orchestrator.runners.signs import PermissionAsked, Sign

PARENT = "parent"
"""The name of the MCP server through which an agent reaches its caller."""


class Abilities(Frozen):
    """What a CLI can do besides one turn after another. The engine asks this, never a name."""

    rehearses: bool = False
    """It can do a turn that comes to nothing, after which its first real one is quick."""


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

    def dialogue(self) -> Dialogue:
        """For one process, from its start."""
        ...

    def is_asked_about(
        self, asked: PermissionAsked, allow_rules: Sequence[str], ask_rules: Sequence[str]
    ) -> bool:
        """Whether the author said to ask about this call; if not, it is refused."""
        ...

    def is_offered(self, agent: AgentSpec, tool: str) -> bool:
        """Whether the model is to know of a tool that the CLI sends it, by its name there."""
        ...

    def server_log(self, server: str) -> str:
        """Where inside the beginning of what an MCP server of the agent's said on stderr is."""
        ...

    def history_file(self, conversation: str, cwd: str) -> str:
        """Where the CLI keeps a conversation that it can take up again."""
        ...
