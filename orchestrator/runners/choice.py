"""An agent, and what the operator says of runners -> the agent CLIs to try, in order. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from orchestrator.domain import Frozen
from orchestrator.domain.agent import DEFAULT_RUNNER, AgentSpec, RunnerWish
from orchestrator.errors import AgentInvalid
from orchestrator.runners.contract import Runner, WireFormat

Lacks = Callable[[WireFormat], str]
"""The variables of which one has to be set before a format leads to a model; "" if it does."""


class _Family(Frozen):
    """Models of one maker."""

    names: str
    """A regular expression."""
    wire_formats: tuple[WireFormat, ...]
    runner: str
    """Its maker's own CLI, which is taken if nothing else is said."""
    maker: str


_ALIAS = r"(sonnet|opus|haiku|fable|best|default|opusplan)(\[.*)?$"
"""What claude calls the latest of its models."""

_MAKERS = (
    _Family(
        names=rf"claude-|{_ALIAS}",
        wire_formats=("anthropic",),
        runner="claude",
        maker="anthropic",
    ),
    _Family(
        names=r"gpt-|chatgpt-|codex-|o[0-9]",
        wire_formats=("responses", "chat"),
        runner="codex",
        maker="openai",
    ),
    _Family(names="gemini-", wire_formats=("gemini",), runner="gemini", maker="google"),
)


_OF_OTHERS: tuple[WireFormat, ...] = ("anthropic", "chat", "responses", "gemini")
"""How a model of a maker that is not known is asked for: most of those whose API is like OpenAI's
have its older one, and not all have the newer.
"""


class RunnerWay(Frozen):
    """One way to run an agent."""

    runner: str
    model: str
    wire_format: WireFormat


class Choice(Frozen):
    """The ways to run an agent, the first of which is taken."""

    candidates: tuple[RunnerWay, ...]
    passed_over: tuple[str, ...] = ()
    """What was not taken, and why; a sentence each."""


_NO_WISH = RunnerWish()


class _Unfit(Exception):
    """A runner cannot be taken."""


def choose(
    agent: AgentSpec,
    runners: Mapping[str, Runner],
    lacks: Lacks,
    wish: RunnerWish = _NO_WISH,
) -> Choice:
    """The runners that agent.md names, in its order, the operator's preferred one first if it is
    among them. If agent.md names none: the preferred one, then those of the operator's list by
    their priority, or the maker's own of the agent's model.

    One that cannot have the model, or has no credential, is passed over. If that leaves none, the
    first is taken all the same, to say what it lacks. AgentInvalid if none could have the model.
    """
    wanted = list(dict.fromkeys(_wanted(agent, wish)))
    found, without, passed = list[RunnerWay](), list[RunnerWay](), list[str]()
    for name in wanted:
        try:
            candidate = _candidate(agent, name, runners, wish, lacks)
        except _Unfit as exc:
            passed.append(f"{name}: {exc}")
            continue
        if missing := lacks(candidate.wire_format):
            passed.append(f"{name}: there is no credential for its model; set {missing}")
            without.append(candidate)
        else:
            found.append(candidate)
    if not found and without:  # which says itself what it lacks
        found = without[:1]
        passed = [line for line in passed if not line.startswith(f"{found[0].runner}: ")]
    if not found:
        raise AgentInvalid(f"agent {agent.name!r} has no runner: {'; '.join(passed)}")
    return Choice(candidates=tuple(found), passed_over=tuple(passed))


def ways_of(agent: AgentSpec, runners: Mapping[str, Runner]) -> Choice:
    """What an agent could run on by itself, whatever the operator says and lacks."""
    return choose(agent, runners, lambda _: "")


def maker_of(model: str) -> str:
    """Who makes a model, as far as its name tells; "" if it does not."""
    family = _family(model)
    return "" if family is None else family.maker


def _wanted(agent: AgentSpec, wish: RunnerWish) -> Iterator[str]:
    if agent.runner:
        if wish.preferred in agent.runner:
            yield wish.preferred
        yield from agent.runner
        return
    if wish.preferred:
        yield wish.preferred
    if wish.config is not None:
        entries = sorted(wish.config.runners, key=lambda each: (each.priority, each.name))
        yield from (entry.name for entry in entries)
        return
    family = _family(agent.model)
    if "model" in agent.model_fields_set or not wish.preferred:
        yield DEFAULT_RUNNER if family is None else family.runner


def _candidate(
    agent: AgentSpec,
    name: str,
    runners: Mapping[str, Runner],
    wish: RunnerWish,
    lacks: Lacks,
) -> RunnerWay:
    runner = runners.get(name)
    if runner is None:
        raise _Unfit(f"there is no such runner here; there are {', '.join(runners)}")
    model = model_on(agent, name, runner)
    if not agent.runner and wish.config is not None and "model" in agent.model_fields_set:
        listed = [entry.models for entry in wish.config.runners if entry.name == name]
        if listed and listed[0] and model not in listed[0]:
            raise _Unfit(f"the runner configuration does not list {model} for it")
    formats = wire_formats(runner, model)
    if not formats:
        alias = re.match(_ALIAS, model) and "anthropic" in runner.wire_formats
        why = f"does not know the alias {model}" if alias else f"cannot have {model}"
        raise _Unfit(
            f"it {why}; name a model for it in agent.md: "
            f"`models: {{{name}: {runner.default_model}}}`"
        )
    usable = [each for each in formats if not lacks(each)]
    return RunnerWay(runner=name, model=model, wire_format=(usable or formats)[0])


def model_on(agent: AgentSpec, name: str, runner: Runner) -> str:
    """The model that an agent has on a runner."""
    if name in agent.models:
        return agent.models[name]
    if "model" in agent.model_fields_set or wire_formats(runner, agent.model):
        return agent.model
    return runner.default_model


def wire_formats(runner: Runner, model: str) -> tuple[WireFormat, ...]:
    """What the runner speaks by which the model can be had; of a model that is not known, all."""
    family = _family(model)
    if family is None:
        return tuple(each for each in _OF_OTHERS if each in runner.wire_formats)
    if re.match(_ALIAS, model) and not runner.abilities.knows_aliases:
        return ()
    return tuple(each for each in runner.wire_formats if each in family.wire_formats)


def _family(model: str) -> _Family | None:
    return next((family for family in _MAKERS if re.match(family.names, model)), None)
