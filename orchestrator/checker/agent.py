"""All that is checked of an agent beyond the form of its file; one rule for every command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import surroundings
from orchestrator.access import misspelt
from orchestrator.catalog import Catalog, Remark
from orchestrator.catalog.problems import NEAR_ENOUGH, did_you_mean
from orchestrator.checker.network import network_remarks
from orchestrator.checker.tools import tool_remarks
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import AGENT_FILES
from orchestrator.domain.task import Task
from orchestrator.errors import AgentInvalid
from orchestrator.gateway.model.given import ALIASES
from orchestrator.gateway.model.money.prices import PRICES, is_listed, undecorated
from orchestrator.plain_yaml import Loc, shortened
from orchestrator.plan import Place, plan, shown_variables
from orchestrator.runners.choice import RunnerWay, ways_of
from orchestrator.runners.contract import PARENT
from orchestrator.runners.known import RUNNERS
from orchestrator.runners.rule_names import rule_tool
from orchestrator.tool_rules import use_problems
from orchestrator.workspace.agent_files import FilesRefused, no_secrets, read_agent_files

UNDECIDED_MODELS = ("best", "default")
"""Aliases of the CLI's that say nothing about which model it will be."""

KNOWN_MODELS = "sonnet, opus, haiku, fable, or a model's full name"

SCRIPT_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*\.\w+")
"""How a script is called that lies beside agent.md."""

NO_PROMPT = (
    "is empty: below this line, say what the agent is, how it works and what it answers; otherwise "
    "the CLI's own prompt counts"
)


@dataclass(frozen=True)
class AgentChecker:
    """CheckAgent (catalog/folder.py) with what the operator's settings say."""

    known_callers: Sequence[str] = ("main", "default")
    callers_declared: bool = False
    agents_dir: Path | None = None
    """Where files of agents are looked for."""
    keeps_from_agents: Callable[[Path], bool] = no_secrets
    """Whether a file holds what no agent may read."""
    own_image: bool = True
    """Agents that name no image run in ours, not in another one of the operator's."""

    def __call__(self, agent: AgentSpec, catalog: Catalog) -> Iterator[Remark]:
        """Everything that there is to say; of what stops it, all at once."""
        yield from _variable_remarks(agent)
        yield from _server_remarks(agent)
        yield from _use_remarks(agent, catalog)
        yield from tool_remarks(agent, own_image=self.own_image)
        yield from network_remarks(agent)
        yield from self._file_remarks(agent)
        yield from _subagent_remarks(agent, catalog)
        yield from self._caller_remarks(agent, catalog)
        yield from _model_remarks(agent)
        yield from _runner_remarks(agent)
        if agent.warm and any(secret.expose for secret in agent.secrets):
            message = (
                "does nothing: a secret enters this agent's container, so none can wait; remove "
                "it, or give the secret hosts in the place of `expose`"
            )
            yield Remark(("warm",), message, stops=False)
        if not agent.prompt:
            yield Remark(("prompt",), NO_PROMPT, stops=False)
        yield from _launch_remarks(agent)

    def _caller_remarks(self, agent: AgentSpec, catalog: Catalog) -> Iterator[Remark]:
        known = (*self.known_callers, *catalog.agents)
        for at, caller in enumerate(agent.allowed_callers):
            if wrong := misspelt(caller, known, declared=self.callers_declared):
                yield Remark(("allowed_callers", at), wrong, stops=False)
        if not agent.allowed_callers:
            message = "is empty, so no caller may run it; write `allowed_callers: [main]`"
            yield Remark(("allowed_callers",), message, stops=False)

    def _file_remarks(self, agent: AgentSpec) -> Iterator[Remark]:
        """Files that cannot be brought, and those that a server needs and that are not."""
        if self.agents_dir is None:
            return
        folder = self.agents_dir / agent.name
        try:
            files = read_agent_files(folder, agent.files, self.keeps_from_agents)
        except FilesRefused as exc:
            yield Remark(("files", exc.at), str(exc))
            return
        inside = {file.path for file in files}
        inside |= {
            f"{AGENT_FILES}/{above}" for file in agent.files for above in _with_parents(file)
        }
        for number, server in enumerate(agent.mcp_servers):
            places: list[tuple[Loc, str]] = [(("mcp_servers", number, "command"), server.command)]
            places += [
                (("mcp_servers", number, "args", at), arg) for at, arg in enumerate(server.args)
            ]
            for loc, text in places:
                if text.startswith(f"{AGENT_FILES}/") and text.rstrip("/") not in inside:
                    name = text.removeprefix(f"{AGENT_FILES}/")
                    yield Remark(loc, f"nothing is there; write `files: [{shortened(name)}]`")
                elif _is_beside(folder, text):
                    name = text.removeprefix("./")
                    message = (
                        f"'{shortened(text)}' is in the agent's folder, and the container does not "
                        f"see that; write `files: [{shortened(name)}]`, and "
                        f"{AGENT_FILES}/{shortened(name)} here"
                    )
                    yield Remark(loc, message, stops=False)


