"""What the launches of all CLIs have in common. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from orchestrator.domain.agent import AgentSpec, McpServer
from orchestrator.domain.container import HOME
from orchestrator.errors import AgentInvalid
from orchestrator.runners.contract import PARENT, LaunchTerms
from orchestrator.runners.rule_names import spelled

AGENT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OWN_FOLDER = f"{HOME}/.orchestrator"
"""Where files lie that a CLI is launched with."""

ANSWER_SECONDS = 24 * 3600
"""How long a CLI waits for the answer of a server outside; ask.answer_seconds ends it sooner."""

PLAIN_ENVIRONMENT = {
    "PATH": AGENT_PATH,
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",  # noqa: S108 inside the container
}
"""What every CLI has of its variables."""

WITH_LOG = (
    'exec -- "$@" 2> >(n=0; while ((n++ < 60)) && { IFS= read -r -n 300 line || [ -n "$line" ]; }; '
    'do printf "%s\\n" "$line"; done > "$0"; exec cat > /dev/null)'
)
"""For bash: become a program, the beginning of whose stderr goes to a file, line by line, so that
it is there when the program hangs. `head` would keep it to itself until then."""


DOLLAR = "ORCHESTRATOR_DOLLAR"
"""A variable that is a "$", for a CLI that fills variables in where the author wants none."""


def with_dollars(text: str) -> str:
    """A text that is the one given, once variables have been filled in; DOLLAR has to be set."""
    return text.replace("$", f"${{{DOLLAR}}}")


def server_log(server: str) -> str:
    """Where the beginning of what an MCP server says on stderr is: of one that does not start, a
    CLI tells only that it failed.
    """
    return f"{OWN_FOLDER}/{server}.stderr"


def server_command(server: McpServer) -> tuple[str, ...]:
    """A server inside as a CLI starts it, with its log."""
    return ("/bin/bash", "-c", WITH_LOG, server_log(server.name), server.command, *server.args)


def server_urls(agent: AgentSpec, terms: LaunchTerms) -> dict[str, str]:
    """The servers outside, and the one that leads to the caller. AgentInvalid if rules could not
    name the tools of each server.
    """
    inside = [server.name for server in terms.mcp_servers]
    urls = dict(terms.tool_urls)
    if terms.parent_url is not None:
        if PARENT in inside or PARENT in urls:
            raise AgentInvalid(
                f"agent {agent.name!r} names an MCP server {PARENT!r}, as the orchestrator's own "
                "is called; give it another name"
            )
        urls[PARENT] = terms.parent_url
    told_apart(agent, (*inside, *urls), "a rule", "__")
    return urls


def told_apart(agent: AgentSpec, servers: Iterable[str], who: str, between: str) -> None:
    """AgentInvalid if a tool of two MCP servers can have one name, where `between` stands between
    the two parts of it: "a" and "a_b" both may have the tool a_b_c. Nothing tells then by which
    rules it has to be decided.
    """
    for one, other in itertools.permutations(servers, 2):
        if spelled(one) == spelled(other) or spelled(other).startswith(spelled(one) + between):
            raise AgentInvalid(
                f"agent {agent.name!r}: {who} cannot tell the tools of its MCP server {one!r} "
                f"from those of {other!r}, by their names; rename one"
            )


def prompt_text(agent: AgentSpec, terms: LaunchTerms) -> str:
    """What the agent is told before anything else."""
    return "\n\n".join(part for part in (agent.prompt.strip(), terms.memory.strip()) if part)


def variables(
    agent: AgentSpec,
    env: Mapping[str, str],
    own: Mapping[str, str],
    is_own: Callable[[str, Mapping[str, str]], bool],
) -> dict[str, str]:
    """The agent's variables and the orchestrator's; AgentInvalid if the agent sets one of ours."""
    for name, value in env.items():
        if is_own(name, own):
            raise AgentInvalid(
                f"agent {agent.name!r} sets {name} in its env, which the orchestrator sets itself; "
                "remove it"
            )
        utf8(agent, f"the variable {name}", name + value)
    return {**env, **own}


def utf8(agent: AgentSpec, what: str, text: str) -> bytes:
    """Text that an argument, a variable or a file can carry; AgentInvalid if it cannot."""
    if "\0" in text:
        raise AgentInvalid(f"agent {agent.name!r}: {what} holds a NUL character; remove it")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise AgentInvalid(
            f"agent {agent.name!r}: {what} holds half a character (a lone surrogate); remove it"
        ) from None
