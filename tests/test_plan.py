"""AgentSpec + Task -> ContainerSpec + Launch, by value."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from orchestrator.domain.agent import AgentSpec, McpServer, Permissions, Resources, Workspace
from orchestrator.domain.container import MIB, Bind, User
from orchestrator.domain.task import Task
from orchestrator.errors import AuthorError, MountRefused
from orchestrator.plan import Place, plan
from orchestrator.workspace.transfer import COLLECT_SECONDS

AGENT = AgentSpec(name="worker", description="Works.", prompt="You work.")
TASK = Task(agent="worker", prompt="Do it.", run_id="r1")
PLACE = Place(image="agent:1")


def test_the_same_input_gives_the_same_plan() -> None:
    assert plan(AGENT, TASK, PLACE, {}, "t") == plan(AGENT, TASK, PLACE, {}, "t")


def test_the_safe_value_is_the_default() -> None:
    made = plan(AGENT, TASK, PLACE, {}, "token")

    assert (made.container.image, made.container.mounts) == ("agent:1", ())
    assert made.container.user == User(uid=1000, gid=1000)
    assert made.timeout_seconds == 120
    assert made.container.lifetime_seconds > made.timeout_seconds
    assert made.launch.env["ANTHROPIC_API_KEY"] == "token"
    assert made.launch.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
    assert made.secrets_inside == ()


def test_a_container_outlives_all_that_its_run_may_wait_for() -> None:
    def lifetime(**fields: object) -> float:
        agent = AGENT.model_copy(update=fields)
        return plan(agent, TASK, PLACE, {}, "t").container.lifetime_seconds

    plain = lifetime()
    patience = AGENT.ask.patience_seconds
    assert lifetime(subagents=("other",)) == plain + patience  # who may ask, and be waited for
    assert lifetime(workspace=Workspace(mode="copy")) == plain + COLLECT_SECONDS


def test_limits_follow_the_agents_resources() -> None:
    agent = AGENT.model_copy(
        update={"resources": Resources(memory_mb=1024, cpus=1, pids=64, scratch_mb=100)}
    )
    container = plan(agent, TASK, PLACE, {}, "t").container

    assert container.limits.memory_bytes == 1024 * MIB
    assert (container.limits.cpus, container.limits.pids) == (1, 64)
    assert {t.size_bytes for t in container.tmpfs} == {100 * MIB}


@pytest.mark.parametrize(("mode", "read_only"), [("ro", True), ("rw", False)])
def test_a_workspace_is_mounted_as_agent_md_says_and_its_owner_is_the_agent(
    mode: Literal["ro", "rw"], read_only: bool
) -> None:
    agent = AGENT.model_copy(update={"workspace": Workspace(mode=mode)})
    task = TASK.model_copy(update={"workspace": Path("/srv/project")})
    place = Place(image="agent:1", workspace_owner=User(uid=501, gid=20))
    made = plan(agent, task, place, {}, "t")

    assert made.container.mounts == (Bind(source="/srv/project", read_only=read_only),)
    assert made.container.user == User(uid=501, gid=20)
    assert made.launch.cwd == "/workspace"


def test_an_agent_never_becomes_root_to_write_a_workspace() -> None:
    agent = AGENT.model_copy(update={"workspace": Workspace(mode="rw")})
    task = TASK.model_copy(update={"workspace": Path("/srv/project")})
    with pytest.raises(MountRefused, match="belongs to root, and an agent is never root"):
        plan(agent, task, PLACE, {}, "t")


def test_variables_enter_the_container_only_where_agent_md_names_them() -> None:
    server = McpServer(name="search", command="search", env={"KEY": "${SEARCH_KEY}"})
    agent = AGENT.model_copy(update={"mcp_servers": (server,), "env": {"LEVEL": "${LEVEL:-info}"}})
    environ = {"SEARCH_KEY": "s3cret-value", "OTHER": "not this"}
    made = plan(agent, TASK, PLACE, environ, "t")

    assert made.secrets_inside == ("LEVEL", "SEARCH_KEY")
    assert made.launch.env["LEVEL"] == "info"
    config = b"".join(file.content for file in made.launch.files)
    assert b"s3cret-value" in config
    assert b"not this" not in config + "".join(made.launch.env.values()).encode()
    assert "s3cret-value" not in " ".join(made.launch.argv)


def test_a_variable_that_is_not_set_is_the_authors_error() -> None:
    agent = AGENT.model_copy(update={"env": {"KEY": "${MISSING}"}})
    with pytest.raises(AuthorError, match="MISSING"):
        plan(agent, TASK, PLACE, {}, "t")


def test_the_shorter_of_two_timeouts_counts() -> None:
    task = TASK.model_copy(update={"timeout_seconds": 7.0})
    assert plan(AGENT, task, PLACE, {}, "t").timeout_seconds == 7.0
    longer = TASK.model_copy(update={"timeout_seconds": 700.0})
    assert plan(AGENT, longer, PLACE, {}, "t").timeout_seconds == 120.0


def test_an_agent_that_answers_in_json_is_told_so() -> None:
    schema = {"type": "object"}
    agent = AGENT.model_copy(update={"output_format": "json", "output_schema": schema})
    prompt = b"".join(file.content for file in plan(agent, TASK, PLACE, {}, "t").launch.files)
    assert b"You work." in prompt
    assert b'{"type": "object"}' in prompt


def test_only_what_is_allowed_is_offered() -> None:
    agent = AGENT.model_copy(
        update={"permissions": Permissions(allow=("Bash(curl:*)",), deny=("Bash(rm:*)",))}
    )
    argv = plan(agent, TASK, PLACE, {}, "t").launch.argv
    assert "--tools=Bash" in argv


def test_context_comes_before_the_task() -> None:
    task = TASK.model_copy(update={"context": "It is late."})
    assert plan(AGENT, task, PLACE, {}, "t").first_message == (
        "Context:\nIt is late.\n\nTask:\nDo it."
    )
