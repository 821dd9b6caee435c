"""May this agent make this call of a server's tool, by which rule, and with what? Pure.

One function decides and explains. The list that a model sees, `orchestrator plan`, the audit, and
what a refused agent is told all come from it, so that they cannot say different things.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import JsonValue

from orchestrator import output
from orchestrator.domain import Frozen
from orchestrator.domain.tool_lock import JsonMap, Pinned, ToolLock, as_told, is_tool_name
from orchestrator.domain.tool_use import (
    PROMPT,
    RESOURCE,
    ServerUse,
    Verdict,
    uri_problem,
    uri_spellings,
)

RefusalCode = Literal[
    "",
    "NAME_INVALID",  # no tool of any server is called so
    "DENIED_BY_POLICY",  # agent.md denies it, or does not allow it
    "TOOL_NOT_FOUND",  # allowed, but nothing of that name was pinned
    "TOOL_CHANGED",  # the server's tool is not the one that was pinned
    "ARGUMENT_FIXED",  # agent.md has chosen the value of an argument
    "ARGUMENTS_INVALID",  # they do not fit the tool's schema
    "TOO_MANY_CALLS",  # the run has made all that it may
]

What = Literal["tool", "resource", "prompt"]

URI_CHARS = 2000
"""Of a resource: who approves of it has to see all of it."""

EVERY_TOOL = "*"

NOTHING_ALLOWS = "nothing allows it"

Violations = Callable[[object, Mapping[str, object]], tuple[str, ...]]
"""How a value breaks a JSON Schema, in sentences."""


class ToolVerdict(Frozen):
    """Whether something may be called, and why."""

    allowed: bool
    rule: str
    """What decided: a line of agent.md such as `deny: *_secret_*`, or the lock."""
    code: RefusalCode = ""
    why: str = ""
    """For the agent, when refused: what was refused, and what to do."""
    asks: bool = False
    """The call waits for somebody's approval."""
    arguments: JsonMap = {}
    """What is sent, with what agent.md has fixed."""


def decide(
    use: ServerUse,
    lock: ToolLock,
    name: str,
    arguments: Mapping[str, JsonValue] | None = None,
    *,
    what: What = "tool",
    changed: Collection[str] = (),
    calls: int = 0,
    violations: Violations = output.violations,
) -> ToolVerdict:
    """Decide about a call; without arguments, about what it could be at best.

    `changed` are tools of which the server's own definition is not the pinned one; `calls` is how
    many the run has made of this server.
    """
    subject = f"{use.use}/{name}" if what == "tool" else f"{what} {name} of {use.use}"
    if what == "tool" and not is_tool_name(name):
        shown = f"{use.use}/{ascii(name)[1:-1][:80]}"
        return _refused("name", "NAME_INVALID", f"{shown} is not the name of a tool")
    if what == "resource" and (problem := _uri_problem(lock, name)):
        shown = ascii(name)[1:-1][:80]
        why = f"{use.use} has no resource {shown}: its URI {problem}; write it as its list does"
        return _refused("name", "NAME_INVALID", why)
    rule, verdict = _by_patterns(use, what, name)
    if verdict == "deny":
        why = f"{subject} is not allowed: agent.md has {rule} for {use.use}"
        if rule == NOTHING_ALLOWS:
            why = f"{subject} is not allowed: agent.md does not have it under allow of {use.use}"
        return _refused(rule, "DENIED_BY_POLICY", f"{why}; retrying will not help")
    pinned = _pinned(lock, what, name)
    if pinned is None and what != "resource":
        return _refused("lock", "TOOL_NOT_FOUND", f"{use.use} has no {what} {name}")
    if name in changed and what == "tool":
        why = (
            f"{subject} is not what it was when it was read, and is refused until the operator has "
            f"looked: orchestrator servers diff {use.use}"
        )
        return _refused("lock", "TOOL_CHANGED", why)
    if calls >= use.max_calls:
        why = f"this run has made its {use.max_calls} calls of {use.use}; go on without it"
        return _refused("max_calls", "TOO_MANY_CALLS", why)
    asks = verdict == "ask"
    if arguments is None or pinned is None or what != "tool":
        return ToolVerdict(allowed=True, rule=rule, asks=asks, arguments=dict(arguments or {}))
    return _with_arguments(use, pinned, arguments, rule, asks, violations)


