"""What a container can reach, opened to one run: as its agent.md says, and on its record."""

from __future__ import annotations

from functools import partial

from orchestrator.domain.agent import AgentSpec, Network
from orchestrator.engine.live import LiveRun
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Record
from orchestrator.gateway.egress.access import EgressAccess, EgressSeen
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.egress.rules import EgressRules
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.reach import Reach
from orchestrator.gateway.secrets.routes import RouteAccess, RouteSeen


def bind(reach: Reach, prepared: Prepared, live: LiveRun, dialer: Dialer) -> None:
    """Open a container's services to one run."""
    agent, record = prepared.agent, live.record
    record.add_secrets((reach.sought,))
    reach.model.bind(
        budget_usd=live.budget_usd,
        on_request=lambda seen: _note_request(record, seen),
        others_spent=lambda: live.budget_left is not None and live.budget_left <= 0,
    )
    egress = routes = None
    if agent.network.mode != "none":
        egress = EgressAccess(agent.network, dialer, lambda seen: _note_egress(record, seen))
    if any(secret.hosts for secret in agent.secrets):
        rules = EgressRules(_route_network(agent))
        routes = RouteAccess(
            agent.secrets,
            prepared.values,
            dialer,
            lambda seen: _note_route(record, seen),
            vet=lambda host, port, addresses: rules.vet(host, port)(addresses),
            is_direct=lambda host, port: rules.name(host, port).private,
        )
    reach.bind(egress, routes)
    if agent.parent_tools:
        reach.parent.bind(live.desk.ask, partial(_note_status, record), live.delegate)


def server_tools(agent: AgentSpec) -> frozenset[str]:
    """What agent.md lets the model API do on its own side."""
    asked = any(rule.partition("(")[0] == "WebSearch" for rule in agent.permissions.allow)
    return frozenset({"web_search"}) if asked else frozenset()


def _route_network(agent: AgentSpec) -> Network:
    """Where secrets may go: to their hosts, at a private address only if agent.md says so."""
    hosts = tuple(dict.fromkeys(host for secret in agent.secrets for host in secret.hosts))
    return Network(
        mode="allow",
        allow=hosts,
        allow_private=agent.network.allow_private,
        deny=agent.network.deny,
    )


def _note_request(record: Record, seen: ModelRequestSeen) -> None:
    tokens = f"{seen.input_tokens} tokens in, {seen.output_tokens} out"
    what = seen.error_type or tokens
    record.note("model_request", f"{seen.status} {seen.model} {what}", **seen.model_dump())


def _note_status(record: Record, text: str, status: str) -> None:
    record.note("status", f"{status}: {text}" if status else text, status=status)


def _note_egress(record: Record, seen: EgressSeen) -> None:
    where = f"{seen.method} {seen.host}:{seen.port}"
    if seen.allowed:
        record.note("egress", where, **seen.model_dump(exclude={"why"}))
    else:
        record.note("egress_denied", f"{where}: {seen.why}", **seen.model_dump())


def _note_route(record: Record, seen: RouteSeen) -> None:
    where = f"{seen.method} {seen.host}{seen.path}"
    if seen.allowed:
        record.note("secret_used", f"{seen.secret} for {where}", **seen.model_dump())
    else:
        record.note("egress_denied", f"{where}: {seen.why}", **seen.model_dump())
