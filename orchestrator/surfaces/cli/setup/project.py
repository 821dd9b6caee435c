"""`orchestrator init` writes what a project needs to hand out tasks, `orchestrator trust` says that
its agents may reach what they want.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from orchestrator.surfaces.cli.options import AgentsDirOption, JsonOption, settings_for
from orchestrator.surfaces.text import named, print_lines, table

if TYPE_CHECKING:
    from orchestrator.domain.agent import AgentSpec
    from orchestrator.engine.project_trust import ProjectTrust
    from orchestrator.settings import Settings

EXIT_NOT_AGREED = 1
"""The person looked, and said no."""

SERVER = "subagents"
"""What the server is called in .mcp.json."""

HELLO_AGENT = """\
---
name: hello
description: Answers one question about the machine it runs on. An example to change.
permissions:
  allow: [Bash]
max_turns: 10
output_schema:
  type: object
  additionalProperties: false
  required: [answer, evidence]
  properties:
    answer: {type: string, minLength: 1}
    evidence: {type: string, description: The command that was run and what it printed.}
---

You answer a question about the machine you run on, which is a container without any network.
Run a command with Bash to find out, then answer. Do not guess.
"""

HELLO_SCRIPT = """\
# Plays the model when ORCHESTRATOR_SCRIPTED=1 is set: a run without a key.
steps:
  - tool: Bash
    input: {command: uname -srm}
  - text: >-
      {"answer": "I run on Linux.", "evidence": {last_tool_result_json}}
"""


class Wanted(NamedTuple):
    """A file that a project should have."""

    path: Path
    content: str


def init(
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="The project; here, if not given.")
    ] = None,
) -> None:
    """Write agents/ with an example and .mcp.json; what exists already is left as it is."""
    project = (directory or Path()).resolve()
    command = own_command()
    for wanted in project_files(project, command):
        if wanted.path.exists() or wanted.path.is_symlink():
            print(f"exists   {wanted.path}")
        else:
            _write(wanted)
            print(f"written  {wanted.path}")
    for line in next_steps(project, command):
        print(line)


def trust(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The project with agents/; this one, if not given."),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Trust it without asking.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List what is trusted.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust the project no more.")] = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the agents of a project could reach, and let them, if you agree."""
    if sum((yes, list_, revoke)) > 1:
        raise typer.BadParameter("--yes, --list and --revoke exclude each other")
    if directory is not None and agents_dir is not None:
        raise typer.BadParameter("DIR and --agents-dir exclude each other")
    if list_:
        _list_trusted(as_json)
    elif revoke:
        _revoke(directory, agents_dir, as_json)
    else:
        _trust(settings_for(_agents_dir_of(directory, agents_dir)), yes=yes, as_json=as_json)


def _trust(settings: Settings, *, yes: bool, as_json: bool) -> None:
    from orchestrator.catalog import load_catalog
    from orchestrator.output import check_schema
    from orchestrator.state import open_trust

    agents = load_catalog(settings.agents_dir, check_schema).agents
    project = open_trust(settings)
    growth = project.growth(agents)
    if as_json:
        if yes and growth:
            _note(settings, str(project.agents_dir), allowed=True)
            project.trust(agents)
        print(json.dumps(trust_document(project, agents, growth, trusted=yes or not growth)))
        return
    print_lines(trust_lines(project, agents, growth))
    if not growth:
        return
    if not yes and not _agreed():
        _note(settings, str(project.agents_dir), allowed=False)
        print("nothing is trusted that was not before")
        raise typer.Exit(EXIT_NOT_AGREED)
    _note(settings, str(project.agents_dir), allowed=True)
    project.trust(agents)  # as they were read above, and have been shown
    print("trusted; you are asked again when one of them could reach more")


def _note(settings: Settings, agents_dir: str, *, allowed: bool) -> None:
    """Write into the audit that a project is trusted with more, or not, or no longer."""
    import anyio

    from orchestrator.state import note_decision

    anyio.run(partial(note_decision, settings, "trust", agents_dir, allowed=allowed))


def trust_document(
    project: ProjectTrust,
    agents: Mapping[str, AgentSpec],
    growth: Mapping[str, tuple[str, ...]],
    *,
    trusted: bool,
) -> dict[str, object]:
    """The same for programs. Without --yes nothing is trusted: it only tells."""
    from orchestrator.trust import extent_of

    reach = {name: extent_of(agent, agents).grants for name, agent in agents.items()}
    return {
        "project": str(project.project),
        "trusted": trusted,
        "by_setting": project.is_set,
        "agents": {name: list(map(str, grants)) for name, grants in reach.items()},
        "new": {name: list(more) for name, more in growth.items()},
    }