def offered(use: ServerUse, lock: ToolLock, changed: Collection[str] = ()) -> tuple[JsonMap, ...]:
    """The tools that an agent is shown, as it is shown them."""
    return tuple(
        shown(use, tool)
        for tool in lock.tools
        if decide(use, lock, tool.name, changed=changed).allowed
    )


def offered_others(use: ServerUse, lock: ToolLock, part: str) -> tuple[JsonMap, ...]:
    """The same of `resources`, `templates` and `prompts`."""
    what: What = "prompt" if part == "prompts" else "resource"
    pinned: tuple[Pinned, ...] = getattr(lock, part)
    return tuple(
        item.definition
        for item in pinned
        if decide(use, lock, item.name if what == "prompt" else item.uri, what=what).allowed
    )


def shown(use: ServerUse, tool: Pinned) -> JsonMap:
    """A tool's definition without the arguments that are not the model's to choose."""
    schema = tool.definition.get("inputSchema")
    fixed = _fixed(use, tool.name)
    definition = {key: item for key, item in tool.definition.items() if key != "outputSchema"}
    if not isinstance(schema, dict) or not fixed:
        return definition
    left: JsonMap = dict(schema)
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, dict):
        left["properties"] = {name: part for name, part in properties.items() if name not in fixed}
    if isinstance(required, list):
        left["required"] = [name for name in required if name not in fixed]
    return {**definition, "inputSchema": left}


def held_to(use: ServerUse, lock: ToolLock, deny: Sequence[str], ask: Sequence[str]) -> ServerUse:
    """A use under the agent's own rules too, such as `mcp__NAME__TOOL`, or `mcp__NAME` for all that
    a server has: no CLI has to keep them. It becomes stricter, never less so.
    """
    denied = tuple(dict.fromkeys((*use.deny, *_all(rules_about(use, lock, deny)))))
    asked = tuple(_all(rules_about(use, lock, ask)))
    approve: dict[str, Verdict] = dict(use.approve)
    for name in (tool.name for tool in lock.tools):  # by name: a pattern could undo `"*": deny`
        if any(_fits(pattern, "tool", name) for pattern in asked):
            approve |= {name: "ask"} if _by_patterns(use, "tool", name)[1] == "auto" else {}
    for pattern in asked:
        if _split(pattern)[0] != "tool" and approve.get(pattern) != "deny":
            approve[pattern] = "ask"
    return use.model_copy(update={"deny": denied, "approve": approve})


