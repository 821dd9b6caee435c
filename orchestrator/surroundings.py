"""What a program inside has to know of its gateway: variables for programs, words for the agent.

Pure. Programs obey proxy variables, each runtime its own; git obeys `insteadOf`; the agent is told
what it can reach, since all that curl says of a refusal is "CONNECT tunnel failed, response 403".
"""

from __future__ import annotations

from orchestrator.domain.agent import AgentSpec, Network, Secret
from orchestrator.domain.container import AGENT_FILES, EGRESS_URL, HOME, ROUTES_URL, File
from orchestrator.domain.tool_server import ToolServer

CA_FILE = f"{HOME}/.orchestrator/ca.pem"

CA_VARIABLES = (
    *("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT"),
)
"""How programs are told of certificates; no two agree."""

NO_PROXY = "127.0.0.1,localhost,::1"


def variables(agent: AgentSpec | ToolServer, ca_certificates: str = "") -> dict[str, str]:
    """Variables that lead programs inside to the gateway."""
    found = dict(git_config(agent.secrets))
    if agent.network.mode == "none":
        return found
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        found |= {name: EGRESS_URL, name.lower(): EGRESS_URL}
    found |= {"NO_PROXY": NO_PROXY, "no_proxy": NO_PROXY, "NODE_USE_ENV_PROXY": "1"}
    if ca_certificates:
        found |= dict.fromkeys(CA_VARIABLES, CA_FILE)
    return found


def files(agent: AgentSpec | ToolServer, ca_certificates: str = "") -> tuple[File, ...]:
    """The certificates that this machine trusts besides the usual ones."""
    if agent.network.mode == "none" or not ca_certificates:
        return ()
    return (File(path=CA_FILE, content=ca_certificates.encode(), mode=0o444),)


def git_config(secrets: tuple[Secret, ...]) -> dict[str, str]:
    """Settings of git, as variables: hosts that a secret is for are reached through the gateway."""
    hosts = dict.fromkeys(host for secret in secrets for host in secret.hosts)
    pairs = [("safe.directory", "*")]  # what is here was put here by us, whoever owns it
    pairs += [(f"url.{ROUTES_URL}/{host}/.insteadOf", f"https://{host}/") for host in hosts]
    found = {"GIT_CONFIG_COUNT": str(len(pairs)), "GIT_TERMINAL_PROMPT": "0"}
    for number, (key, value) in enumerate(pairs):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


def briefing(agent: AgentSpec) -> str:
    """What the agent is told, after its prompt; "" if there is nothing that it can reach."""
    parts = (_files(agent.files), _network(agent.network), _routes(agent.secrets))
    return "\n\n".join(filter(None, parts))


def _files(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    return f"Files: {AGENT_FILES} holds files that come with you, to read only: {', '.join(names)}."


def _network(network: Network) -> str:
    if network.mode == "none":
        return ""
    hosts = ", ".join((*network.allow, *network.allow_private))
    reach = f"only these hosts: {hosts}" if network.mode == "allow" else "public hosts"
    if network.deny:
        reach += f"; never {', '.join(network.deny)}"
    return (
        "Network: this container has no network of its own. HTTP and HTTPS go through a proxy that "
        f"is set in the environment, and reach {reach}. Anything else is refused with status 403 "
        '(curl says "CONNECT tunnel failed, response 403"). That is a rule, not a fault: do not '
        "try again or try to get around it; use what is allowed, or say what was out of reach. "
        "Names do not resolve here, and nothing but HTTP and HTTPS works."
    )


def _routes(secrets: tuple[Secret, ...]) -> str:
    lines = [
        f"- https://{host}, {', '.join(secret.methods)} of {', '.join(secret.paths)}: "
        f"{ROUTES_URL}/{host}/…"
        for secret in secrets
        for host in secret.hosts
    ]
    if not lines:
        return ""
    return (
        "Credentials: for these hosts they are added outside this container, so you need none. Use "
        "the address on the right in the place of the one on the left (git does so by itself):\n"
        + "\n".join(lines)
    )
