"""`orchestrator init`: what a project needs to hand out tasks. Nothing there is overwritten."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

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
        "`orchestrator plan NAME` what it may do.",
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
