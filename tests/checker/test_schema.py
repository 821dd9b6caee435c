"""The JSON Schema of agent.md: valid, in step with the file that editors read, and of our mind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from orchestrator.catalog import parse_agent
from orchestrator.checker.schema import agent_schema
from orchestrator.output import check_schema
from orchestrator.plain_yaml import read_yaml
from orchestrator.surfaces.cli.main import main
from tests.checker.broken_agents import BROKEN, DOUBTFUL, GOOD, Case

AGENTS = Path(__file__).parents[2] / "agents"

README = re.findall(r"```markdown\n(.*?)```", (AGENTS / "README.md").read_text(), re.DOTALL)

SHIPPED = {
    path.parent.name: path.read_text() for path in sorted(AGENTS.glob("*/agent.md"))
} | dict.fromkeys(("reviewer",), README[0])

WAYS = """
session: {idle_after: 5m, stop_after: 1.5h, expire_after: 7 d}
memory: rw
workspace: {mode: copy, gitignore: true}
ask: {whom: user, answer_seconds: 60}
approval: {"*": ask, "Bash(git push:*)": deny, mcp__own__get: auto}
network:
  mode: open
  allow_private: ["10.0.0.0/8:8080", "[fd00::1]", nas.local, 10.1.2.3]
  deny: ["*.x.org"]
resources: {memory: 4g, scratch: 512m, disk: 1 GiB, output: 64m, cpus: 0.5}
tools: Read, Bash(git log:*, git show:*)
disallowedTools: [Write]
maxTurns: 3
color: blue
$schema: ../agent.schema.json
image:
runtime: runsc
max_budget_usd: 0.5
output_schema: answer.json
env: {TZ: "${TZ:-UTC}"}
files: [server.py, guides/]
mcp_servers:
  - {name: own, command: python3, args: [/agent/server.py], env: {K: "${K}"}}
  - {use: tickets, allow: ["get_*"], approve: {"*": ask}, arguments: {get_x: {project: acme}}}
secrets:
  - {name: t, hosts: ["x.org:8443"], paths: ["/a/**"], methods: [GET], scheme: basic, username: git}
  - {name: u, expose: env, variable: U}
"""


def fields_of(text: str) -> object:
    return read_yaml(text.split("\n---\n", maxsplit=1)[0].removeprefix("---\n")).value


def refusals(text: str) -> list[str]:
    validator = Draft202012Validator(agent_schema())
    return [error.message for error in validator.iter_errors(fields_of(text))]


def accepted(text: str, name: str) -> bool:
    found = parse_agent(
        text,
        folder=name,
        path=Path("agent.md"),
        read_beside=lambda _: (Path("answer.json"), '{"type": "object"}'),
        check_schema=check_schema,
    )
    return not isinstance(found, tuple)


def test_it_is_a_schema_and_the_file_beside_the_reference_is_in_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Draft202012Validator.check_schema(agent_schema())
    with pytest.raises(SystemExit) as exit_:
        main(["agents", "schema"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == agent_schema()
    assert printed == (AGENTS / "agent.schema.json").read_text(), "see: orchestrator agents schema"


def test_every_field_has_a_line_for_its_reader() -> None:
    schema = agent_schema()
    nouns = {"": schema, **schema["$defs"]}
    fields = {
        f"{noun}.{name}": field
        for noun, made in nouns.items()
        for name, field in made.get("properties", {}).items()
    }
    without = {name for name, field in fields.items() if not field.get("description")}
    shorter = {f"Resources.{name}" for name in ("memory", "scratch", "disk", "output")}
    shorter |= {f"Session.{name}" for name in ("keep", "idle_after", "stop_after", "expire_after")}
    assert without <= shorter | {"Secret.header"}


@pytest.mark.parametrize("name", SHIPPED)
def test_it_accepts_the_shipped_agents(name: str) -> None:
    assert accepted(SHIPPED[name], name)
    assert refusals(SHIPPED[name]) == []


@pytest.mark.parametrize("case", [*GOOD, *DOUBTFUL], ids=lambda case: case.name)
def test_it_accepts_what_is_at_most_doubtful(case: Case) -> None:
    assert refusals(case.text) == []


def test_it_accepts_every_way_to_write_a_field() -> None:
    text = f"---\nname: mine\ndescription: Does it.{WAYS}---\nGo.\n"
    assert accepted(text, "mine")
    assert refusals(text) == []


OBVIOUS = (
    *("no name and no description", "a field misspelt", "a field inside misspelt"),
    *("the prompt as a field", "a number in quotes", "seconds where milliseconds are meant"),
    *("yes for true", "a text for a list", "a word that is not among the allowed ones"),
    *("a size without a unit", "a rule with a parenthesis open", "a URL for a host"),
    *("every host", "ports that are none", "a list in the place of fields"),
)


def test_it_refuses_what_is_obviously_wrong() -> None:
    texts = {case.name: case.text for case in BROKEN}
    assert [name for name in OBVIOUS if refusals(texts[name]) == []] == []
