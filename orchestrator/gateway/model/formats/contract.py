"""What the gateway asks of a model API's format. Each format keeps it in a module beside this one.

A format is pure: it says which paths there are, what a request asks for and what of it may be sent
on, what an answer has used, and how an error looks. Tokens, budgets, credentials, limits and the
way of the bytes are the same for all of them, and are none of its business.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from orchestrator.gateway.model.given import IsOffered, every_tool
from orchestrator.gateway.model.money.metering import Reading
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.request import Asked
from orchestrator.runners.contract import WireFormat

ErrorKind = Literal["authentication", "permission", "invalid", "rate_limit", "overloaded", "api"]
"""What kind of error it is, in words that no API owns."""


class ModelCall(NamedTuple):
    """A request, as far as its path tells."""

    target: str
    """Where it goes, below the API's base URL."""
    model: str | None = None
    """Where the path names it; otherwise the body does."""
    streams: bool | None = None
    """The same."""
    is_free: bool = False
    """It only counts tokens."""


class Rules(NamedTuple):
    """What a request may use."""

    server_tools: frozenset[str] = frozenset()
    """Of the API's own tools, such as "web_search"."""
    is_offered: IsOffered = every_tool
    """Tools of the CLI's that the model is told of."""


class Looked(NamedTuple):
    """What came of looking through a request."""

    refused: str
    """What of it may not be asked for; "" if all of it may."""
    asked: Asked


class PassedHeaders(NamedTuple):
    """Headers that pass, by their whole names and by how they begin. Any other could make of a
    request another one than was looked at, or tell of the account.
    """

    names: frozenset[str]
    prefixes: tuple[str, ...] = ()

    def passes(self, name: str) -> bool:
        return name in self.names or (bool(self.prefixes) and name.startswith(self.prefixes))


class Format(Protocol):
    """The format of one API."""

    @property
    def name(self) -> WireFormat: ...

    @property
    def provider(self) -> ProviderName:
        """Whose API it is, and whose credential pays for it."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """What may be asked for, told to a container that asks for something else."""
        ...

    @property
    def sent_headers(self) -> PassedHeaders:
        """Of a request: what clients tell of themselves, and which version of the API they mean."""
        ...

    @property
    def passed_headers(self) -> PassedHeaders:
        """Of an answer."""
        ...

    def call(self, path: str, query: str) -> ModelCall | None:
        """What a POST to that path is; None if an agent may not make it."""
        ...

    def look(self, body: dict[str, object], size: int, call: ModelCall, rules: Rules) -> Looked:
        """What a body of that size asks for, and what is sent in its place."""
        ...

    def reading(self) -> Reading:
        """For one answer, from its first event on."""
        ...

    def error(self, status: int, kind: ErrorKind, message: str) -> object:
        """The body of an error."""
        ...