def _with_parents(path: str) -> Iterator[str]:
    names = path.rstrip("/").split("/")
    yield from ("/".join(names[:depth]) for depth in range(1, len(names) + 1))


def _is_beside(folder: Path, text: str) -> bool:
    """Whether it is the name of a file in the agent's folder."""
    name = text.removeprefix("./")
    if not name or name.startswith("-") or "\0" in name or not SCRIPT_NAME.fullmatch(name):
        return False
    try:
        return (folder / name).is_file()
    except OSError:
        return False


def _variable_remarks(agent: AgentSpec) -> Iterator[Remark]:
    around = surroundings.variables(agent)
    runners = [RUNNERS[way.runner] for way in _ways(agent)]

    def is_own_variable(name: str, own: Mapping[str, str]) -> bool:
        return any(runner.is_own_variable(name, own) for runner in runners)

    message = "is set by the orchestrator itself; remove it"
    for name in agent.env:
        if is_own_variable(name, around):
            yield Remark(("env", name), message)
    for at, secret in enumerate(agent.secrets):
        if secret.expose and is_own_variable(secret.variable_name, around):
            told = f"would be the variable {secret.variable_name}, which the orchestrator sets"
            yield Remark(("secrets", at, "variable"), f"{told} itself; write `variable: OTHER`")


def _server_remarks(agent: AgentSpec) -> Iterator[Remark]:
    for at, server in enumerate(agent.mcp_servers):
        if server.name == PARENT and agent.parent_tools:
            message = f"is {PARENT!r}, as the orchestrator's own is called; write another name"
            yield Remark(("mcp_servers", at, "name"), message)


def _use_remarks(agent: AgentSpec, catalog: Catalog) -> Iterator[Remark]:
    broken = {each.name for each in catalog.broken_servers}
    for at, use in enumerate(agent.server_uses):
        known, loc = catalog.servers.get(use.use), ("server_uses", at, "use")
        if use.use == PARENT and agent.parent_tools:
            yield Remark(loc, f"is {PARENT!r}, as the orchestrator's own is called; rename it")
        elif known is None and use.use in broken:
            yield Remark(loc, f"{use.use} cannot be used as it is; mend its server.yaml")
        elif known is None:
            guess = did_you_mean(use.use, catalog.servers, NEAR_ENOUGH)
            there = ", ".join(catalog.servers) or "none in agents/servers"
            hint = f"did you mean '{guess}'?" if guess else f"there are: {there}"
            yield Remark(loc, f"there is no server {use.use!r}; {hint}")
        elif known.lock is None:
            how = f"is not pinned, so no run can use it: orchestrator servers pin {use.use}"
            yield Remark(loc, f"{use.use} {how}", stops=False)
        else:
            for field, message in use_problems(use, known.lock):
                yield Remark(("server_uses", at, field), message, stops=False)


