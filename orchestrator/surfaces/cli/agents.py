"""`orchestrator agents`: what there is to run, and what is wrong with the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.elsewhere.remote_reports import asked_there
from orchestrator.surfaces.cli.elsewhere.server_option import not_with_server, or_elsewhere
from orchestrator.surfaces.cli.options import AgentsDirOption, JsonOption, settings_for
from orchestrator.surfaces.text import one_line, print_lines, shortened, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orchestrator.catalog import BrokenAgent, Catalog, Problem
    from orchestrator.settings import Settings

EXIT_BROKEN_AGENT = 3
"""An agent cannot be used: the same as for any other mistake of its author."""

DESCRIPTION_CHARS = 80
"""How much of a description a line of the list has room for."""

agents_app = Commands("The agents that can be run.")


@agents_app.command("list")
@or_elsewhere
def list_(*, agents_dir: AgentsDirOption = None, as_json: JsonOption = False) -> None:
    """List the agents, and those that cannot be used."""
    from orchestrator.catalog import agents_of_others
    from orchestrator.settings import read_settings

    settings = read_settings()
    if settings.server:
        _list_there(settings, agents_dir, as_json=as_json)
        return
    catalog = _catalog(agents_dir)
    untrusted, command = _untrusted(catalog, agents_dir)
    if as_json:
        rows = [
            agent.model_dump(mode="json", exclude={"prompt"}) for agent in catalog.agents.values()
        ]
        said = {"agents": rows, "broken": _broken(catalog), "untrusted": untrusted}
        told = {"notes": _dumped(catalog.notes), "warnings": _dumped(catalog.doubts)}
        print(json.dumps({**said, **told}))
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
        others = agents_of_others(settings_for(agents_dir).agents_dir.parent)
        print_lines(["there are no agents yet" + (f"; {others}" if others else "")])
    print_lines(_doubt_lines(catalog))
    print_lines(_untrusted_lines(untrusted, command))


@agents_app.command()
@or_elsewhere
def show(
    name: Annotated[str, typer.Argument(help="The agent, as its folder is called.")],
    *,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what an agent is: every field, with defaults, then its system prompt."""
    from orchestrator.settings import read_settings

    settings = read_settings()
    if settings.server:
        not_with_server(settings, agents_dir=agents_dir)
        said = asked_there(settings, lambda client: client.agent(name)).model_dump(mode="json")
        if as_json:
            print(json.dumps(said))
        else:
            print_lines(table([(field, _written(value)) for field, value in said.items()]))
        return
    catalog = _catalog(agents_dir)
    agent = catalog.agent(name)
    fields = agent.model_dump(mode="json")
    if as_json:
        print(json.dumps(fields))
        return
    prompt = fields.pop("prompt")
    print_lines(table([(field, _written(value)) for field, value in fields.items()]))
    if told := [note for note in catalog.notes if note.path == catalog.files[name]]:
        print_lines(["", "What of its file counts differently here, or not at all:"])
        print_lines(f"  {note}" for note in told)
    if doubts := catalog.warnings.get(name):
        print_lines(["", "What is probably not meant:", *(f"  {doubt}" for doubt in doubts)])
    if prompt:
        print_lines(["", prompt])


@agents_app.command()
def check(*, agents_dir: AgentsDirOption = None, as_json: JsonOption = False) -> None:
    """Check every agent.md, and print each mistake with its file and line; exit code 3 if any."""
    from orchestrator.app import without_image
    from orchestrator.state import open_agents

    settings = settings_for(agents_dir)
    agents = open_agents(settings)
    catalog = agents.current()
    problems = catalog.problems
    doubts = (*catalog.doubts, *without_image(settings, agents))
    untrusted, command = _untrusted(catalog, agents_dir)
    if as_json:
        said = {"ok": not problems, "agents": list(catalog.agents), "broken": _broken(catalog)}
        print(json.dumps({**said, "warnings": _dumped(doubts), "untrusted": untrusted}))
    else:
        print_lines(map(str, problems))
        print_lines(f"{doubt} (a warning)" for doubt in doubts)
        print_lines(_untrusted_lines(untrusted, command))
        count = len(catalog.agents) + len(catalog.broken)
        print(_verdict(count, len(catalog.broken), len(doubts)))
    if problems:
        raise typer.Exit(EXIT_BROKEN_AGENT)


@agents_app.command()
def schema() -> None:
    """Print a JSON Schema of agent.md's fields, for editors."""
    from orchestrator.checker.schema import agent_schema

    print(json.dumps(agent_schema(), indent=2, ensure_ascii=False))


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


def _list_there(settings: Settings, agents_dir: Path | None, *, as_json: bool) -> None:
    """The agents that we may run there; of others, and of broken ones, its operator knows."""
    not_with_server(settings, agents_dir=agents_dir)
    found = asked_there(settings, lambda client: client.agents())
    if as_json:
        none: dict[str, object] = {"broken": [], "untrusted": {}, "notes": [], "warnings": []}
        print(json.dumps({"agents": [each.model_dump(mode="json") for each in found], **none}))
        return
    rows = [(each.name, shortened(one_line(each.description), DESCRIPTION_CHARS)) for each in found]
    print_lines(table(sorted(rows)))
    if not rows:
        print_lines([f"there are no agents at {settings.server} that you may run"])


def _catalog(agents_dir: Path | None) -> Catalog:
    # Here and above, not at the top: `--help` need not wait for yaml.
    from orchestrator.state import open_agents

    return open_agents(settings_for(agents_dir)).current()


def _untrusted(catalog: Catalog, agents_dir: Path | None) -> tuple[dict[str, list[str]], str]:
    """What nobody has trusted agents with, by agent, and what to type to do so."""
    from orchestrator.state import open_trust
    from orchestrator.trust import trust_command

    trust = open_trust(settings_for(agents_dir))
    agents = catalog.agents
    wants = {name: list(trust.wants(agent, catalog)) for name, agent in agents.items()}
    found = {name: wanted for name, wanted in wants.items() if wanted}
    return found, trust_command(trust.agents_dir)


def _untrusted_lines(untrusted: dict[str, list[str]], command: str) -> Iterator[str]:
    if untrusted:
        yield f"not trusted yet with what they want: {', '.join(untrusted)}; see: {command}"


def _verdict(agents: int, broken: int, doubts: int) -> str:
    """The last line of a check."""
    all_of_them = f"{agents} agent{'' if agents == 1 else 's'}"
    warnings = f"{doubts} warning{'' if doubts == 1 else 's'}" if doubts else ""
    if broken:
        return f"{broken} of {all_of_them} cannot be used" + (f"; {warnings}" if warnings else "")
    if agents == 0:
        return f"no agents{f'; {warnings}' if warnings else ''}"
    return f"{all_of_them}, {f'usable, with {warnings}' if warnings else 'all good'}"


def _doubt_lines(catalog: Catalog) -> Iterator[str]:
    if count := len(catalog.doubts):
        yield f"{count} warning{'' if count == 1 else 's'}; see: orchestrator agents check"


def _dumped(problems: Iterable[Problem]) -> list[object]:
    return [problem.model_dump(mode="json") for problem in problems]


def _broken(catalog: Catalog) -> list[object]:
    return [broken.model_dump(mode="json") for broken in catalog.broken]


def _first(broken: BrokenAgent) -> str:
    problem = broken.problems[0]
    return f"{problem.field}: {problem.message}" if problem.field else problem.message


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
