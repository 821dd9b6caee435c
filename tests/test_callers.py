"""Who calls, when the call says it and when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.access import check_caller, known_caller, misspelt, own_caller
from orchestrator.domain.agent import AgentSpec
from orchestrator.errors import CallerMissing, CallerRefused, OperatorError
from orchestrator.settings import Settings, read_settings
from orchestrator.surfaces.mcp.transports.http import _caller

TOKENS = {"ORCHESTRATOR_HTTP_TOKENS": "planner=0123456789abcdef"}


def settings(cwd: Path, **env: str) -> Settings:
    variables = {f"ORCHESTRATOR_{name.upper()}": value for name, value in env.items()}
    return read_settings({"HOME": str(cwd), **variables}, cwd)


@pytest.mark.parametrize(
    ("env", "own", "over_http"),
    [
        ({}, "main", "default"),
        ({"caller": "planner"}, "planner", "planner"),
        ({"caller": ""}, "default", "default"),
        ({"caller": "default"}, "default", "default"),
        ({"caller": "main"}, "main", "main"),
    ],
)
def test_a_caller_without_a_name_is_default_and_its_own_user_is_main(
    tmp_path: Path, env: dict[str, str], own: str, over_http: str
) -> None:
    found = settings(tmp_path, **env)
    assert own_caller(found) == own
    assert own_caller(found, "named") == "named"
    assert own_caller(found, "") == "default", "said, and no name"
    assert _caller(found) == over_http


@pytest.mark.parametrize("env", [{}, {"caller": ""}, {"caller": "default"}])
def test_deny_on_missing_caller_refuses_every_call_without_a_name(
    tmp_path: Path, env: dict[str, str]
) -> None:
    found = settings(tmp_path, **env, deny_on_missing_caller="1")
    for door in (own_caller, _caller):
        with pytest.raises(CallerMissing, match="ORCHESTRATOR_CALLER") as refused:
            door(found)
        assert refused.value.code == "caller_missing"
    named = settings(tmp_path, caller="planner", deny_on_missing_caller="1")
    assert own_caller(named) == _caller(named) == "planner"
    assert own_caller(found, "planner") == "planner"


def test_default_runs_only_what_lists_it() -> None:
    agent = AgentSpec(name="a", description="d", prompt="p")
    with pytest.raises(CallerRefused):
        check_caller(agent, "default")
    check_caller(agent.model_copy(update={"allowed_callers": ("default",)}), "default")


def test_a_misspelt_caller_is_told_the_nearest_name() -> None:
    agent = AgentSpec(name="a", description="d", prompt="p", allowed_callers=("main", "planner"))
    with pytest.raises(CallerRefused, match="did you mean 'planner'"):
        check_caller(agent, "planer")
    with pytest.raises(CallerRefused, match=r"it allows main, planner$"):
        check_caller(agent, "zebra")


def test_a_declared_caller_is_the_only_kind_where_callers_are_declared(tmp_path: Path) -> None:
    known = ("main", "default", "planner")
    assert misspelt("planner", known, declared=True) == ""
    assert misspelt("zebra", known, declared=False) == ""
    assert "did you mean 'main'?" in misspelt("mian", known, declared=False)
    assert "there are main, default, planner" in misspelt("zebra", known, declared=True)
    assert settings(tmp_path, callers="planner,cron", caller="cron").caller == "cron"
    with pytest.raises(OperatorError, match="did you mean 'cron'"):
        settings(tmp_path, callers="planner,cron", caller="corn")
    with pytest.raises(OperatorError, match="there are main, default, planner"):
        settings(tmp_path, callers="planner", caller="zebra")


def test_a_name_wins_over_what_comes_without_one() -> None:
    assert known_caller("a", "b", deny_missing=True) == "a"
    assert known_caller("", "b", deny_missing=False) == "b"
