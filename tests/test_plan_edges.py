"""What a plan makes of secrets and of a conversation."""

from __future__ import annotations

from orchestrator.domain.agent import AgentSpec
from orchestrator.plan import plan
from tests.test_plan import PLACE, TASK


def test_a_secret_that_may_be_inside_is_in_the_environment_under_its_name() -> None:
    secret = {"name": "pass", "expose": "env", "variable": "PASS"}
    agent = AgentSpec.model_validate(
        {"name": "worker", "description": "Works.", "secrets": [secret]}
    )
    made = plan(agent, TASK, PLACE, {}, "t", {"pass": "hunter2"})
    assert made.launch.env["PASS"] == "hunter2"


def test_a_conversation_is_begun_or_taken_up_again() -> None:
    agent = AgentSpec(name="worker", description="Works.")
    name = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"

    def flags(*, resume: bool) -> list[str]:
        argv = plan(agent, TASK, PLACE, {}, "t", conversation=name, resume=resume).launch.argv
        return [flag for flag in argv if name in flag]

    assert flags(resume=False) == [f"--session-id={name}"]
    assert flags(resume=True) == [f"--resume={name}"]