def _subagent_remarks(agent: AgentSpec, catalog: Catalog) -> Iterator[Remark]:
    broken = {each.name for each in catalog.broken}
    for at, name in enumerate(agent.subagents):
        other, loc = catalog.agents.get(name), ("subagents", at)
        if other is not None and agent.name in other.allowed_callers:
            continue
        if other is not None:
            message = (
                f"{name} does not allow it; add {agent.name} to allowed_callers of {name}'s "
                "agent.md, or remove it here"
            )
            yield Remark(loc, message)
        elif name in broken:
            yield Remark(loc, f"{name} cannot be used as it is; mend its agent.md", stops=False)
        else:
            others = [each for each in catalog.agents if each != agent.name]
            guess = did_you_mean(name, others, NEAR_ENOUGH)
            known = ", ".join(others) or "none besides"
            hint = f"did you mean '{guess}'?" if guess else f"there are: {known}"
            yield Remark(loc, f"there is no agent {name!r}; {hint}")


def _model_remarks(agent: AgentSpec) -> Iterator[Remark]:
    """Models that leave open which they are, or whose price is not known; also those of single
    runners.
    """
    yield from _model_remark(("model",), agent.model)
    for runner, model in agent.models.items():
        yield from _model_remark(("models", runner), model)


def _model_remark(loc: Loc, model: str) -> Iterator[Remark]:
    name = undecorated(model)
    if is_listed(model) or name in ALIASES:
        return
    if name in UNDECIDED_MODELS:
        message = f"'{model}' leaves the model to the CLI, and we let an agent have"
        yield Remark(loc, f"{message} one; write {KNOWN_MODELS}")
        return
    guess = did_you_mean(model, (*ALIASES, *PRICES), NEAR_ENOUGH)
    hint = f"did you mean '{guess}'?" if guess else f"write {KNOWN_MODELS}"
    message = (
        f"no price is known for '{shortened(model)}', so runs are billed as the dearest "
        f"model that it could be; {hint}"
    )
    yield Remark(loc, message, stops=False)


def _runner_remarks(agent: AgentSpec) -> Iterator[Remark]:
    """Runners that cannot be had, and what those that can be cannot do."""
    try:
        choice = ways_of(agent, RUNNERS)
    except AgentInvalid as exc:
        yield Remark(("runner",) if agent.runner else ("model",), str(exc))
        return
    for line in choice.passed_over:
        yield Remark(("runner",), f"does nothing for {line}", stops=False)
    for name in agent.models:
        if name not in agent.runner:
            message = f"does nothing: {name} is not under runner; add it there, or remove this"
            yield Remark(("models", name), message, stops=False)
    for way in choice.candidates:
        runner = RUNNERS[way.runner]
        if not runner.abilities.asks_about_all and (rule := _narrow_rule(agent)):
            message = (
                f"{runner.tools.version} runs commands that it takes for harmless, such as echo "
                f"and ls, without asking, so {shortened(rule)} does not hold for them; name "
                "another runner if it has to"
            )
            yield Remark(("runner",) if agent.runner else ("model",), message, stops=False)
    if len(agent.runner) > 1 and agent.session.keep:
        message = (
            "a session stays with the CLI that began it, so the next runner goes on only where the "
            "first has no credential; write one, or remove `session`"
        )
        yield Remark(("runner",), message, stops=False)


def _narrow_rule(agent: AgentSpec) -> str:
    """A rule that lets an agent run some commands only, or some once its caller has agreed."""
    closing = [each for each in (*agent.ask_rules, *agent.deny_rules) if rule_tool(each) == "Bash"]
    allowed = [each for each in agent.permissions.allow if rule_tool(each) == "Bash"]
    some = [] if "Bash" in allowed else allowed
    return next(iter((*closing, *some)), "")


def _ways(agent: AgentSpec) -> tuple[RunnerWay, ...]:
    try:
        return ways_of(agent, RUNNERS).candidates
    except AgentInvalid:
        return ()


def _launch_remarks(agent: AgentSpec) -> Iterator[Remark]:
    """What the launch itself refuses, and has not been found before."""
    if any(_variable_remarks(agent)) or any(_server_remarks(agent)):
        return
    shown, _ = shown_variables(agent, {})
    exposed = {secret.name: secret.name for secret in agent.secrets}
    task, place = Task(agent=agent.name, prompt="-"), Place(image="-")
    for way in _ways(agent):
        try:
            plan(agent, task, place, shown, "-", exposed, way=way)
        except AgentInvalid as exc:
            yield Remark((), str(exc))
            return
