"""`orchestrator agents`: what there is to run, and what is wrong with the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.options import AgentsDirOption, JsonOption, settings_for
from orchestrator.surfaces.text import one_line, print_lines, shortened, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.catalog import BrokenAgent, Catalog
    from orchestrator.catalog.problems import Problem
    from orchestrator.domain.agent import AgentSpec
    from orchestrator.settings import Settings

EXIT_BROKEN_AGENT = 3
"""An agent cannot be used: the same as for any other mistake of its author."""

DESCRIPTION_CHARS = 80
"""How much of a description a line of the list has room for."""

agents_app = typer.Typer(
    help="The agents that can be run.", no_args_is_help=True, rich_markup_mode=None
)


@agents_app.command("list")
def list_(*, agents_dir: AgentsDirOption = None, as_json: JsonOption = False) -> None:
    """List the agents, and those that cannot be used."""
    catalog = _catalog(agents_dir)
    untrusted, command = _untrusted(catalog, agents_dir)
    if as_json:
        rows = [
            agent.model_dump(mode="json", exclude={"prompt"}) for agent in catalog.agents.values()
        ]
        said = {"agents": rows, "broken": _broken(catalog), "untrusted": untrusted}
        print(json.dumps(said))
        return
    rows_of_text = [(agent.name, agent.description) for agent in catalog.agents.values()]
    rows_of_text += [
        (broken.name, f"cannot be used: {_first(broken)}") for broken in catalog.broken
    ]
    rows_of_text = [
        (name, shortened(one_line(text), DESCRIPTION_CHARS)) for name, text in sorted(rows_of_text)
    ]
    print_lines(table(rows_of_text))
    if not rows_of_text:
        print("there are no agents yet")
    print_lines(_untrusted_lines(untrusted, command))


@agents_app.command()
def show(
    name: Annotated[str, typer.Argument(help="The agent, as its folder is called.")],
    *,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an agent is: every field, with defaults, then its system prompt."""
    agent = _catalog(agents_dir).agent(name)
    fields = agent.model_dump(mode="json")
    if as_json:
        print(json.dumps(fields))
        return
    prompt = fields.pop("prompt")
    print_lines(table([(field, _written(value)) for field, value in fields.items()]))
    if prompt:
        print_lines(["", prompt])


@agents_app.command()
def check(*, agents_dir: AgentsDirOption = None, as_json: JsonOption = False) -> None:
    """Check every agent.md, and print each mistake with its file and line; exit code 3 if any."""
    catalog = _catalog(agents_dir)
    settings = settings_for(agents_dir)
    catalog = with_further_problems(catalog, settings.agents_dir)
    problems = [problem for broken in catalog.broken for problem in broken.problems]
    doubts = list(_doubts(catalog, settings))
    untrusted, command = _untrusted(catalog, agents_dir)
    if as_json:
        said = {"ok": not problems, "agents": list(catalog.agents), "broken": _broken(catalog)}
        warnings = [doubt.model_dump(mode="json") for doubt in doubts]
        print(json.dumps({**said, "warnings": warnings, "untrusted": untrusted}))
    else:
        print_lines(map(str, problems))
        print_lines(f"{doubt} (a warning)" for doubt in doubts)
        print_lines(_untrusted_lines(untrusted, command))
        count = len(catalog.agents) + len(catalog.broken)
        agents = f"{count} agent{'' if count == 1 else 's'}"
        print(
            f"{len(catalog.broken)} of {agents} cannot be used"
            if problems
            else f"{agents}, all good"
        )
    if problems:
        raise typer.Exit(EXIT_BROKEN_AGENT)


def with_further_problems(catalog: Catalog, agents_dir: Path) -> Catalog:
    """The same, without agents that would not run: for what is found in no file of theirs alone."""
    from orchestrator.catalog import BrokenAgent, Catalog
    from orchestrator.catalog.problems import Problem

    good, broken = {}, list(catalog.broken)
    for name, agent in catalog.agents.items():
        path = agents_dir / name / "agent.md"
        found = tuple(
            Problem(path=path, line=1, field=field, message=message)
            for field, message in _further_problems(agent, catalog)
        )
        if found:
            broken.append(BrokenAgent(name=name, path=path.parent, problems=found))
        else:
            good[name] = agent
    return Catalog(agents=good, broken=tuple(broken))


def _doubts(catalog: Catalog, settings: Settings) -> Iterator[Problem]:
    """What is probably not meant, though the agents can run."""
    from orchestrator.access import misspelt
    from orchestrator.catalog.problems import Problem

    known = (*settings.known_callers, *catalog.agents)
    for name, agent in catalog.agents.items():
        for caller in agent.allowed_callers:
            if wrong := misspelt(caller, known, declared=bool(settings.callers)):
                path = settings.agents_dir / name / "agent.md"
                yield Problem(path=path, line=1, field="allowed_callers", message=wrong)


def _further_problems(agent: AgentSpec, catalog: Catalog) -> Iterator[tuple[str, str]]:
    from orchestrator.domain.task import Task
    from orchestrator.errors import AgentInvalid
    from orchestrator.plan import Place, plan, shown_variables

    for name in agent.subagents:
        other = catalog.agents.get(name)
        if other is None:
            yield "subagents", f"there is no agent {name!r} that can be used"
        elif agent.name not in other.allowed_callers:
            yield "subagents", f"{name} does not list {agent.name} in its allowed_callers"
    shown, _ = shown_variables(agent, {})
    exposed = {secret.name: secret.name for secret in agent.secrets}
    try:
        plan(agent, Task(agent=agent.name, prompt="-"), Place(image="-"), shown, "-", exposed)
    except AgentInvalid as exc:
        yield "", str(exc)


@agents_app.command()
def prompt(
    *,
    agents_dir: AgentsDirOption = None,
    caller: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What this caller may run (ORCHESTRATOR_CALLER; main)."),
    ] = None,
) -> None:
    """Print a section for a main agent's system prompt that tells it of the agents."""
    from orchestrator.catalog import prompt_section
    from orchestrator.settings import read_settings

    whom = caller or read_settings().caller
    agents = _catalog(agents_dir).agents.values()
    section = prompt_section(agent for agent in agents if whom in agent.allowed_callers)
    print_lines([section.rstrip("\n")])


def _catalog(agents_dir: Path | None) -> Catalog:
    # Here and above, not at the top: `--help` need not wait for yaml.
    from orchestrator.catalog import load_catalog
    from orchestrator.output import check_schema

    return load_catalog(settings_for(agents_dir).agents_dir, check_schema)


def _untrusted(catalog: Catalog, agents_dir: Path | None) -> tuple[dict[str, list[str]], str]:
    """What nobody has trusted agents with, by agent, and what to type to do so."""
    from orchestrator.state import open_trust
    from orchestrator.trust import trust_command

    trust = open_trust(settings_for(agents_dir))
    agents = catalog.agents
    wants = {name: list(trust.wants(agent, agents)) for name, agent in agents.items()}
    found = {name: wanted for name, wanted in wants.items() if wanted}
    return found, trust_command(trust.agents_dir)


def _untrusted_lines(untrusted: dict[str, list[str]], command: str) -> Iterator[str]:
    if untrusted:
        yield f"not trusted yet with what they want: {', '.join(untrusted)}; see: {command}"


def _broken(catalog: Catalog) -> list[object]:
    return [broken.model_dump(mode="json") for broken in catalog.broken]


def _first(broken: BrokenAgent) -> str:
    problem = broken.problems[0]
    return f"{problem.field}: {problem.message}" if problem.field else problem.message


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
