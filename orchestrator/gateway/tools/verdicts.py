"""What `tool_rules` says of a call, without holding up other calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial

import anyio
from pydantic import JsonValue

from orchestrator import output, tool_rules
from orchestrator.domain.tool_lock import Brokered
from orchestrator.gateway.elsewhere import run_elsewhere
from orchestrator.tool_rules import ToolVerdict, What

ARGUMENTS_SECONDS = 10.0
"""For arguments to be compared with a schema that may take long, in a process of its own."""


async def verdict_on(
    each: Brokered,
    tool: str,
    arguments: Mapping[str, JsonValue],
    changed: Collection[str] = (),
    calls: int = 0,
    *,
    what: What = "tool",
) -> ToolVerdict:
    """Decide about a call with these arguments; arguments that a schema takes long to compare with
    are compared in another process.
    """
    decide = partial(
        tool_rules.decide, each.use, each.lock, tool, what=what, changed=changed, calls=calls
    )
    best = decide()
    if not best.allowed:
        return best
    pinned = each.lock.tool(tool) if what == "tool" else None
    schema = None if pinned is None else pinned.definition.get("inputSchema")
    if not isinstance(schema, dict) or not output.may_be_slow(json.dumps(arguments), schema):
        return decide(arguments)
    return decide(arguments, violations=await _elsewhere(decide, arguments))


async def _elsewhere(
    decide: Callable[..., ToolVerdict], arguments: Mapping[str, JsonValue]
) -> tool_rules.Violations:
    """How arguments break a schema that may take long to compare, found out in a process that can
    be killed.
    """
    asked: list[tuple[object, Mapping[str, object]]] = []

    def remember(value: object, schema: Mapping[str, object]) -> tuple[str, ...]:
        asked.append((value, schema))
        return ()

    decide(arguments, violations=remember)
    found: tuple[str, ...] = ()
    try:
        for value, schema in asked:
            found = await run_elsewhere(
                output.violations, value, dict(schema), seconds=ARGUMENTS_SECONDS
            )
    except (TimeoutError, anyio.BrokenWorkerProcess):
        found = ("they take too long to be compared with its schema",)
    return lambda *_: found
