"""Commands by which codex does what other CLIs have tools for: it reads by commands alone. Pure."""

from __future__ import annotations

from orchestrator.runners.rule_names import rule_tool, whole_tools
from orchestrator.runners.rules import AgentRules
from orchestrator.runners.shell_parts import parts_of

_READERS = {
    **dict.fromkeys(("cat", "head", "tail", "wc", "nl"), frozenset(("Read",))),
    **dict.fromkeys(("grep", "rg"), frozenset(("Grep", "Read"))),
    **dict.fromkeys(("ls", "find"), frozenset(("Glob", "Read"))),
}
"""Programs that only read -> the tools, of which one has to be allowed as a whole."""

_MORE_THAN_READING = ("-exec", "-ok", "-delete", "-fprint", "-fls", "--pre", "--hostname-bin")
"""What options begin with by which they do more."""


def may_read(command: str, rules: AgentRules) -> bool:
    """Whether a command only reads, and the agent may read as it likes."""
    about = {rule_tool(rule) for rule in (*rules.deny, *rules.ask)}
    if about & {"Bash", "Read", "Grep", "Glob"}:
        return False
    parts, allowed = parts_of(command), whole_tools(rules.allow)
    if not parts:
        return False
    for part in parts:
        words = [word.text for word in part.words]
        needed = _READERS.get(words[0] if words else "", frozenset())
        # What takes the place of a word may be an option: a file can be called "-delete".
        told = part.words if words[:1] in (["find"], ["rg"]) else part.words[:1]
        plain = not part.redirections and not any(word.varies for word in told)
        reads = not any(word.startswith(_MORE_THAN_READING) for word in words)
        if not (plain and reads and needed & allowed):
            return False
    return True
