"""Hosts of an agent that it can never reach, or only under conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.catalog import Remark
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.hosts import HostRule, host_rule
from orchestrator.gateway.egress.rules import INSIDE_NAMES
from orchestrator.plain_yaml import Loc

THIS_MACHINE = "localhost"


def network_remarks(agent: AgentSpec) -> Iterator[Remark]:
    """Of what is allowed: what is private and not said to be, and what is denied as well."""
    private = [host_rule(text) for text in agent.network.allow_private]
    denied = [host_rule(text) for text in agent.network.deny]
    for at, text in enumerate(agent.network.allow):
        yield from _host_remarks(host_rule(text), ("network", "allow", at), private, denied)
    for number, secret in enumerate(agent.secrets):
        for at, text in enumerate(secret.hosts):
            loc: Loc = ("secrets", number, "hosts", at)
            yield from _host_remarks(host_rule(text), loc, private, denied)


def _host_remarks(
    rule: HostRule, loc: Loc, private: Sequence[HostRule], denied: Sequence[HostRule]
) -> Iterator[Remark]:
    for closed in denied:
        if _covers(closed, rule) and closed.port in (None, rule.port):
            message = f"'{rule.text}' is denied by '{closed.text}' under network.deny; remove one"
            yield Remark(loc, message, stops=False)
            return
    if not _is_inside(rule.name) or any(_covers(each, rule) for each in private):
        return
    this_machine = rule.name == THIS_MACHINE or rule.name.endswith(f".{THIS_MACHINE}")
    if any(each.network is not None for each in private) and not this_machine:
        return  # a range, in which its address may be
    where = "this machine" if this_machine else "a name of a private network"
    message = (
        f"'{rule.text}' is {where}, and private addresses are closed; write "
        f'`allow_private: ["{rule.text}"]` under network'
    )
    # An operator's proxy may know the name, and where it leads to is its own affair.
    yield Remark(loc, message, stops=this_machine)


def _is_inside(name: str) -> bool:
    return "." not in name or any(f".{name}".endswith(f".{end}") for end in INSIDE_NAMES)


def _covers(wide: HostRule, narrow: HostRule) -> bool:
    """Whether a rule means all that another one does; ports aside."""
    if wide.network is not None:
        return False
    if not narrow.below:
        return wide.matches(narrow.name)
    return wide.below and (wide.name == narrow.name or wide.matches(narrow.name))