def trust_lines(
    project: ProjectTrust,
    agents: Mapping[str, AgentSpec],
    growth: Mapping[str, tuple[str, ...]],
) -> Iterator[str]:
    """What each agent could reach; with + what nobody has agreed to yet."""
    from orchestrator.trust import extent_of

    yield f"the agents of {project.project} could reach, beside their model:"
    for name, agent in agents.items():
        new = growth.get(name, ())
        known = [str(grant) for grant in extent_of(agent, agents).grants]
        yield f"  {name}" + ("" if known else ": nothing")
        yield from (f"    {line}" for line in known if line not in new)
        yield from (f"  + {line}" for line in new)
    if project.is_set:
        yield "all of it is trusted, by ORCHESTRATOR_TRUSTED or `trusted` in your config.yaml"
    elif not growth:
        yield "nothing of it has to be trusted, or all of it is"
    else:
        yield "what has a + is new, and nobody has trusted them with it"


def _agreed() -> bool:
    """What a person says, who is there to be asked; OperatorError if nobody is."""
    from orchestrator.errors import OperatorError

    if not sys.stdin.isatty():
        raise OperatorError(
            "nobody can be asked here: there is no terminal; type the command at one, or add "
            "--yes if you know what these agents are"
        )
    return typer.confirm("Trust them with it?", default=False)


def _list_trusted(as_json: bool) -> None:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_trust

    trust = open_trust(read_settings())
    projects = trust.book.all()
    if as_json:
        rows = [project.model_dump(mode="json") for project in projects]
        print(json.dumps({"projects": rows, "by_setting": list(map(str, trust.always))}))
        return
    lines = [
        (
            named(str(project.agents_dir.parent), len(str(project.agents_dir))),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(project.at)),
            ", ".join(project.agents) or "none",
        )
        for project in projects
    ]
    lines += [(str(folder), "by setting", "all below it") for folder in trust.always]
    print_lines(table(lines))
    if not lines:
        print("no project is trusted")


def _revoke(directory: Path | None, agents_dir: Path | None, as_json: bool) -> None:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_trust

    agents = _agents_dir_of(directory, agents_dir)
    settings = read_settings(flags={"agents_dir": agents and agents.absolute()})
    trust = open_trust(settings)
    _note(settings, str(trust.agents_dir), allowed=False)
    was = trust.book.forget(trust.agents_dir)
    if as_json:
        said = {"project": str(trust.project), "was_trusted": was, "by_setting": trust.is_set}
        print(json.dumps(said))
        return
    print(f"{trust.project} is trusted no more" if was else f"{trust.project} was not trusted")
    if trust.is_set:
        print("but ORCHESTRATOR_TRUSTED, or `trusted` in your config.yaml, still trusts it")


def _agents_dir_of(directory: Path | None, agents_dir: Path | None) -> Path | None:
    return agents_dir if directory is None else directory / "agents"


def project_files(project: Path, command: str) -> tuple[Wanted, ...]:
    hello = project / "agents" / "hello"
    entry = {"command": command, "args": ["serve"], "env": _environment(project)}
    config = json.dumps({"mcpServers": {SERVER: entry}}, indent=2) + "\n"
    return (
        Wanted(hello / "agent.md", HELLO_AGENT),
        Wanted(hello / "script.yaml", HELLO_SCRIPT),
        Wanted(project / ".mcp.json", config),
    )


def next_steps(project: Path, command: str) -> tuple[str, ...]:
    """What to do now. The line for `claude mcp add` serves who has a .mcp.json of their own."""
    set_env = [f"--env={name}={value}" for name, value in _environment(project).items()]
    add = ["claude", "mcp", "add", *set_env, SERVER, "--", command, "serve"]
    cd = [] if project == Path.cwd() else [f"  cd {shlex.quote(str(project))}"]
    return (
        "",
        "Try it (with ORCHESTRATOR_SCRIPTED=1 a script plays the model, and no key is needed):",
        *cd,
        f"  {shlex.quote(command)} run hello 'Which kernel is this?'",
        "Claude Code finds .mcp.json when it is started here; if you have one already, add ours:",
        f"  {shlex.join(add)}",
        "Then write agents/NAME/agent.md, and see with `orchestrator agents check` and",
        "`orchestrator plan NAME` what it may do. One that is to reach hosts, secrets or the like",
        "runs once you have agreed to that with `orchestrator trust`.",
    )


def own_command() -> str:
    """How others start us: by name if that finds us, else by path."""
    beside = Path(sys.executable).parent / "orchestrator"
    found = shutil.which("orchestrator")
    if found and (not beside.exists() or Path(found).resolve() == beside.resolve()):
        return "orchestrator"
    return str(beside) if beside.exists() else str(Path(sys.argv[0]).resolve())


def _environment(project: Path) -> dict[str, str]:
    return {"ORCHESTRATOR_AGENTS_DIR": str(project / "agents")}


def _write(wanted: Wanted) -> None:
    from orchestrator.errors import OperatorError

    try:
        wanted.path.parent.mkdir(parents=True, exist_ok=True)
        with wanted.path.open("x", encoding="utf-8") as file:  # never over something else
            file.write(wanted.content)
    except OSError as exc:
        raise OperatorError(f"{wanted.path} cannot be written: {exc.strerror}") from exc