def rules_about(use: ServerUse, lock: ToolLock, rules: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Rules in the words of a CLI that mean one server -> what each is as patterns of its use."""
    found: dict[str, tuple[str, ...]] = {}
    for rule in rules:
        mcp, _, rest = rule.partition("(")[0].partition("__")
        named, _, tool = rest.partition("__")
        if mcp != "mcp" or not fnmatchcase(use.use, named):
            continue
        if tool in ("", EVERY_TOOL):
            found[rule] = (EVERY_TOOL, f"{RESOURCE}*", f"{PROMPT}*")
        else:
            told = ((each.name, as_told(each.name)) for each in lock.tools)
            found[rule] = (tool, *(name for name, model in told if fnmatchcase(model, tool)))
    return found


def use_problems(use: ServerUse, lock: ToolLock) -> Iterator[tuple[str, str]]:
    """What an author cannot have meant: the field, and a sentence that goes on after it."""
    names = {"tool": [tool.name for tool in lock.tools]}
    names["prompt"] = [prompt.name for prompt in lock.prompts]
    for field in ("allow", "deny", "approve", "arguments"):
        for pattern in getattr(use, field):
            what, glob = _split(pattern)
            if what != "resource" and not any(fnmatchcase(name, glob) for name in names[what]):
                yield field, f"{pattern} fits none of the {what}s that {use.use} was pinned with"
    for pattern, values in use.arguments.items():
        tool = lock.tool(pattern)
        fits = [each for each in lock.tools if fnmatchcase(each.name, pattern)]
        for name in values if fits and not tool else ():
            if not any(name in _properties(each) for each in fits):
                yield "arguments", f"no tool that {pattern} fits has an argument {name}"
        for name, value in values.items() if tool else ():
            schema = _properties(tool).get(name) if tool else None
            if schema is None:
                yield "arguments", f"{pattern} has no argument {name}"
            elif isinstance(schema, dict) and (wrong := output.violations(value, schema)):
                yield "arguments", f"{pattern} does not take this {name}: {wrong[0]}"


def _refused(rule: str, code: RefusalCode, why: str) -> ToolVerdict:
    return ToolVerdict(allowed=False, rule=rule, code=code, why=why)


def _uri_problem(lock: ToolLock, uri: str) -> str:
    """Why a URI is none that rules can judge. What was pinned, a person has read as it is."""
    if len(uri) > URI_CHARS:
        return f"has more than {URI_CHARS} characters"
    pinned = any(item.uri == uri for item in (*lock.resources, *lock.templates))
    return "" if pinned else uri_problem(uri)


def _by_patterns(
    use: ServerUse, what: What, name: str
) -> tuple[str, Literal["auto", "ask", "deny"]]:
    """What agent.md says of a name, and in which line."""
    for pattern in use.deny:
        if _holds_back(pattern, what, name):
            return f"deny: {pattern}", "deny"
    allowed = next((pattern for pattern in use.allow if _fits(pattern, what, name)), None)
    if allowed is None:
        return NOTHING_ALLOWS, "deny"
    named = {
        pattern: verdict
        for pattern, verdict in use.approve.items()
        if pattern != "*" and (_fits if verdict == "auto" else _holds_back)(pattern, what, name)
    }
    if not named and "*" in use.approve and _fits("*", what, name):
        named = {"*": use.approve["*"]}
    for strict in ("deny", "ask"):
        for pattern, verdict in named.items():
            if verdict == strict:
                return f"approve: {pattern} {strict}", verdict
    return f"allow: {allowed}", "auto"


def _all(found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    return (pattern for patterns in found.values() for pattern in patterns)


def _fits(pattern: str, what: What, name: str) -> bool:
    meant, glob = _split(pattern)
    return meant == what and fnmatchcase(name, glob)


def _holds_back(pattern: str, what: What, name: str) -> bool:
    """The same of a pattern that denies or asks: of a URI, every spelling of it counts."""
    if what != "resource" or _fits(pattern, what, name):
        return _fits(pattern, what, name)
    return any(_fits(pattern.casefold(), what, spelling) for spelling in uri_spellings(name))


def _split(pattern: str) -> tuple[What, str]:
    if pattern.startswith(RESOURCE):
        return "resource", pattern.removeprefix(RESOURCE)
    if pattern.startswith(PROMPT):
        return "prompt", pattern.removeprefix(PROMPT)
    return "tool", pattern


def _pinned(lock: ToolLock, what: What, name: str) -> Pinned | None:
    if what == "tool":
        return lock.tool(name)
    if what == "prompt":
        return next((prompt for prompt in lock.prompts if prompt.name == name), None)
    return None  # resources come and go; which may be read is in their URIs


def _with_arguments(
    use: ServerUse,
    tool: Pinned,
    arguments: Mapping[str, JsonValue],
    rule: str,
    asks: bool,
    violations: Violations,
) -> ToolVerdict:
    fixed, known = _fixed(use, tool.name), _properties(tool)
    alike = {_plainly(name): name for name in fixed}
    for given, value in arguments.items():
        name = given if given in fixed else alike.get(_plainly(given))
        if name is None or (given in known and given not in fixed):
            continue
        if given != name or name not in known or not _same(value, fixed[name]):
            why = f"{name} is not yours to choose for {use.use}/{tool.name}; leave it out"
            return _refused("arguments", "ARGUMENT_FIXED", why)
    sent = {**arguments, **{name: value for name, value in fixed.items() if name in known}}
    schema = tool.definition.get("inputSchema")
    errors = violations(sent, schema) if isinstance(schema, dict) else ()
    if errors:
        why = f"the arguments do not fit {use.use}/{tool.name}: {'; '.join(errors)}"
        return _refused("schema", "ARGUMENTS_INVALID", why)
    return ToolVerdict(allowed=True, rule=rule, asks=asks, arguments=sent)


def _fixed(use: ServerUse, tool: str) -> JsonMap:
    """Values that agent.md has chosen for a tool; where patterns differ, its own name counts."""
    chosen: JsonMap = {}
    for pattern, values in use.arguments.items():
        if pattern != tool and _fits(pattern, "tool", tool):
            chosen |= values
    return chosen | use.arguments.get(tool, {})


def _properties(tool: Pinned) -> JsonMap:
    schema = tool.definition.get("inputSchema")
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _plainly(argument: str) -> str:
    """What a server may take an argument's name for: some do not mind its case, or its dashes."""
    return re.sub(r"[^a-z0-9]", "", argument.casefold()) or argument


def _same(one: JsonValue, other: JsonValue) -> bool:
    """Equal as JSON: to Python, true is 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
